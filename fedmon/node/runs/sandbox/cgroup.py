"""A cgroup for one job that holds it to its memory and its number of processes, where this user may make one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.cgroup import UNIFIED, Cgroups, JobCgroup, members_of, paths_of
from fedmon.node.job.cgroup import OwnCgroup
from fedmon.node.runs.mark import mark_of
from fedmon.node.runs.order import JobOrder

_CONTROLLERS = "+memory +pids"
_PREFIX = "fedmon-job-"


def name_of(order: JobOrder) -> str:
    """Return what the cgroup of a job is called; the same job may run on other nodes of this machine."""
    return f"{_PREFIX}{order.job_id}-{mark_of(order.folder):016x}"


def left_folders(
    name: str, told: str = "", *, root: Path = THIS_MACHINE.cgroup, proc: Path = THIS_MACHINE.proc
) -> list[Path]:
    """Return the folders of the cgroup of a job without keeper: below ours, or where the keeper told that it is."""
    mine = paths_of(proc, "self")
    above = Path(told.strip("/")).parent
    found = set()
    for hierarchy, base in Cgroups.found(root).hierarchies.items():
        for each in (Path(mine.get(hierarchy, "").strip("/")), above):
            if ".." not in each.parts and (base / each / name).is_dir():
                found.add(base / each / name)
    return sorted(found)


def kill_in(folders: Iterable[Path]) -> None:
    """End all processes of cgroups at once, where the kernel can: one that forks without end is hard to catch."""
    for each in folders:
        _write(each / "cgroup.kill", "1")


class JobGroup:
    """The cgroup of one job; ``path`` is empty where none could be made, and then nothing here has an effect.

    ``holds_memory`` and ``holds_processes`` tell which limits the kernel keeps; what it does not keep, the keeper has
    to look after. Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and cgroup-v1/pids.rst.
    """

    def __init__(
        self,
        name: str,
        *,
        memory_bytes: int,
        processes: int,
        root: Path = THIS_MACHINE.cgroup,
        proc: Path = THIS_MACHINE.proc,
    ) -> None:
        self._own = OwnCgroup(name, root=root, proc=proc)
        self._limited(memory_bytes, processes)

    @property
    def path(self) -> str:
        """Where it lies below the hierarchies."""
        return self._own.path

    @property
    def job(self) -> JobCgroup | None:
        """It as what is measured; None where there is none."""
        return self._own.as_job()

    def enter(self) -> None:
        """Move this process into it; for the child, before it becomes the program."""
        self._own.enter()

    def _limited(self, memory_bytes: int, processes: int) -> None:
        folders = self._own.folders
        unified = folders.get(UNIFIED)
        if unified is not None and (unified.parent / "cgroup.subtree_control").exists():
            # Refused where the cgroup above holds processes, as that of a service does.
            _write(unified.parent / "cgroup.subtree_control", _CONTROLLERS)
        self._memory, self._pids = folders.get("memory"), folders.get("pids")
        if self._memory is not None:
            self.holds_memory = _write(self._memory / "memory.limit_in_bytes", str(memory_bytes))
            _write(self._memory / "memory.memsw.limit_in_bytes", str(memory_bytes))
        else:
            self._memory = unified
            self.holds_memory = unified is not None and _write(unified / "memory.max", str(memory_bytes))
            if unified is not None:
                _write(unified / "memory.swap.max", "0")
        self._pids = self._pids or unified
        self.holds_processes = self._pids is not None and _write(self._pids / "pids.max", str(processes))

    def cpu_s(self) -> float | None:
        """Return the CPU time of all that ever ran in it, in seconds; null where it is not counted."""
        folders = self._own.folders
        if "cpuacct" in folders:
            ns = _number(folders["cpuacct"] / "cpuacct.usage")
            return None if ns is None else ns / 1e9
        us = _field(folders[UNIFIED] / "cpu.stat", "usage_usec") if UNIFIED in folders else None
        return None if us is None else us / 1e6

    def memory_bytes(self) -> int | None:
        """Return what its processes have now, file systems in memory among it; null where it is not counted."""
        return self._of_memory("memory.usage_in_bytes", "memory.current")

    def peak_memory_bytes(self) -> int | None:
        """Return the most that they had at once; null where it is not counted."""
        return self._of_memory("memory.max_usage_in_bytes", "memory.peak")

    def ended_for_memory(self) -> int:
        """Return how many processes the kernel ended because the memory was used up."""
        if self._memory is None:
            return 0
        name = "memory.oom_control" if "memory" in self._own.folders else "memory.events"
        return _field(self._memory / name, "oom_kill") or 0

    def refused_processes(self) -> int:
        """Return how many times a process or thread was refused because there were too many."""
        return 0 if self._pids is None else _field(self._pids / "pids.events", "max") or 0

    def members(self) -> set[int]:
        """Return the processes in it."""
        return set().union(*(members_of(folder) for folder in self._own.folders.values()))

    def kill(self) -> None:
        """End every process in it, once; what is forked meanwhile may live on, so look at `members` again."""
        unified = self._own.folders.get(UNIFIED)
        if unified is not None and _write(unified / "cgroup.kill", "1"):
            return
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> int:
        """Remove it, and return how many processes were left in it."""
        return self._own.remove()

    def _of_memory(self, first: str, second: str) -> int | None:
        if self._memory is None:
            return None
        return _number(self._memory / (first if "memory" in self._own.folders else second))


def _write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)
