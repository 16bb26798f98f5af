"""`ParallelRun`: calls handed over to a number of threads, with NEPI's methods."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from fedmon.experiment.errors import InvalidTaskError

logger = logging.getLogger(__name__)

_Call = Callable[[], Any]


class ParallelRun:
    """Runs what is put into it in up to ``maxthreads`` threads, once it was started; safe from any thread.

    ``maxqueue`` bounds what waits to be run. With ``results`` each result is kept until it is taken by iterating. Of
    the exceptions, only the first one is kept, for `sync`.
    """

    def __init__(self, maxthreads: int | None = None, maxqueue: int | None = None, results: bool = True) -> None:  # noqa: FBT001, FBT002 - NEPI's
        for name, given in (("maxthreads", maxthreads), ("maxqueue", maxqueue)):
            if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
                raise InvalidTaskError(f"{name}={given!r:.80} is no whole number")
        self._maxthreads = maxthreads or os.cpu_count() or 1
        self._maxqueue = maxqueue or 0
        if self._maxthreads < 1 or self._maxqueue < 0:
            raise InvalidTaskError(f"maxthreads={maxthreads!r} and maxqueue={maxqueue!r} must not be negative")
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._results: deque[Any] | None = deque() if results else None
        self._error: BaseException | None = None
        self._running: set[int] = set()
        self._left_behind: set[int] = set()
        self._threads = self._idle = 0
        self._is_started = self._is_ended = False
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> None:
        """Begin to run what was put, and what will be."""
        with self._changed:
            self._check_open()
            self._is_started = True
            self._begin_threads()

    def put(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Have something called, and wait for room where there is none. Raises InvalidTaskError."""
        self._put(callback, args, kwargs, is_patient=True)

    def put_nowait(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Have something called. Raises queue.Full where there is no room, and InvalidTaskError."""
        self._put(callback, args, kwargs, is_patient=False)

    def empty(self) -> None:
        """Drop what nobody began to run; `join` and `destroy` do not wait for what runs now, which may not end."""
        with self._changed:
            self._queue.clear()
            self._left_behind |= self._running
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until everything was run; begin to where that was not started."""
        with self._changed:
            if self._queue and not self._is_started and not self._is_ended:
                self._is_started = True
                self._begin_threads()
            self._changed.wait_for(self._is_done)

    def destroy(self) -> None:
        """Wait until everything was run, and end the threads; nothing can be put afterwards. Harmless twice."""
        self.join()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def sync(self) -> None:
        """Wait until everything was run, and raise the first exception there was since the last time."""
        self.join()
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[Any]:
        """Take the results, in the order in which they come, until everything was run."""
        while self._results is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._results or self._is_done() or not self._is_started)
                if not self._results:
                    return
                result = self._results.popleft()
            yield result

    def _put(self, callback: Callable[..., Any], args: Any, kwargs: Any, *, is_patient: bool) -> None:
        if not callable(callback):
            raise InvalidTaskError(f"{callback!r} cannot be called")
        with self._changed:
            self._check_open()
            if self._is_full():
                if not is_patient:
                    raise queue.Full
                self._changed.wait_for(lambda: not self._is_full() or self._is_ended)
                self._check_open()
            self._queue.append(functools.partial(callback, *args, **kwargs))
            if self._is_started:
                self._begin_threads()
                self._changed.notify_all()

    def _is_full(self) -> bool:
        return bool(self._maxqueue) and len(self._queue) >= self._maxqueue

    def _is_done(self) -> bool:
        return not self._queue and self._running <= self._left_behind

    def _check_open(self) -> None:
        if self._is_ended:
            raise InvalidTaskError("this ParallelRun was destroyed: make another one")

    def _begin_threads(self) -> None:
        for _ in range(min(self._maxthreads - self._threads, len(self._queue) - self._idle)):
            self._threads += 1
            # A call that never ends cannot be ended from outside, and must not keep the program from ending.
            threading.Thread(target=self._run, name=f"fedmon-parallel-{self._threads}", daemon=True).start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            number, call = work
            try:
                outcome, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - somebody else's call; `sync` raises it to who asks
                outcome, error = None, raised
            self._note(number, outcome, error)
            del work, call, outcome, error

    def _next(self) -> tuple[int, _Call] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._is_ended)
            self._idle -= 1
            if not self._queue:
                self._threads -= 1
                return None
            number, call = next(self._numbers), self._queue.popleft()
            self._running.add(number)
            self._changed.notify_all()
            return number, call

    def _note(self, number: int, outcome: Any, error: BaseException | None) -> None:
        with self._changed:
            is_wanted = number not in self._left_behind
            self._running.discard(number)
            self._left_behind.discard(number)
            if error is not None:
                if self._error is None and is_wanted:
                    self._error = error
                else:
                    logger.error("a call failed: %s: %s", type(error).__name__, error)
            elif self._results is not None and is_wanted:
                self._results.append(outcome)
            self._changed.notify_all()
