"""What processes used that are gone: kept, unless a parent that waited for them has it in its own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedmon.node.collectors.job.process import MINOR, NO_COUNTS, REAPED, Process


class _Owed(NamedTuple):
    """What a gone process had used and no parent shows yet; ``was_reaped``: some parent shows that it waited."""

    ancestor: int
    counts: list[int]
    was_reaped: bool


class Ledger:
    """Keeps the sum over all processes of a job exact and growing while its processes end.

    When a process ends, what it used is added to its parent's numbers for waited children, if the parent waits for
    it, and to nobody's, if its parent is not of the job or ignores SIGCHLD. So what a gone process had used at its
    last reading is set against what its ancestors' numbers for children gained since; what is left belongs to
    nobody and is kept here. It is kept provisionally first: a parent that was read just before it waited shows its
    gain at the next tick. Parents are read before children, so that a child and its parent's gain are never both
    counted. Source: Linux kernel/exit.c, wait_task_zombie (cutime, cmin_flt, ioac).
    """

    def __init__(self) -> None:
        self._kept = list(NO_COUNTS)
        self._owed: list[_Owed] = []

    def settle(self, gone: Mapping[int, Process], members: Mapping[int, Process], tick: int) -> None:
        """Take over what processes had used that ended since the last tick; call it at every tick."""
        if not gone and not self._owed:
            return
        owed, self._owed = self._owed, []
        gains: dict[int, list[int]] = {}
        for one in owed:
            _, left, _ = _claim(one.ancestor, one.counts, gone, members, gains, tick, was_reaped=one.was_reaped)
            self._keep(left)
        for process in gone.values():
            ancestor, left, was_reaped = _claim(process.parent, list(process.counts), gone, members, gains, tick)
            if ancestor == 0:
                self._keep(left)
            elif any(left):
                self._owed.append(_Owed(ancestor, left, was_reaped))

    def total(self) -> list[int]:
        """Return what is kept, provisionally or for good."""
        return [sum(column) for column in zip(self._kept, *(one.counts for one in self._owed), strict=True)]

    def _keep(self, counts: list[int]) -> None:
        self._kept = [kept + more for kept, more in zip(self._kept, counts, strict=True)]


def _claim(
    parent: int,
    counts: list[int],
    gone: Mapping[int, Process],
    members: Mapping[int, Process],
    gains: dict[int, list[int]],
    tick: int,
    *,
    was_reaped: bool = False,
) -> tuple[int, list[int], bool]:
    """Set counts against what living ancestors gained; return the nearest of them (0: none), and what is left.

    Ancestors further up come second: one of them may have adopted the process (PR_SET_CHILD_SUBREAPER). The numbers
    of ``io`` do not tell own from children's, so they count as gained only where page faults say that a child was
    waited for.
    """
    nearest, seen = 0, set()
    while parent not in seen and any(counts):
        seen.add(parent)
        member = members.get(parent)
        if member is None:
            if parent not in gone:
                break
            parent = gone[parent].parent
            continue
        nearest = nearest or parent
        if parent not in gains:
            gains[parent] = [*member.credit(tick), 0]
            gains[parent][-1] = gains[parent][MINOR]
        gain = gains[parent]
        was_reaped = was_reaped or gain[-1] > 0
        for index in range(len(counts) if was_reaped else REAPED):
            taken = min(counts[index], gain[index])
            counts[index] -= taken
            gain[index] -= taken
        parent = member.parent
    return nearest, counts, was_reaped
