"""Moments that are waited for: one thread sleeps until the next one, and there is none while nothing is waited for."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)

_IDLE_S = 1.0


class Timers:
    """Calls ``fire`` with the keys whose moments have come, in their order; safe from any thread.

    Moments are Unix times by ``now``, which must not jump. ``fire`` runs in the thread of the timers and must not
    block.
    """

    def __init__(self, now: Callable[[], float], fire: Callable[[Hashable], None]) -> None:
        self._now, self._fire = now, fire
        self._changed = threading.Condition()
        self._moments: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def set(self, key: Hashable, at: float | None) -> None:
        """Have ``key`` fire at a moment instead of any it had before; null: never."""
        with self._changed:
            if len(self._heap) > 2 * len(self._moments) + 64:  # those taken back must not stay until their moments
                self._heap = [each for each in self._heap if self._moments.get(each[2]) == each[:2]]
                heapq.heapify(self._heap)
            if at is None or self._is_closed:
                self._moments.pop(key, None)
                return
            entry = (at, next(self._numbers))
            self._moments[key] = entry
            heapq.heappush(self._heap, (*entry, key))
            if self._thread is None:
                self._begin()
            elif self._heap[0][:2] == entry:
                self._changed.notify()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fedmon-experiment-timers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            logger.exception("an experiment gets no thread for its timers; the next one that is set tries again")
            self._thread = None

    def clear(self) -> None:
        """Forget every moment."""
        with self._changed:
            self._moments.clear()
            self._heap.clear()

    def close(self) -> None:
        """Fire nothing more."""
        with self._changed:
            self._is_closed = True
            self._moments.clear()
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                self._fire(key[0])
            except Exception:  # all others still wait for their moments
                logger.exception("what was to be done at a moment failed")

    def _next(self) -> tuple[Hashable] | None:
        """Wait for the next moment and return its key; null when the thread is to end."""
        with self._changed:
            while not self._is_closed:
                while self._heap and self._moments.get(self._heap[0][2]) != self._heap[0][:2]:
                    heapq.heappop(self._heap)
                if not self._heap:
                    if not self._changed.wait(_IDLE_S) and not self._heap:
                        break
                    continue
                left_s = self._heap[0][0] - self._now()
                if left_s <= 0:
                    key = heapq.heappop(self._heap)[2]
                    del self._moments[key]
                    return (key,)
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self._thread = None
            return None


class SteadyClock:
    """Unix time in seconds that never jumps: the wall clock's when it was made, and the monotonic clock's since.

    It begins no earlier than ``after``: what was written down before must not lie ahead.
    """

    def __init__(self, *, after: float = 0.0) -> None:
        self._start = max(time.time(), after) - time.monotonic()

    def __call__(self) -> float:
        """Return the present moment."""
        return self._start + time.monotonic()
