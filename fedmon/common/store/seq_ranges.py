"""Ranges of sample numbers: present and missing ones."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
_FIRST, _LAST = operator.itemgetter(0), operator.itemgetter(1)


class SeqRanges:
    """A set of whole numbers, kept as ``ranges`` that neither overlap nor touch; both ends of a range belong to it.

    While one thread changes it, others may read it.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges: list[Range] = []
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def first(self) -> int:
        """The lowest number; there must be one."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The highest number; there must be one."""
        return self.ranges[-1][1]

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return sum(last - first + 1 for first, last in self.ranges)

    def add(self, first: int, last: int) -> None:
        """Add the numbers from ``first`` to ``last``; an empty range adds nothing."""
        if last < first:
            return
        where = self._place(first - 1, last + 1)
        if touched := self.ranges[where]:
            first, last = min(first, touched[0][0]), max(last, touched[-1][1])
        self.ranges[where] = [(first, last)]

    def remove(self, first: int, last: int) -> list[Range]:
        """Remove the numbers from ``first`` to ``last``; return the ranges of those that were present."""
        if last < first:
            return []
        where = self._place(first, last)
        if touched := self.ranges[where]:
            ends = ((touched[0][0], first - 1), (last + 1, touched[-1][1]))
            self.ranges[where] = [(a, b) for a, b in ends if a <= b]
        return [(max(first, a), min(last, b)) for a, b in touched]

    def within(self, first: int, last: int) -> list[Range]:
        """Return the present ranges between ``first`` and ``last``."""
        return [(max(first, a), min(last, b)) for a, b in self.ranges[self._place(first, last)]]

    def absent(self, first: int, last: int) -> list[Range]:
        """Return the missing ranges between ``first`` and ``last``."""
        gaps: list[Range] = []
        for a, b in self.within(first, last):
            if first < a:
                gaps.append((first, a - 1))
            first = b + 1
        if first <= last:
            gaps.append((first, last))
        return gaps

    def _place(self, first: int, last: int) -> slice:
        """Return where the ranges are that have a number from ``first`` to ``last``."""
        low = bisect.bisect_left(self.ranges, first, key=_LAST)
        return slice(low, bisect.bisect_right(self.ranges, last, low, key=_FIRST))
