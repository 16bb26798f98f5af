"""Accounting for every sample of a stream: delivered, or counted as lost."""

from __future__ import annotations

import enum

MAX_MISSING_RANGES = 1_000


class Arrival(enum.Enum):
    """How a batch relates to what came before it."""

    NEXT = "next"
    LATE = "late"
    REPEATED = "repeated"


class GapAccount:
    """The samples of one (node, boot, stream), by their numbers; belongs to one thread.

    The first number heard is where the account begins. A number that is skipped counts as lost until it arrives.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        self._missing: list[tuple[int, int]] = []
        self.received = 0
        self.lost = 0
        self.repeated = 0

    def arrived(self, first: int, length: int) -> list[tuple[int, int, Arrival]]:
        """Account for samples ``first`` to ``first + length - 1``.

        Returns parts as (offset in the batch, length, how it relates), in order; repeated samples are for nobody.
        """
        if length == 0:
            return []
        end = first + length
        if self._next is None:
            self._next = first
        parts: list[tuple[int, int, Arrival]] = []
        if first < self._next:
            parts = self._late(first, min(end, self._next))
            if end > self._next:
                parts.append((self._next - first, end - self._next, Arrival.NEXT))
        else:
            if first > self._next:
                self.lost += first - self._next
                self._missing.append((self._next, first))
                del self._missing[:-MAX_MISSING_RANGES]
            parts = [(0, length, Arrival.NEXT)]
        self._next = max(self._next, end)
        for _offset, count, arrival in parts:
            if arrival is Arrival.REPEATED:
                self.repeated += count
            else:
                self.received += count
                self.lost -= count if arrival is Arrival.LATE else 0
        return parts

    def _late(self, first: int, end: int) -> list[tuple[int, int, Arrival]]:
        """Take the numbers from the missing ranges; what is not missing was there before."""
        parts: list[tuple[int, int, Arrival]] = []
        left: list[tuple[int, int]] = []
        at = first
        for low, high in self._missing:
            from_, to = max(low, first), min(high, end)
            if from_ >= to:
                left.append((low, high))
                continue
            if from_ > at:
                parts.append((at - first, from_ - at, Arrival.REPEATED))
            parts.append((from_ - first, to - from_, Arrival.LATE))
            at = to
            left.extend(piece for piece in ((low, from_), (to, high)) if piece[0] < piece[1])
        self._missing = left
        if at < end:
            parts.append((at - first, end - at, Arrival.REPEATED))
        return parts
