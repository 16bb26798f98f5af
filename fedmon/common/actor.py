"""One owner thread with a bounded inbox: the only way threads talk to each other in fedmon."""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar, cast

from fedmon.common.errors import FedmonError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[], object]


class BusyError(FedmonError):
    """An actor is closing, overloaded, or did not run a job in time."""


class Priority(IntEnum):
    """URGENT jobs (replies, presence, commands) run before BULK ones (samples, logs)."""

    URGENT = 0
    BULK = 1


class Bound(NamedTuple):
    """The most jobs and bytes that may wait at one priority; the job that goes beyond the bytes still gets in."""

    jobs: int
    size_bytes: int = 64 * 2**20


URGENT_BOUND, BULK_BOUND = Bound(20_000), Bound(10_000)


class Backlog(Generic[T]):
    """Waiting jobs, within a bound for each priority, urgent before bulk; used under the lock of its owner."""

    def __init__(self, urgent: Bound, bulk: Bound) -> None:
        self.dropped = [0, 0]
        self._bounds = (urgent, bulk)
        self._waiting: tuple[deque[tuple[T, int]], ...] = (deque(), deque())
        self._bytes = [0, 0]

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def put(self, item: T, priority: Priority, size_bytes: int) -> bool:
        """Append an item; return False, and count it, if there is no room."""
        if not self.has_room(priority=priority):
            self.dropped[priority] += 1
            return False
        self._waiting[priority].append((item, size_bytes))
        self._bytes[priority] += size_bytes
        return True

    def take(self) -> T | None:
        """Take the next item; return None if there is none."""
        for priority, waiting in enumerate(self._waiting):
            if waiting:
                item, size_bytes = waiting.popleft()
                self._bytes[priority] -= size_bytes
                return item
        return None

    def clear(self) -> None:
        """Drop everything, uncounted."""
        for waiting in self._waiting:
            waiting.clear()
        self._bytes = [0, 0]

    def has_room(self, share: float = 1.0, *, priority: Priority = Priority.BULK) -> bool:
        """Tell whether items of a priority fill less than this share of their bound."""
        bound = self._bounds[priority]
        is_short = len(self._waiting[priority]) < share * bound.jobs
        return is_short and self._bytes[priority] <= share * bound.size_bytes


class Actor:
    """A thread that runs jobs one at a time.

    Every method is safe from any thread, all but `call` from its own too. A job that raises is logged and ends nothing.
    If an inbox is full, `post` drops the job and counts it in ``dropped``, because a network thread must never wait.
    The thread is a daemon, so that a forgotten actor cannot keep the process alive; its owner still closes it.
    """

    def __init__(self, name: str, *, urgent: Bound = URGENT_BOUND, bulk: Bound = BULK_BOUND) -> None:
        self._inbox = Backlog[Job](urgent, bulk)
        self._timers: list[list[Any]] = []  # moment, order, job
        self._order = itertools.count()
        self._changed = threading.Condition(threading.Lock())
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; jobs that were posted before run first."""
        self._thread.start()

    @property
    def backlog(self) -> int:
        """How many jobs wait."""
        return len(self._inbox)

    @property
    def dropped(self) -> list[int]:
        """How many jobs were dropped, by priority."""
        return self._inbox.dropped

    def post(self, job: Job, *, priority: Priority = Priority.URGENT, size_bytes: int = 0) -> bool:
        """Queue a job; return False, and count it, if its inbox is full or the actor is closing."""
        with self._changed:
            if self._closing:
                self.dropped[priority] += 1
            elif self._inbox.put(job, priority, size_bytes):
                self._changed.notify()
                return True
            return False

    def at(self, due: float, job: Job) -> Callable[[], None]:
        """Run a job at ``due``, on the monotonic clock, unless the actor closes before; return a canceller."""
        with self._changed:
            timer: list[Any] = [due, next(self._order), job]
            heapq.heappush(self._timers, timer)
            self._changed.notify()
        return functools.partial(timer.__setitem__, 2, lambda: None)

    def every(self, period_s: float, job: Job) -> None:
        """Run a job on a grid of ``period_s``; missed ticks are skipped, so the grid never drifts.

        A FedmonError is logged as a warning once, until the job works again.
        """
        start = time.monotonic()
        fails = False

        def tick() -> None:
            nonlocal fails
            try:
                job()
                fails = False
            except FedmonError as error:
                logger.log(logging.DEBUG if fails else logging.WARNING, "tried again until it works: %s", error)
                fails = True
            finally:
                missed = int((time.monotonic() - start) // period_s) + 1
                self.at(start + missed * period_s, tick)

        self.at(start + period_s, tick)

    def call(self, job: Callable[[], T], *, timeout_s: float) -> T:
        """Run a job on the actor's thread, for another thread; return its result or raise its FedmonError.

        Raises BusyError after ``timeout_s``, at once if the actor is closing or overloaded, and for any other error of
        the job, which is logged. A job that has not begun by then never runs.
        """
        result: Future[T] = Future()

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(job())
            except FedmonError as error:
                result.set_exception(error)
            finally:
                if not result.done():
                    result.set_exception(BusyError(f"{self._thread.name} failed at a job; the log says why"))

        if not self.post(run):
            raise BusyError(f"{self._thread.name} is closing or overloaded; try again")
        try:
            return result.result(timeout_s)
        except (TimeoutError, CancelledError):
            message = f"{self._thread.name} is busy or closing and did not get to it within {timeout_s:g} s; try again"
            raise BusyError(message) from None
        finally:
            result.cancel()

    def close(self, *, timeout_s: float, drop: bool = False) -> bool:
        """End after all waiting jobs, or with ``drop`` after the present one; return False if ``timeout_s`` is over."""
        with self._changed:
            self._closing = True
            if drop:
                self._inbox.clear()
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except (Exception, SystemExit):
                logger.exception("job failed in %s", self._thread.name)

    def _next(self) -> Job | None:
        """Wait for the next job: due timers first, then urgent, then bulk; None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._timers and self._timers[0][0] <= now and not self._closing:
                    return cast("Job", heapq.heappop(self._timers)[2])
                job = self._inbox.take()
                if job is not None or self._closing:
                    return job
                self._changed.wait(min(self._timers[0][0] - now, threading.TIMEOUT_MAX) if self._timers else None)
