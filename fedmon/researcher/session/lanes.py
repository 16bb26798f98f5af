"""A bounded hand-over between threads in which what is urgent is never displaced by what is plenty."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

URGENT_LIMIT = 20_000
BULK_LIMIT = 10_000
LANE_BYTES = 64 * 1024 * 1024
BULK_AT_ONCE = 16
ROOM_AGAIN = 0.5
"""A bulk lane that was full has room again below this part of its bounds, so that news of it come now and then."""


class Lanes(Generic[T]):
    """Two bounded queues read by one thread: urgent (replies, presence) and bulk (samples, logs).

    `put` is safe from any thread, never waits, and counts what found its lane full. `take` belongs to the reader.
    ``on_room`` is called on the reader's thread when the bulk lane has room again after `has_room` said no.
    """

    def __init__(
        self,
        *,
        urgent_limit: int = URGENT_LIMIT,
        bulk_limit: int = BULK_LIMIT,
        lane_bytes: int = LANE_BYTES,
        bulk_at_once: int = BULK_AT_ONCE,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self._bulk_at_once, self._on_room = bulk_at_once, on_room
        self._urgent_limit, self._bulk_limit, self._lane_bytes = urgent_limit, bulk_limit, lane_bytes
        self._urgent: deque[tuple[T, int]] = deque()
        self._bulk: deque[tuple[T, int]] = deque()
        self._urgent_bytes = self._bulk_bytes = 0
        self._filled = threading.Condition()
        self._waiting = self._closed = self._was_full = self._woken = False
        self.dropped_urgent = self.dropped_bulk = 0

    def put(self, entry: T, *, urgent: bool, size_bytes: int = 0) -> bool:
        """Hand an entry over; return False, and count it, when its lane is full or closed."""
        with self._filled:
            if urgent:
                if self._closed or len(self._urgent) >= self._urgent_limit or self._urgent_bytes > self._lane_bytes:
                    self.dropped_urgent += 1
                    return False
                self._urgent.append((entry, size_bytes))
                self._urgent_bytes += size_bytes
            else:
                if self._closed or len(self._bulk) >= self._bulk_limit or self._bulk_bytes > self._lane_bytes:
                    self.dropped_bulk += 1
                    return False
                self._bulk.append((entry, size_bytes))
                self._bulk_bytes += size_bytes
            if self._waiting:
                self._waiting = False
                self._filled.notify()
            return True

    def has_room(self) -> bool:
        """Tell whether the bulk lane takes an entry; once it did not, not before half of it is empty."""
        with self._filled:
            share = ROOM_AGAIN if self._was_full else 1.0
            self._was_full = not self._is_below(share)
            return not self._was_full

    def take(self, *, timeout_s: float | None) -> tuple[list[T], list[T]]:
        """Return every urgent entry and a few bulk ones, in order; waits for the first up to ``timeout_s``.

        Both lists are empty when the time is over or the lanes are closed.
        """
        with self._filled:
            if not (self._urgent or self._bulk or self._closed or self._woken):
                self._waiting = True
                self._filled.wait(timeout_s)
                self._waiting = False
            self._woken = False
            urgent = [entry for entry, _ in self._urgent]
            self._urgent.clear()
            self._urgent_bytes = 0
            bulk: list[T] = []
            while self._bulk and len(bulk) < self._bulk_at_once:
                entry, size_bytes = self._bulk.popleft()
                self._bulk_bytes -= size_bytes
                bulk.append(entry)
            room_again = self._was_full and self._is_below(ROOM_AGAIN)
            self._was_full = self._was_full and not room_again
        if room_again and self._on_room is not None:
            self._on_room()
        return urgent, bulk

    def wake(self) -> None:
        """Let the reader return now, with nothing if there is nothing; one that does not wait yet, when it would."""
        with self._filled:
            self._waiting, self._woken = False, True
            self._filled.notify()

    def close(self) -> None:
        """Refuse further entries; the reader still gets what is there."""
        with self._filled:
            self._closed = True
            self._waiting = False
            self._filled.notify()

    @property
    def closed(self) -> bool:
        """Tell whether the lanes were closed."""
        return self._closed

    def _is_below(self, share: float) -> bool:
        return len(self._bulk) < share * self._bulk_limit and self._bulk_bytes <= share * self._lane_bytes

    def __len__(self) -> int:
        return len(self._urgent) + len(self._bulk)
