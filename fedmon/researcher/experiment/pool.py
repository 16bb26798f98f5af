"""Threads for what resources do: none while nothing is to be done, and more only while those there are stand still."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable

from fedmon.common.clock import Deadline

logger = logging.getLogger(__name__)

MAX_THREADS = 512
"""What waits costs no processor; NEPI's 20 threads made whoever came 21st wait for nothing."""
_STUCK_S = 0.002
_IDLE_S = 1.0

Work = Callable[[], None]


class Pool:
    """Does what it is given, in order of arrival; safe from any thread.

    One thread does all as long as it moves on. When no work was taken up for 2 ms, there are twice as many. A thread
    without work ends after a second. The threads are daemons: a hook of a resource that blocks for ever must not keep
    the program from ending.
    """

    def __init__(self, *, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        lock = threading.Lock()
        self._changed, self._needed = threading.Condition(lock), threading.Condition(lock)
        self._waiting: deque[Work] = deque()
        self._taken = self._idle = self._threads = 0
        self._is_closed = self._is_watched = False
        self._numbers = itertools.count(1)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._threads - self._idle

    def put(self, work: Work) -> None:
        """Have something done; after `close`, or when that dropped it, it is not."""
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(work)
            if self._idle:
                self._changed.notify()
            elif not self._threads:
                self._begin(1)
            elif len(self._waiting) == 1:
                self._have_watched()

    def drop(self) -> None:
        """Forget what nobody began to do."""
        with self._changed:
            self._waiting.clear()

    def close(self, *, timeout_s: float) -> int:
        """Begin nothing more and wait for what runs; return how many threads are still at work then."""
        deadline = Deadline(timeout_s)
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
            while self.busy and not deadline.passed():
                self._changed.wait(deadline.left_s())
            return self.busy

    def _begin(self, number: int) -> None:
        for _ in range(number):
            self._threads += 1
            self._thread(self._run, f"fedmon-experiment-{next(self._numbers)}")

    @staticmethod
    def _thread(run: Work, name: str) -> None:
        threading.Thread(target=run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                logger.exception("what an experiment had to do failed")

    def _next(self) -> Work | None:
        """Return what is to be done next; null when this thread is to end."""
        with self._changed:
            is_woken = True
            while is_woken and not self._is_closed:
                if self._waiting:
                    self._taken += 1
                    work = self._waiting.popleft()
                    if self._waiting and not self._idle:
                        self._have_watched()
                    return work
                self._idle += 1
                is_woken = self._changed.wait(_IDLE_S) or bool(self._waiting)
                self._idle -= 1
            self._threads -= 1
            if self._is_closed:
                self._changed.notify_all()
            return None

    def _have_watched(self) -> None:
        if self._is_watched:
            self._needed.notify()
        else:
            self._is_watched = True
            self._thread(self._watch, "fedmon-experiment-watch")

    def _watch(self) -> None:
        """Have more threads whenever there is work that nobody takes up; end with the last of them."""
        with self._changed:
            while self._threads and not self._is_closed:
                if not self._waiting or self._threads >= self._max_threads:
                    self._needed.wait(_IDLE_S)
                    continue
                before = self._taken
                if not self._needed.wait(_STUCK_S) and self._taken == before:
                    more = min(len(self._waiting), self._threads, self._max_threads - self._threads)
                    self._begin(more)
            self._is_watched = False
