"""NEPI's `ParallelRun`: calls in a number of threads."""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from fedmon.experiment.errors import InvalidTaskError

logger = logging.getLogger("fedmon.experiment.parallel")  # NEPI_LOGLEVEL sets the levels below fedmon.experiment


class ParallelRun:
    """Up to ``maxthreads`` daemon threads that run calls once it was started; safe from any thread.

    At most ``maxqueue`` calls wait for a thread (None: any number). With ``results``, each result is kept until it is
    taken by iterating. `sync` raises the first exception; later ones are logged.
    """

    def __init__(self, maxthreads: int | None = None, maxqueue: int | None = None, results: bool = True) -> None:  # noqa: FBT001, FBT002 - NEPI's
        self._maxthreads, self._maxqueue = maxthreads or os.cpu_count() or 1, maxqueue or 0
        if self._maxthreads < 1 or self._maxqueue < 0:
            raise InvalidTaskError(f"maxthreads={maxthreads!r} and maxqueue={maxqueue!r} must not be negative")
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Any]] = deque()
        self._threads: set[threading.Thread] = set()
        self._results: deque[Any] | None = deque() if results else None
        self._error: BaseException | None = None
        self._is_started = self._is_ended = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> None:
        """Run all calls, those put later too. Raises InvalidTaskError after `destroy`, RuntimeError without threads."""
        with self._changed:
            self._check_open()
            for _ in self._waiting:
                self._add_thread()
            self._is_started = True

    def put(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call; blocks while the queue is full. Raises as `start` does, and adds nothing then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_full() or self._is_ended)
            self._put(functools.partial(callback, *args, **kwargs))

    def put_nowait(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call. Raises queue.Full, and as `start` does."""
        with self._changed:
            if self._is_full():
                raise queue.Full
            self._put(functools.partial(callback, *args, **kwargs))

    def empty(self) -> None:
        """Drop waiting calls; `join` and `destroy` then ignore the running ones, which may never end."""
        with self._changed:
            self._waiting.clear()
            self._threads.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until all calls have run; starts them if needed."""
        with self._changed:
            if self._waiting and not self._is_started:
                self.start()
            self._changed.wait_for(self._is_done)

    def destroy(self) -> None:
        """Wait until all calls have run; nothing can be put afterwards. Harmless twice."""
        self.join()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def sync(self) -> None:
        """Wait until all calls have run, and raise the first exception since the last time."""
        self.join()
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[Any]:
        """Take results as they arrive, until all calls have run."""
        while self._results is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._results or self._is_done() or not self._is_started)
                if not self._results:
                    return
                result = self._results.popleft()
            yield result

    def _put(self, call: Callable[[], Any]) -> None:
        self._check_open()
        if self._is_started:
            self._add_thread()
        self._waiting.append(call)

    def _check_open(self) -> None:
        if self._is_ended:
            raise InvalidTaskError("this ParallelRun was destroyed: make another one")

    def _is_full(self) -> bool:
        return bool(self._maxqueue) and len(self._waiting) >= self._maxqueue

    def _is_done(self) -> bool:
        return not self._waiting and not self._threads

    def _add_thread(self) -> None:
        if len(self._threads) < self._maxthreads:
            # No executor: the program's end would wait for a call that never ends.
            thread = threading.Thread(target=self._run, name=f"fedmon-parallel-{len(self._threads) + 1}", daemon=True)
            thread.start()  # it waits for the lock
            self._threads.add(thread)

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._changed:
                self._changed.notify_all()
                if thread not in self._threads:  # left behind by `empty`
                    return
                if not self._waiting:
                    self._threads.discard(thread)
                    return
                call = self._waiting.popleft()
            try:
                outcome, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - a user's call; `sync` raises it to its caller
                outcome, error = None, raised
            with self._changed:
                is_dropped = thread not in self._threads
                if error is not None and (self._error is not None or is_dropped):
                    logger.error("a call failed: %s: %s", type(error).__name__, error)
                elif error is not None:
                    self._error = error
                elif self._results is not None and not is_dropped:
                    self._results.append(outcome)
            del call, outcome, error  # an idle thread must not keep them
