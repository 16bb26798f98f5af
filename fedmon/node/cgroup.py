"""The cgroup of one command or plan, if this user may make one: it misses no process, and can bound a plan's."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from fedmon.common.clock import Deadline
from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.cgroup import UNIFIED, below, find_hierarchies, members_of, paths_of

logger = logging.getLogger(__name__)

# A group of these changes nothing for the command; one of the controllers `cpu`, `cpuset`, `blkio` or `devices` would
# get another share of the machine, or none.
_HARMLESS = (UNIFIED, "memory", "pids", "cpuacct")

_CONTROLLERS = "+memory +pids"
_REMOVE_WITHIN_S, _TRY_AGAIN_S = 5.0, 0.01


class OwnCgroup:
    """The folders of one command's cgroup, below those of this process; empty if none could be made.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, section "Delegation", and cgroup-v1/cgroups.rst.
    """

    def __init__(self, name: str) -> None:
        mine = paths_of(THIS_MACHINE.proc, "self")
        self.folders: dict[str, Path] = {}
        self.path = ""
        for hierarchy, base in find_hierarchies(THIS_MACHINE.cgroup).items():
            inside = mine.get(hierarchy, "")
            if hierarchy not in _HARMLESS or "," in base.name or not inside or ".." in Path(inside).parts:
                continue
            above = base / inside.lstrip("/")
            # Processes that are left in it must be able to return.
            if not os.access(above / "cgroup.procs", os.W_OK):
                continue
            with contextlib.suppress(OSError):
                (above / name).mkdir()
                self.folders[hierarchy] = above / name
                self.path = self.path or str(Path(inside) / name)
        if UNIFIED not in self.folders and "cpuacct" not in self.folders:
            self.remove()  # without CPU time a group tells less than the processes do

    def enter(self) -> None:
        """Move this process into it; for the child, before it becomes the command."""
        for hierarchy, folder in list(self.folders.items()):
            try:
                with open(folder / "cgroup.procs", "wb", buffering=0) as file:
                    file.write(b"0")
            except OSError:
                del self.folders[hierarchy]

    def remove(self) -> None:
        """Remove it; processes that are left in it continue in the cgroup above."""
        folders, self.folders = self.folders, {}
        remove_cgroup(folders.values())


class JobGroup(OwnCgroup):
    """The cgroup of one job; if none could be made ``path`` is empty, and the methods have no effect.

    ``holds_memory`` is True if the kernel enforces the limit of memory; else the keeper does.
    Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and cgroup-v1/pids.rst.
    """

    def __init__(self, name: str, *, memory_bytes: int, processes: int) -> None:
        super().__init__(name)
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


def remove_cgroup(folders: Iterable[Path]) -> None:
    """Remove the folders of a cgroup; see OwnCgroup.remove."""
    for folder in folders:
        deadline = Deadline(_REMOVE_WITHIN_S)
        while folder.is_dir():
            for pid in members_of(folder):
                with contextlib.suppress(OSError):
                    (folder.parent / "cgroup.procs").write_text(str(pid))
            try:
                for each in reversed([*below(folder)]):  # the command may have made some in it
                    each.rmdir()
            except OSError as error:  # a process is about to end, or started another one just before it was moved
                if deadline.passed():
                    logger.warning("cgroup %s cannot be removed: %s", folder, error.strerror)
                    break
                threading.Event().wait(_TRY_AGAIN_S)


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
