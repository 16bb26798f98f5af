"""A cgroup for one job that bounds its memory and its processes, if this user may make one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.cgroup import UNIFIED, find_hierarchies, paths_of
from fedmon.node.job.cgroup import OwnCgroup

_CONTROLLERS = "+memory +pids"


def left_folders(name: str, told: str = "") -> list[Path]:
    """Return the folders of the cgroup of a job without keeper: below ours, or at the path that the keeper wrote."""
    mine = paths_of(THIS_MACHINE.proc, "self")
    above = Path(told.strip("/")).parent
    found = set()
    for hierarchy, base in find_hierarchies(THIS_MACHINE.cgroup).items():
        for each in (Path(mine.get(hierarchy, "").strip("/")), above):
            if ".." not in each.parts and (base / each / name).is_dir():
                found.add(base / each / name)
    return sorted(found)


def kill_in(folders: Iterable[Path]) -> None:
    """Kill all processes of cgroups at once, if the kernel can: an endless forker is hard to catch."""
    for each in folders:
        _write(each / "cgroup.kill", "1")


class JobGroup(OwnCgroup):
    """The cgroup of one job; if none could be made ``path`` is empty, and the methods have no effect.

    ``holds_memory`` is True if the kernel enforces the limit of memory; else the keeper does.
    Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and cgroup-v1/pids.rst.
    """

    def __init__(self, name: str, *, memory_bytes: int, processes: int, root: Path = THIS_MACHINE.cgroup) -> None:
        super().__init__(name, root=root)
        self._unified, self._old = self.folders.get(UNIFIED), self.folders.get("memory")
        if self._unified is not None and (self._unified.parent / "cgroup.subtree_control").exists():
            # Refused if the cgroup above holds processes, as that of a service does.
            _write(self._unified.parent / "cgroup.subtree_control", _CONTROLLERS)
        if self._old is not None:
            self.holds_memory = _write(self._old / "memory.limit_in_bytes", str(memory_bytes))
            _write(self._old / "memory.memsw.limit_in_bytes", str(memory_bytes))
        else:
            self.holds_memory = _write(self._unified and self._unified / "memory.max", str(memory_bytes))
            _write(self._unified and self._unified / "memory.swap.max", "0")
        self._pids = self.folders.get("pids", self._unified)
        _write(self._pids and self._pids / "pids.max", str(processes))

    def cpu_s(self) -> float | None:
        """Return the CPU time of all its processes so far, in seconds; None if it is not counted."""
        if "cpuacct" in self.folders:
            ns = _number(self.folders["cpuacct"] / "cpuacct.usage")
            return None if ns is None else ns / 1e9
        us = _number(self._unified and self._unified / "cpu.stat", "usage_usec")
        return None if us is None else us / 1e6

    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory of its processes together, with file systems in memory; None if not counted."""
        if self._old is not None:
            return _number(self._old / "memory.max_usage_in_bytes")
        return _number(self._unified and self._unified / "memory.peak")

    def ended_for_memory(self) -> int:
        """Return the number of processes that the kernel killed for lack of memory."""
        if self._old is not None:
            return _number(self._old / "memory.oom_control", "oom_kill") or 0
        return _number(self._unified and self._unified / "memory.events", "oom_kill") or 0

    def refused_processes(self) -> int:
        """Return how often a process or thread was refused because there were too many."""
        return _number(self._pids and self._pids / "pids.events", "max") or 0


def _write(path: Path | None, text: str) -> bool:
    try:
        return path is not None and path.write_text(text) > 0
    except OSError:
        return False


def _number(path: Path | None, name: str = "") -> int | None:
    """Return the number in a file, or in its line of a name; None if there is none."""
    try:
        lines = [] if path is None else path.read_text().splitlines()
        return next((int(line.split()[-1]) for line in lines if line.startswith(f"{name} " if name else "")), None)
    except (OSError, ValueError):
        return None
