"""Samples on their way to the disk, bounded in size."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from fedmon.common.metrics.batch import Batch

HOLD_S = 10.0
FULL_BATCH = 10
_AT_ONCE = 100
_VALUE_BYTES = 32
_COLUMN_BYTES = 120
_BATCH_BYTES = 1_000


class RecordBuffer:
    """What waits, oldest first. Not safe between threads: its owner's lock is around every call.

    Samples wait for 10 in a stream or ``hold_s``, so that those that come one by one make a row together; what was
    gathered for long already does not wait again. ``taken`` puts some in hand; then ``done`` lets it go, or ``failed``
    puts it back. What is in hand waits too, and is dropped last, because it may be stored already. ``dropped`` counts
    the samples that found no room.
    """

    def __init__(self, max_bytes: int, *, hold_s: float = HOLD_S) -> None:
        self._max_bytes, self._hold_s = max_bytes, hold_s
        self._waiting: deque[Batch] = deque()
        self._in_hand: list[Batch] = []
        self._lengths: Counter[tuple[str, int]] = Counter()
        self._hurry = False
        self._begun: float | None = None
        self._size = self._size_in_hand = 0
        self.samples = 0
        self.dropped = 0

    def __iter__(self) -> Iterator[Batch]:
        yield from self._in_hand
        yield from self._waiting

    def due_at(self) -> float | None:
        """Return the monotonic time at which what waits is to be stored; None when nothing does."""
        return None if self._begun is None else self._begun if self._hurry else self._begun + self._hold_s

    def of(self, stream: str, boot: int) -> list[Batch]:
        """Return what waits of one stream, in hand or not, oldest first."""
        return [batch for batch in self if batch.stream == stream and batch.boot == boot]

    def add(self, batch: Batch, *, now: float) -> None:
        """Take a batch in; what is oldest makes room for it."""
        if not batch.t:
            return
        self._waiting.append(batch)
        self._size += size_bytes(batch)
        self.samples += len(batch.t)
        self._begun = now if self._begun is None else self._begun
        waiting = self._lengths[batch.stream, batch.boot] = self._lengths[batch.stream, batch.boot] + len(batch.t)
        self._hurry = self._hurry or waiting >= FULL_BATCH or batch.mono[-1] - batch.mono[0] >= self._hold_s / 2
        self._make_room()

    def taken(self) -> list[Batch]:
        """Put what waits in hand, as much as is stored at once, and return what is in hand."""
        # The rest of the room stays for what comes meanwhile: the newest samples are worth the most.
        most_bytes = self._max_bytes // 4
        while self._waiting and len(self._in_hand) < _AT_ONCE and self._size_in_hand <= most_bytes:
            batch = self._waiting.popleft()
            size = size_bytes(batch)
            self._in_hand.append(batch)
            self._size -= size
            self._size_in_hand += size
        if not self._waiting:
            self._lengths.clear()
            self._begun, self._hurry = None, False
        return list(self._in_hand)

    def done(self, stored: int) -> None:
        """Let go what is in hand; samples of it that were not stored, because they were there, count as dropped."""
        samples = sum(len(batch.t) for batch in self._in_hand)
        self.samples -= samples
        self.dropped += samples - stored
        self._in_hand, self._size_in_hand = [], 0

    def failed(self) -> None:
        """Put back what is in hand."""
        self._waiting.extendleft(reversed(self._in_hand))
        self._size += self._size_in_hand
        self._begun, self._hurry = (0.0, True) if self._waiting else (None, False)
        self._in_hand, self._size_in_hand = [], 0
        self._make_room()

    def _make_room(self) -> None:
        while self._waiting and self._size + self._size_in_hand > self._max_bytes:
            batch = self._waiting.popleft()
            self._size -= size_bytes(batch)
            self.samples -= len(batch.t)
            self.dropped += len(batch.t)


def size_bytes(batch: Batch) -> int:
    """Estimate what a batch takes in memory, from above."""
    columns = len(batch.columns) + 2
    return _BATCH_BYTES + columns * (_COLUMN_BYTES + _VALUE_BYTES * len(batch.t))
