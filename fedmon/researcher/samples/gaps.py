"""Accounting for every sample of a stream: received, missing, or given up."""

from __future__ import annotations

import enum


class Arrival(enum.Enum):
    """How a batch relates to earlier ones."""

    NEXT = "next"
    LATE = "late"
    REPEATED = "repeated"


class GapAccount:
    """The samples of one (node, boot, stream), by their numbers; belongs to one thread.

    It begins with ``begin``, or with the first number heard. Every number from there on is received once, pending
    (known to exist, not received yet), or lost because it was given up. ``missing`` are the pending ones, as ranges
    whose end is not included, in order.
    """

    def __init__(self, begin: int | None = None) -> None:
        self._begin = self._next = begin
        self.missing: list[tuple[int, int]] = []
        self.pending = 0

    @property
    def next(self) -> int:
        """The number after the last one known to exist; 0 before the first."""
        return self._next or 0

    @property
    def edge(self) -> int:
        """The first number that was neither received nor given up."""
        return self.missing[0][0] if self.missing else self.next

    def begin_back(self, begin: int) -> None:
        """Let the account begin earlier; the numbers in between are missing."""
        if self._begin is None:
            self._begin = self._next = begin
        elif begin < self._begin:
            self.missing.insert(0, (begin, self._begin))
            self.pending += self._begin - begin
            self._begin = begin

    def exists(self, end: int) -> None:
        """Note that every number below ``end`` exists; those not heard of so far are missing."""
        if self._next is None or end <= self._next:
            return
        begin, self._next = self._next, end
        self.pending += end - begin
        if self.missing and self.missing[-1][1] == begin:
            begin = self.missing.pop()[0]
        self.missing.append((begin, end))

    def arrived(self, first: int, length: int) -> list[tuple[int, int, Arrival]]:
        """Account for samples ``first`` to ``first + length - 1``.

        Returns parts as (offset in the batch, length, how it relates), in order; repeated samples are for nobody.
        """
        if length == 0:
            return []
        end = first + length
        if self._next is None:
            self._begin = self._next = first
        if first >= self._next:
            self.exists(first)
            self._next = end
            return [(0, length, Arrival.NEXT)]
        parts = self._take(first, min(end, self._next))
        if end > self._next:
            parts.append((self._next - first, end - self._next, Arrival.NEXT))
            self._next = end
        return parts

    def refilled(self, first: int, length: int) -> list[tuple[int, int]]:
        """Account for samples that were resent; returns the parts that were missing, as (offset, length)."""
        return self._take_missing(first, first + length)

    def give_up(self, first: int, end: int) -> list[tuple[int, int]]:
        """Declare missing samples from ``first`` up to ``end``, not included, lost; returns those ranges."""
        return [(first + offset, first + offset + count) for offset, count in self._take_missing(first, end)]

    def _take_missing(self, first: int, end: int) -> list[tuple[int, int]]:
        return [(offset, count) for offset, count, arrival in self._take(first, end) if arrival is Arrival.LATE]

    def _take(self, first: int, end: int) -> list[tuple[int, int, Arrival]]:
        """Take the numbers from the missing ranges; those that are not missing are repeated."""
        parts: list[tuple[int, int, Arrival]] = []
        left: list[tuple[int, int]] = []
        at = first
        for low, high in self.missing:
            from_, to = max(low, first), min(high, end)
            if from_ >= to:
                left.append((low, high))
                continue
            if from_ > at:
                parts.append((at - first, from_ - at, Arrival.REPEATED))
            parts.append((from_ - first, to - from_, Arrival.LATE))
            self.pending -= to - from_
            at = to
            left.extend(piece for piece in ((low, from_), (to, high)) if piece[0] < piece[1])
        self.missing = left
        if at < end:
            parts.append((at - first, end - at, Arrival.REPEATED))
        return parts
