"""The processes of one job, together."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from fedmon.node.collectors.job.files import Descriptors
from fedmon.node.collectors.job.ledger import Ledger
from fedmon.node.collectors.job.members import Members, parents_first
from fedmon.node.collectors.job.process import NO_COUNTS, Birth, Process, ProcessGoneError

THOROUGH_EVERY_S = 10.0
"""So often a process that did nothing is read, too: the kernel may have swapped its memory out."""


class ProcessTree:
    """Reads every process of a job once a tick.

    ``counts`` is what all of them used that ever were found, in the order of process.py; it never goes down. The other
    attributes tell of the last reading: ``living`` and ``zombies``, and the sums ``threads``, ``virtual_bytes`` and
    ``resident_bytes``. What a process used between the last reading and its end is counted when its parent is of the
    job and waits for it, and lost otherwise. ``refresh`` is safe from any thread.
    """

    def __init__(self, members: Members, *, proc: Path, descriptors: Descriptors) -> None:
        self._members, self._proc, self._descriptors = members, os.fsencode(proc), descriptors
        self._lock = threading.Lock()
        self._processes: dict[int, Process] = {}
        self._ledger = Ledger()
        self._tick = 0
        self._thorough_at = float("-inf")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self.counts: Sequence[int] = NO_COUNTS
        self.living: tuple[Process, ...] = ()
        self.pids: tuple[int, ...] = ()
        self.zombies = self.threads = self.virtual_bytes = self.resident_bytes = self.peak_resident_bytes = 0
        self.has_ended = False

    def refresh(self, mono: float) -> None:
        """Find who is new, and read all; ``mono`` is the monotonic time of now.

        Raises CollectorUnavailableError when the processes of the machine cannot be listed.
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

    def unreadable(self) -> int:
        """Return of how many living processes ``stat`` cannot be understood; only their counts of before are in."""
        return sum(process.unreadable for process in self.living)

    def unread(self) -> tuple[str, int]:
        """Return why ``io`` of living processes cannot be read, and of how many; "" and 0 when it can."""
        unread = [process.unread_io for process in self.living if process.unread_io]
        return (unread[0], len(unread)) if unread else ("", 0)

    def note_peak(self, size_bytes: int) -> None:
        """Learn that one process had this much resident memory at some time."""
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
            self._processes[birth.pid] = Process(self._proc, birth.pid, birth.start, self._descriptors, tick=self._tick)
        if joined and any(birth.parent not in self._processes for birth in joined):
            self._order(joined)
        return bool(joined)

    def _order(self, joined: Sequence[Birth]) -> None:
        """Keep parents before their children, also where they were found the other way round."""
        parents = {birth.pid: birth.parent for birth in joined}
        births = [
            Birth(pid, parents.get(pid, process.parent), 0, 0, process.start)
            for pid, process in self._processes.items()
        ]
        self._processes = {birth.pid: self._processes[birth.pid] for birth in parents_first(births)}

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
        self.resident_bytes = pages * self._page_bytes
        self.peak_resident_bytes = max(self.peak_resident_bytes, self.resident_bytes)
