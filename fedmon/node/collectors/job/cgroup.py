"""Control groups: the hierarchies of a machine, and the job's own group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.files import read_file, read_whole

UNIFIED = "unified"
"""The hierarchy of version 2; every other key is a controller of version 1."""

_FOR_MEMBERS = (UNIFIED, "pids", "cpuacct", "memory", "freezer", "cpuset", "devices", "blkio", "cpu", "systemd")


Hierarchies = Mapping[str, Path]
"""The folders of a machine's hierarchies, by UNIFIED or controller."""


def find_hierarchies(root: Path) -> Hierarchies:
    """Find the hierarchies mounted below ``root``.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, and systemd's docs/CGROUP_DELEGATION.md for both versions
    side by side.
    """
    if os.access(root / "cgroup.controllers", os.R_OK):
        return {UNIFIED: root}
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError):  # not mounted, or not for us
        for folder in sorted(root.iterdir()):
            if os.access(folder / "cgroup.controllers", os.R_OK):
                found[UNIFIED] = folder
            else:
                # Controllers that are mounted together have a folder named after both.
                found.update(dict.fromkeys(folder.name.split(","), folder))
    return found


class JobCgroup(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a job's own cgroup, by hierarchy."""

    path: str
    folders: Mapping[str, Path]

    @property
    def members_folder(self) -> Path:
        """The folder whose processes are the job's."""
        return next(self.folders[name] for name in _FOR_MEMBERS if name in self.folders)

    @property
    def members_method(self) -> str:
        """The version of that folder, as methods are named."""
        return "cgroup-v2" if UNIFIED in self.folders else "cgroup-v1"


def named(hierarchies: Hierarchies, root: Path, path: str) -> JobCgroup:
    """Return the cgroup that an owner names, by its folder or by its path inside the hierarchies.

    Raises InvalidInputError for a path that cannot be a job's, and NotFoundError when there is no such cgroup.
    """
    if not hierarchies:
        raise NotFoundError(f"no cgroup hierarchy is mounted at {root}; watch the job by its processes, with --pid")
    given = PurePosixPath(f"/{path.lstrip('/')}")
    inside = given.relative_to(next(filter(given.is_relative_to, hierarchies.values()), "/"))
    if ".." in inside.parts or "\0" in path or not inside.parts:
        raise InvalidInputError(
            f"cgroup {path!r} cannot be a job's: name a folder below {root}, not a whole hierarchy and no '..'"
        )
    folders = {name: base / inside for name, base in hierarchies.items() if is_cgroup(base / inside)}
    if not folders:
        raise NotFoundError(f"cgroup {str(inside)!r} not found below {root}; /proc/PID/cgroup names that of a process")
    # A scheduler may move no process into some of the groups that it makes, and these count nothing.
    folders = {name: folder for name, folder in folders.items() if members_of(folder)} or folders
    return JobCgroup(path=f"/{inside}", folders=folders)


def own(hierarchies: Hierarchies, proc: Path, roots: Collection[int], members: Collection[int]) -> JobCgroup | None:
    """Return the cgroup that holds a job's processes and nothing else; None if there is none.

    ``members`` are the living processes of the job. The cgroup of a login session, of a service or of this node that
    holds other processes beside them is not the job's own.
    """
    paths = [paths_of(proc, str(pid)) for pid in roots]
    folders: dict[str, Path] = {}
    path = ""
    for name, base in hierarchies.items():
        common = _common([each.get(name, "/") for each in paths])
        if common == "/" or ".." in PurePosixPath(common).parts:
            continue
        folder = base / common.lstrip("/")
        if is_cgroup(folder) and members_of(folder) == set(members):
            folders[name] = folder
            path = path or common
    return JobCgroup(path=path, folders=folders) if folders else None


def paths_of(proc: Path, pid: str) -> dict[str, str]:
    """Return in which cgroup a process is, by hierarchy; empty when that cannot be read."""
    try:
        text = os.fsdecode(read_file(os.fsencode(proc / pid / "cgroup"), 65_536))
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for name in controllers.split(",") if controllers else (UNIFIED,):
            found[name.removeprefix("name=")] = path or "/"
    return found


def is_cgroup(folder: Path) -> bool:
    """Tell whether a folder is a cgroup."""
    return os.access(folder / "cgroup.procs", os.R_OK)


def members_of(folder: Path) -> set[int]:
    """Return the processes of a cgroup and of those below it."""
    found: set[int] = set()
    for each in below(folder):
        try:
            text = read_whole(os.fsencode(each / "cgroup.procs"))
        except OSError:
            continue
        found.update(int(word) for word in text.split() if word.isdigit())
    return found


def below(folder: Path) -> Iterator[Path]:
    """Return a cgroup and all cgroups below it."""
    yield folder
    try:
        # A folder has one link for itself, one from its parent, and one for each folder in it.
        if folder.stat().st_nlink == 2:
            return
        inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in inner:
        yield from below(each)


def _common(paths: Collection[str]) -> str:
    return os.path.commonpath(paths) if paths and all(path.startswith("/") for path in paths) else "/"
