"""Ranges of sample numbers: present and missing ones."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator


class SeqRanges:
    """A set of whole numbers, kept as ranges that neither overlap nor touch; both ends of a range belong to it."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    @property
    def first(self) -> int:
        """The lowest number; there must be one."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The highest number; there must be one."""
        return self._lasts[-1]

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add the numbers from ``first`` to ``last``; an empty range adds nothing."""
        if last < first:
            return
        if self._lasts and first == self._lasts[-1] + 1:
            self._lasts[-1] = last  # by far the commonest case: the next batch
            return
        low = bisect.bisect_left(self._lasts, first - 1)
        high = bisect.bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> None:
        """Remove the numbers from ``first`` to ``last`` that are present."""
        if last < first:
            return
        low = bisect.bisect_left(self._lasts, first)
        high = bisect.bisect_right(self._firsts, last)
        if low >= high:
            return
        ends = [(self._firsts[low], first - 1), (last + 1, self._lasts[high - 1])]
        rest = [(a, b) for a, b in ends if a <= b]
        self._firsts[low:high] = [a for a, _ in rest]
        self._lasts[low:high] = [b for _, b in rest]

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the present ranges between ``first`` and ``last``."""
        low = bisect.bisect_left(self._lasts, first)
        high = bisect.bisect_right(self._firsts, last)
        return [(max(first, self._firsts[at]), min(last, self._lasts[at])) for at in range(low, high)]

    def absent(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the missing ranges between ``first`` and ``last``."""
        gaps: list[tuple[int, int]] = []
        for a, b in self.within(first, last):
            if first < a:
                gaps.append((first, a - 1))
            first = b + 1
        if first <= last:
            gaps.append((first, last))
        return gaps
