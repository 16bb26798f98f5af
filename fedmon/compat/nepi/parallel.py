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

logger = logging.getLogger("fedmon.experiment.parallel")  # NEPI_LOGLEVEL sets what is below fedmon.experiment


class ParallelRun:
    """Runs calls in up to ``maxthreads`` daemon threads, once it was started; safe from any thread.

    ``maxqueue`` bounds the calls that wait for a thread. With ``results``, each result is kept until it is taken by
    iterating. `sync` raises the first exception; the others are logged.
    """

    def __init__(self, maxthreads: int | None = None, maxqueue: int | None = None, results: bool = True) -> None:  # noqa: FBT001, FBT002 - NEPI's
        self._maxthreads, self._maxqueue = maxthreads or os.cpu_count() or 1, maxqueue or 0
        if self._maxthreads < 1 or self._maxqueue < 0:
            raise InvalidTaskError(f"maxthreads={maxthreads!r} and maxqueue={maxqueue!r} must not be negative")
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Any]] = deque()
        self._results: deque[Any] | None = deque() if results else None
        self._error: BaseException | None = None
        self._threads = self._batch = 0
        self._is_started = self._is_ended = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> None:
        """Run the calls that were put, and those that will be. Raises InvalidTaskError after `destroy`."""
        with self._changed:
            self._check_open()
            self._is_started = True
            for _ in self._waiting:
                self._add_thread()

    def put(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call; blocks while the queue is full. Raises InvalidTaskError."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_full() or self._is_ended)
            self._put(callback, args, kwargs)

    def put_nowait(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call. Raises queue.Full and InvalidTaskError."""
        with self._changed:
            if self._is_full():
                raise queue.Full
            self._put(callback, args, kwargs)

    def empty(self) -> None:
        """Drop the calls that wait; `join` and `destroy` do not wait for those that run now, which may never end."""
        with self._changed:
            self._waiting.clear()
            self._batch, self._threads = self._batch + 1, 0
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
        """Take the results, in the order in which they come, until all calls have run."""
        while self._results is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._results or self._is_done() or not self._is_started)
                if not self._results:
                    return
                result = self._results.popleft()
            yield result

    def _put(self, callback: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._check_open()
        if not callable(callback):
            raise InvalidTaskError(f"{callback!r:.80} cannot be called")
        self._waiting.append(functools.partial(callback, *args, **kwargs))
        if self._is_started:
            self._add_thread()

    def _check_open(self) -> None:
        if self._is_ended:
            raise InvalidTaskError("this ParallelRun was destroyed: make another one")

    def _is_full(self) -> bool:
        return bool(self._maxqueue) and len(self._waiting) >= self._maxqueue

    def _is_done(self) -> bool:
        return not self._waiting and not self._threads

    def _add_thread(self) -> None:
        if self._threads < self._maxthreads:
            self._threads += 1
            # No executor: the end of the program would wait for a call that never ends.
            name = f"fedmon-parallel-{self._threads}"
            threading.Thread(target=self._run, args=(self._batch,), name=name, daemon=True).start()

    def _run(self, batch: int) -> None:
        while (call := self._next(batch)) is not None:
            try:
                outcome, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - a user's call; `sync` raises it to its caller
                outcome, error = None, raised
            with self._changed:
                if error is not None and (self._error is not None or batch != self._batch):
                    logger.error("a call failed: %s: %s", type(error).__name__, error)
                elif error is not None:
                    self._error = error
                elif self._results is not None and batch == self._batch:
                    self._results.append(outcome)
                self._changed.notify_all()
            del call, outcome, error  # not kept while this thread waits for the lock

    def _next(self, batch: int) -> Callable[[], Any] | None:
        with self._changed:
            if batch != self._batch:  # `empty` left this thread behind
                return None
            self._changed.notify_all()
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
