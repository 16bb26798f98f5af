"""The processes of one job, together."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmon.node.collectors.files import PAGE_BYTES
from fedmon.node.collectors.job.members import Members, parents_first
from fedmon.node.collectors.job.process import MINOR, NO_COUNTS, REAPED, Process, ProcessGoneError


class _Owed(NamedTuple):
    """Counts of a gone process that no parent shows yet; ``was_reaped``: a parent shows that it waited."""

    ancestor: int
    counts: list[int]
    was_reaped: bool


class Ledger:
    """Keeps the sum over all processes of a job exact and growing while its processes end.

    When a process ends, the kernel adds its counts to its parent's numbers for waited children; they are lost if the
    parent is not of the job or ignores SIGCHLD. So the last counts of a gone process are set against the gain of its
    ancestors' numbers for children, and the rest is kept here. It is kept provisionally for one tick: a parent that was
    read just before it waited shows its gain at the next one. Parents are read before children, so that a child and its
    parent's gain are never both counted. Source: Linux kernel/exit.c, wait_task_zombie (cutime, cmin_flt, ioac).
    """

    def __init__(self) -> None:
        self._kept = list(NO_COUNTS)
        self._owed: list[_Owed] = []

    def settle(self, gone: Mapping[int, Process], members: Mapping[int, Process], tick: int) -> None:
        """Take over the counts of processes that ended since the last tick; call it at every tick."""
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
        """Return the kept counts, provisional ones included."""
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
    """Set counts against the gain of living ancestors; return the nearest of them (0: none), and the rest.

    Ancestors further up come second: one of them may have adopted the process (PR_SET_CHILD_SUBREAPER). ``io`` mixes
    own numbers and children's, so its gain counts only if page faults show that a child was waited for.
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


THOROUGH_EVERY_S = 10.0
"""An idle process is read so often: the kernel may have swapped its memory out."""


class ProcessTree:
    """Reads every process of a job once a tick.

    ``counts`` are those of all processes ever found, in the order of process.py; they never go down. The other
    attributes are of the last reading: ``living`` and ``zombies``, and the sums ``threads``, ``virtual_bytes`` and
    ``resident_bytes``. The counts of a process between its last reading and its end are lost unless its parent is of
    the job and waits for it. ``refresh`` is safe from any thread.
    """

    def __init__(self, members: Members, *, proc: Path, descriptors: threading.Semaphore) -> None:
        self._members, self._proc, self._descriptors = members, os.fsencode(proc), descriptors
        self._lock = threading.Lock()
        self._processes: dict[int, Process] = {}
        self._ledger = Ledger()
        self._tick = 0
        self._thorough_at = float("-inf")
        self.counts: Sequence[int] = NO_COUNTS
        self.living: tuple[Process, ...] = ()
        self.pids: tuple[int, ...] = ()
        self.zombies = self.threads = self.virtual_bytes = self.resident_bytes = self.peak_resident_bytes = 0
        self.has_ended = False

    def refresh(self, mono: float) -> None:
        """Find new processes, and read all; ``mono`` is the monotonic time of now.

        Raises CollectorUnavailableError if the processes of the machine cannot be listed.
        """
        with self._lock:
            self._tick += 1
            tick = self._tick
            gone: dict[int, Process] = {}
            is_changed = self._adopt(mono, gone)
            is_changed |= self._read_all(mono, gone)
            for pid, process in gone.items():
                process.close()
                if self._processes.get(pid) is process:
                    del self._processes[pid]
            if gone:
                for process in self._processes.values():
                    if process.parent in gone:
                        process.follow_parent()
            self._ledger.settle(gone, self._processes, tick)
            if is_changed or gone or tick == 1:
                self._add_up()
                self._members.settled(self._processes)

    def note_peak(self, size_bytes: int) -> None:
        """Note that one process had so much resident memory at some time."""
        self.peak_resident_bytes = max(self.peak_resident_bytes, size_bytes)

    def close(self) -> None:
        """Close every file; the next reading opens them again, or reads by path."""
        with self._lock:
            for process in self._processes.values():
                process.close()

    def _read_all(self, mono: float, gone: dict[int, Process]) -> bool:
        is_thorough = not 0 <= mono - self._thorough_at < THOROUGH_EVERY_S
        if is_thorough:
            self._thorough_at = mono
        is_changed = False
        for process in self._processes.values():
            try:
                if process.read(self._tick, thoroughly=is_thorough):
                    is_changed = True
            except ProcessGoneError:
                gone.setdefault(process.pid, process)
        return is_changed

    def _adopt(self, mono: float, gone: dict[int, Process]) -> bool:
        joined = self._members.joined(self._processes, mono)
        for birth in joined:
            before = self._processes.pop(birth.pid, None)
            if before is not None:  # its number went to a child of the job within one tick
                gone[birth.pid] = before
            self._processes[birth.pid] = Process(self._proc, birth, self._descriptors, tick=self._tick)
        if joined and any(birth.parent not in self._processes for birth in joined):
            self._processes = {process.pid: process for process in parents_first(self._processes.values())}
        return bool(joined)

    def _add_up(self) -> None:
        processes = self._processes.values()
        self.living = tuple([process for process in processes if not process.is_zombie])
        self.pids = tuple([process.pid for process in self.living])
        self.zombies = len(processes) - len(self.living)
        self.has_ended = not self.living
        counts = self._ledger.total()
        if processes:
            counts = [sum(column) for column in zip(counts, *[each.counts for each in processes], strict=True)]
            self.threads, self.virtual_bytes, pages = map(sum, zip(*[each.gauges for each in processes], strict=True))
        else:
            self.threads = self.virtual_bytes = pages = 0
        self.counts = counts
        self.resident_bytes = pages * PAGE_BYTES
        self.peak_resident_bytes = max(self.peak_resident_bytes, self.resident_bytes)
