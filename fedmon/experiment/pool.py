"""Threads for what resources do: none while nothing is to be done, and more only while those there are stand still."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from fedmon.common.clock import Deadline

logger = logging.getLogger(__name__)

MAX_THREADS = 512
"""What waits costs no processor; NEPI's 20 threads made whoever came 21st wait for nothing."""
_STUCK_S = 0.002
_BUSY_STUCK_S = 0.05  # on a machine on which even a look takes its time
_IDLE_S = 1.0

Work = Callable[[], None]


class _Queue:
    """Work in order of arrival, but for what is urgent, which comes first."""

    def __init__(self) -> None:
        self._urgent: deque[Work] = deque()
        self._other: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._other)

    def put(self, work: Work, *, is_urgent: bool) -> None:
        (self._urgent if is_urgent else self._other).append(work)

    def take(self) -> tuple[Work, bool]:
        is_urgent = bool(self._urgent)
        return (self._urgent if is_urgent else self._other).popleft(), is_urgent

    def clear(self) -> int:
        """Drop all; return how much of it was urgent."""
        urgent = len(self._urgent)
        self._urgent.clear()
        self._other.clear()
        return urgent


class Pool:
    """Does what it is given, in order of arrival; safe from any thread.

    One thread does all as long as it moves on; with more, they would fight for what one does faster. When no work was
    taken up for 2 ms, those who are at work count as standing still, and another one moves, the next time two more, and
    so on; half as many as soon as they move on. ``is_held`` tells that all wait for what is over soon. A thread without
    work ends after a second. The threads are daemons: a hook of a resource that blocks for ever must not keep the
    program from ending.

    What is urgent comes first, and has threads beyond the limit: it ends what the others may stand still at.
    """

    def __init__(self, *, max_threads: int = MAX_THREADS, is_held: Callable[[], bool] = lambda: False) -> None:
        self._max_threads, self._is_held = max_threads, is_held
        lock = threading.Lock()
        self._changed, self._needed = threading.Condition(lock), threading.Condition(lock)
        self._waiting = _Queue()
        self._urgent = 0  # what is urgent and not done yet
        self._idle = self._threads = 0
        self._moving, self._pace = 0, 1  # how many do not stand still, and how many may be that
        self._is_moving_on = False  # whether one of them came to its end since the pace was set
        self._standstills = 0
        self._taken_at = 0.0
        self._is_closed = self._is_watched = self._is_watch_asleep = False
        self._numbers = itertools.count(1)
        self._mine = threading.local()

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._threads

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._threads - self._idle

    def is_mine(self) -> bool:
        """Tell whether the calling thread is one of them."""
        return getattr(self._mine, "is_mine", False)

    def put(self, work: Work, *, is_urgent: bool = False) -> None:
        """Have something done; after `close`, or when that dropped it, it is not."""
        with self._changed:
            if self._is_closed:
                return
            self._urgent += is_urgent
            self._waiting.put(work, is_urgent=is_urgent)
            if not self._moving:
                self._move(1)
            elif is_urgent or len(self._waiting) == 1:
                self._have_watched()

    @property
    def _limit(self) -> int:
        return self._max_threads + min(self._urgent, MAX_THREADS)

    def drop(self) -> None:
        """Forget what nobody began to do, and count no more those who are at work: nobody knows whether they end."""
        with self._changed:
            self._urgent -= self._waiting.clear()
            self._max_threads += self.busy

    def close(self, *, timeout_s: float) -> int:
        """Begin nothing more and wait for what runs; return how many threads are still at work then."""
        deadline = Deadline(timeout_s)
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
            self._needed.notify_all()
            own = 1 if self.is_mine() else 0  # a hook that ends its experiment need not wait for itself
            while self.busy > own and not deadline.passed():
                self._changed.wait(deadline.left_s())
            return self.busy - own

    def _move(self, number: int) -> None:
        """Have threads move beside those that stand still: idle ones first, then new ones."""
        if self._moving:
            self._moving = 0
            self._standstills += 1
        self._changed.notify(number)
        for _ in range(min(number - self._idle, self._limit - self._threads)):
            if not self._thread(self._run, f"fedmon-experiment-{next(self._numbers)}"):
                break  # what waits is tried again with whatever comes next
            self._threads += 1

    @staticmethod
    def _thread(run: Work, name: str) -> bool:
        """Start a thread; false where the system gives no more of them."""
        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:
            logger.exception("an experiment gets no more threads")
            return False
        return True

    def _run(self) -> None:
        began, is_urgent, self._mine.is_mine = -1, False, True
        while (taken := self._next(began, is_urgent)) is not None:
            work, is_urgent, began = taken
            try:
                work()
            except BaseException:  # SystemExit and KeyboardInterrupt of a hook must not take the thread with them
                logger.exception("what an experiment had to do failed")

    def _next(self, began: int, was_urgent: bool) -> tuple[Work, bool, int] | None:  # noqa: FBT001 - in this class
        """Return what is to be done next, whether it is urgent, and how often all stood still before.

        Null when this thread is to end. ``began`` is that number of its last work.
        """
        with self._changed:
            self._urgent -= was_urgent
            if began == self._standstills:
                self._moving -= 1
                self._is_moving_on = True
            is_woken = True
            while is_woken and not self._is_closed:
                if self._waiting and self._moving < self._pace:
                    self._moving += 1
                    self._taken_at = time.monotonic()
                    work, is_urgent = self._waiting.take()
                    if self._waiting:
                        self._have_watched()
                    return work, is_urgent, self._standstills
                self._idle += 1
                if self._waiting:  # as soon as the others stand still, this one is needed
                    self._have_watched()
                is_woken = self._changed.wait(_IDLE_S) or bool(self._waiting)
                self._idle -= 1
            self._threads -= 1
            if self._is_closed:
                self._changed.notify_all()
            return None

    def _have_watched(self) -> None:
        if not self._is_watched:
            self._is_watched = self._thread(self._watch, "fedmon-experiment-watch")
        elif self._is_watch_asleep:
            self._needed.notify()

    def _watch(self) -> None:
        """Set the pace while there is work that waits; end with the last thread."""
        with self._changed:
            while self._threads and not self._is_closed:
                is_full = not self._idle and self._threads >= self._limit
                self._is_watch_asleep = is_full or not self._waiting
                slept = time.monotonic()
                self._needed.wait(_IDLE_S if self._is_watch_asleep else _STUCK_S)
                now = time.monotonic()
                # Where this thread had to wait for a processor, the others may have had to as well.
                patience_s = _STUCK_S if now - slept < 2 * _STUCK_S else _BUSY_STUCK_S
                if not self._waiting:
                    continue
                if now - self._taken_at >= patience_s and not self._is_held():
                    self._move(min(len(self._waiting), self._pace))
                    self._pace = min(2 * self._pace, self._limit)
                elif self._is_moving_on:
                    self._pace = max(1, self._pace // 2)
                self._is_moving_on = False
            self._is_watched = False
