"""Which processes of a job perf has to be told, since it does not count them already."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from fedmon.node.perf.command import InCgroup, Processes, Target

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    parent: int
    started_s: float
    alive: bool


class JobTarget:
    """The processes of one job, as they were seen last.

    perf counts the children that a process forks after it was attached, but not those that were there before.
    ``see`` and ``uncounted`` belong to the sampler's thread, ``target`` to perf's.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self.cgroup: str | None = None
        """The job's cgroup as perf calls it, once it is known that perf may count it."""
        self._proc = proc
        self._pids: frozenset[int] = frozenset()
        self._listed: frozenset[int] = frozenset()
        self._counted: set[int] = set()
        self._of: frozenset[int] = frozenset()

    def see(self, pids: Collection[int]) -> None:
        """Take the processes that the job has now."""
        self._pids = frozenset(pids)

    def target(self) -> Target | None:
        """Return what perf is to count now; None when no process of the job lives."""
        if self.cgroup is not None:
            return InCgroup(self.cgroup)
        listed = {pid for pid in self._pids if (process := self._read(pid)) is not None and process.alive}
        self._listed = frozenset(listed)
        return Processes(tuple(sorted(listed))) if listed else None

    def uncounted(self, attached_at: float | None) -> bool:
        """Tell whether the job has a process that perf does not count.

        ``attached_at`` is when perf began, in seconds since boot; None, when that is not known yet, means no.
        """
        if self.cgroup is not None or attached_at is None:
            return False
        listed = self._listed
        if listed is not self._of:
            self._of, self._counted = listed, set(listed)
        new = self._pids - self._counted
        if not new:
            return False
        self._counted &= self._pids
        found = {pid: process for pid in new if (process := self._read(pid)) is not None and process.alive}
        # Parents first: a child is counted when its parent was at the time.
        for pid, process in sorted(found.items(), key=lambda pair: (pair[1].started_s, pair[0])):
            # Start times are cut to a tick of the kernel's clock, so one of the same tick may have been too early.
            if process.parent in self._counted and process.started_s > attached_at:
                self._counted.add(pid)
        return any(pid not in self._counted for pid in found)

    def _read(self, pid: int) -> _Process | None:
        try:
            text = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        fields = text[text.rfind(b")") + 1 :].split()
        if len(fields) < 20:
            return None
        return _Process(
            parent=int(fields[1]),
            started_s=int(fields[19]) / _TICKS_PER_SECOND,
            alive=fields[0].decode() not in _DEAD,
        )
