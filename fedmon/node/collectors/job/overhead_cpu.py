"""CPU time of processes that lie in a job's cgroup and are not the job's: who measures it, and its launchers."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.node.collectors.job.cgroup import members_of
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.members import Excluded
from fedmon.node.collectors.job.process import birth_of, stat_fields

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class OverheadCpu:
    """Reads what the excluded processes of a cgroup used, with those of their children that they waited for.

    ``folder`` is where the cgroup counts CPU time; a process that lies elsewhere is not counted there. What one that
    was excluded by name used stays in the sum when it ends, as it does in the cgroup's.
    """

    def __init__(self, folder: Path, excluded: Excluded, *, proc: Path) -> None:
        self._folder, self._excluded, self._proc = folder, excluded, os.fsencode(proc)
        self._named = frozenset(excluded.processes)
        self._is_inside: dict[int, bool] = {}
        self._used: dict[int, tuple[int, int]] = {}

    def read(self) -> tuple[int, int]:
        """Return user and system time in nanoseconds."""
        processes = self._excluded.processes
        if processes.keys() - self._is_inside.keys():
            inside = members_of(self._folder)
            self._is_inside |= {pid: pid in inside for pid in processes.keys() - self._is_inside.keys()}
        for pid, start in processes.items():
            if self._is_inside[pid]:
                self._look(pid, start)
        user, system = (sum(column) for column in zip((0, 0), *self._used.values(), strict=True))
        return user * _TICK_NS, system * _TICK_NS

    def _look(self, pid: int, start: int | None) -> None:
        try:
            text = read_file(b"%s/%d/stat" % (self._proc, pid), 1024)
            if start is not None and birth_of(pid, text).start != start:
                raise ProcessLookupError
            user, system, of_children_user, of_children_system = map(int, stat_fields(text)[11:15])
        except (OSError, ValueError, IndexError):
            if pid not in self._named and pid not in self._excluded.alone:
                self._used.pop(pid, None)  # it is in the sum of who waited for it now
            return
        self._used[pid] = (user + of_children_user, system + of_children_system)
