"""A cgroup for one command, if this user may make one: it misses no process of the command."""

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

_REMOVE_WITHIN_S, _TRY_AGAIN_S = 5.0, 0.01


class OwnCgroup:
    """The folders of one command's cgroup, below those of this process; empty if none could be made.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, section "Delegation", and cgroup-v1/cgroups.rst.
    """

    def __init__(self, name: str, *, root: Path = THIS_MACHINE.cgroup, proc: Path = THIS_MACHINE.proc) -> None:
        mine = paths_of(proc, "self")
        self.folders: dict[str, Path] = {}
        self.path = ""
        for hierarchy, base in find_hierarchies(root).items():
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
