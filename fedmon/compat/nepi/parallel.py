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
    """``maxthreads`` daemon threads that run calls from `start` to `destroy`; safe from any thread.

    At most ``maxqueue`` calls wait for a thread (None: any number). With ``results``, each result is kept until it is
    taken by iterating. `sync` raises the first exception; later ones are logged.
    """

    def __init__(self, maxthreads: int | None = None, maxqueue: int | None = None, results: bool = True) -> None:  # noqa: FBT001, FBT002 - NEPI's
        self._maxthreads, self._maxqueue = maxthreads or os.cpu_count() or 1, maxqueue or 0
        if self._maxthreads < 1 or self._maxqueue < 0:
            raise InvalidTaskError(f"maxthreads={maxthreads!r} and maxqueue={maxqueue!r} must not be negative")
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Any]] = deque()
        self._results: deque[Any] | None = deque() if results else None
        self._running = 0
        self._error: BaseException | None = None
        self._is_started = self._is_ended = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> None:
        """Run all calls, those put later too. Raises InvalidTaskError after `destroy`."""
        with self._changed:
            self._check_open()
            # No executor: the program's end would wait for a call that never ends.
            for number in range(0 if self._is_started else self._maxthreads):
                threading.Thread(target=self._run, name=f"fedmon-parallel-{number + 1}", daemon=True).start()
            self._is_started = True

    def put(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call; blocks while the queue is full. Raises InvalidTaskError after `destroy`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_full() or self._is_ended)
            self.put_nowait(callback, *args, **kwargs)

    def put_nowait(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a call. Raises queue.Full, and InvalidTaskError after `destroy`."""
        with self._changed:
            self._check_open()
            if self._is_full():
                raise queue.Full
            self._waiting.append(functools.partial(callback, *args, **kwargs))
            self._changed.notify_all()

    def empty(self) -> None:
        """Drop waiting calls; `join` and `destroy` still wait for running ones, also for one that never ends."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until all calls have run; starts them if needed."""
        with self._changed:
            if self._waiting:
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

    def _check_open(self) -> None:
        if self._is_ended:
            raise InvalidTaskError("this ParallelRun was destroyed: make another one")

    def _is_full(self) -> bool:
        return bool(self._maxqueue) and len(self._waiting) >= self._maxqueue

    def _is_done(self) -> bool:
        return not self._waiting and not self._running

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_ended)
                if not self._waiting:
                    return
                call, self._running = self._waiting.popleft(), self._running + 1
                self._changed.notify_all()
            try:
                outcome, error = call(), None
            except BaseException as raised:  # noqa: BLE001 - a user's call; `sync` raises it to its caller
                outcome, error = None, raised
            with self._changed:
                self._running -= 1
                if error is None and self._results is not None:
                    self._results.append(outcome)
                elif error is not None and self._error is None:
                    self._error = error
                elif error is not None:
                    logger.error("a call failed: %s: %s", type(error).__name__, error)
                self._changed.notify_all()
            del call, outcome, error  # an idle thread must not keep them
