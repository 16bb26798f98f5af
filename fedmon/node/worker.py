"""The one thread that owns a node's registers: messages, owner's commands and timers are its work, in turn."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from fedmon.common.actor import BusyError
from fedmon.common.errors import FedmonError

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_MESSAGES = 4_000
MAX_MESSAGE_BYTES = 32 * 2**20


class Worker:
    """Runs posted jobs one after another on a thread of its own. Every method is safe from any thread."""

    def __init__(self, name: str, on_start: Callable[[], None]) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._on_start = on_start
        self._timers: list[tuple[float, float, Callable[[], object]]] = []
        self._failing: set[int] = set()
        self._lock = threading.Lock()
        self._messages = self._message_bytes = 0
        self.dropped = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name)

    def every(self, seconds: float, job: Callable[[], object]) -> None:
        """Run a job on a grid of ``seconds``; before `start` only. That it fails is logged once until it works."""
        self._timers.append((time.monotonic() + seconds, seconds, job))

    def start(self) -> None:
        """Start the thread; it runs ``on_start`` first."""
        self._thread.start()

    def post(self, job: Callable[[], object]) -> None:
        """Queue a job of the node's own; these are few, and none is ever dropped."""
        self._queue.put(job)

    def offer(self, job: Callable[[], object], *, size_bytes: int) -> bool:
        """Queue a job that came from outside; False, and counted, when too many or too large ones wait."""
        with self._lock:
            if self._messages >= MAX_MESSAGES or self._message_bytes + size_bytes > MAX_MESSAGE_BYTES:
                self.dropped += 1
                return False
            self._messages += 1
            self._message_bytes += size_bytes

        def run() -> None:
            with self._lock:
                self._messages -= 1
                self._message_bytes -= size_bytes
            job()

        self._queue.put(run)
        return True

    def call(self, job: Callable[[], T], *, timeout_s: float) -> T:
        """Run a job on the worker's thread and return its result, or raise what it raised.

        Raises BusyError when the node is stopping or did not get to it in time.
        """
        done, given_up = threading.Event(), threading.Event()
        outcome: list[T] = []
        failure: list[BaseException] = []

        def run() -> None:
            if given_up.is_set():
                return
            try:
                outcome.append(job())
            except FedmonError as error:
                failure.append(error)
            finally:
                done.set()

        if not self._stopping:
            self.post(run)
        if self._stopping or not done.wait(timeout_s):
            given_up.set()
            raise BusyError(f"the node is busy or stopping and did not get to it within {timeout_s:g} s; try again")
        if failure:
            raise failure[0]
        if not outcome:
            raise BusyError("the node failed at this command; its log says why")
        return outcome[0]

    def stop(self, timeout_s: float) -> bool:
        """Finish what waits, then end; tell whether that came true in time."""
        self._stopping = True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._on_start()
        while True:
            due = min((timer[0] for timer in self._timers), default=None)
            try:
                job = self._queue.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if job is None:
                    return
                _guarded(job)
            self._run_timers()

    def _run_timers(self) -> None:
        now = time.monotonic()
        for index, (due, period, job) in enumerate(self._timers):
            if due <= now:
                self._run_timer(index, job)
                missed = int((now - due) // period) + 1
                self._timers[index] = (due + missed * period, period, job)

    def _run_timer(self, index: int, job: Callable[[], object]) -> None:
        def reported() -> None:
            try:
                job()
            except FedmonError as error:
                if index not in self._failing:
                    logger.error("this is tried again until it works: %s", error)  # noqa: TRY400 - no bug of ours
                self._failing.add(index)
            else:
                self._failing.discard(index)

        _guarded(reported)


def _guarded(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:
        # The worker serves every researcher: one broken job must not end it.
        logger.exception("a job of the node failed")
