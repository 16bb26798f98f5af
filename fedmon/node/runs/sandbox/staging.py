"""What a job may see, laid ready by root for a job that runs as a user who owns nothing.

That user could reach neither data below a closed folder nor the private files of another. So root clones what is to
be seen, read-only and with its owner shown as that user (an idmapped mount), into a folder that only this process has.
Source: mount_setattr(2), open_tree(2), move_mount(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fedmon.node.runs.sandbox import kernel
from fedmon.node.runs.sandbox.user_namespace import shift

STAGE = "/tmp"  # noqa: S108 - covered by a file system of our own
"""Covered in the mount namespace of the job's first process alone; every machine has it."""

_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_SYMLINK_NOFOLLOW = 0x100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x10_0000


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be seen; ``public`` where all of it is meant for everybody, as an installed program is."""

    path: str
    public: bool


def staged_paths(sources: Iterable[Source]) -> dict[str, str]:
    """Return where each source will lie once it is staged."""
    return {source.path: f"{STAGE}/{number}" for number, source in enumerate(sources)}


def stage(sources: Iterable[Source], *, user: int, group: int) -> bool:
    """Lay everything ready in a mount namespace of this process; tell whether ``user`` can read all of it.

    He cannot where a file system does not know idmapped mounts and its files are not meant for everybody; then only
    their owner can. Raises OSError for what is not there.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    shifts: dict[tuple[int, int], int] = {}
    clones = []
    is_readable = True
    for source in sources:
        about = Path(source.path).lstat()
        if stat.S_ISLNK(about.st_mode):
            raise OSError(errno.ELOOP, "it became a link", source.path)
        flags = _OPEN_TREE_CLONE | kernel.AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW | os.O_CLOEXEC
        tree = kernel.syscall(kernel.OPEN_TREE, kernel.AT_FDCWD, os.fsencode(source.path), flags)
        _protect(tree, None)
        if not _is_open(source, about):
            owner = (about.st_uid, about.st_gid)
            try:
                if owner not in shifts:
                    shifts[owner] = shift(*owner, to_user=user, to_group=group)
                _protect(tree, shifts[owner])
            except OSError:
                is_readable = False
        clones.append((tree, stat.S_ISDIR(about.st_mode)))
    kernel.mount("tmpfs", STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    for number, (tree, is_folder) in enumerate(clones):
        target = Path(STAGE, str(number))
        target.mkdir() if is_folder else target.touch()
        kernel.syscall(kernel.MOVE_MOUNT, tree, b"", kernel.AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)
    for each in shifts.values():
        os.close(each)
    return is_readable


def _is_open(source: Source, about: os.stat_result) -> bool:
    """Tell whether everybody may read it; of a folder that is not public nobody knows what is in it."""
    wanted = 0o5 if stat.S_ISDIR(about.st_mode) else 0o4
    return about.st_mode & wanted == wanted and (source.public or not stat.S_ISDIR(about.st_mode))


def _protect(tree: int, shifted: int | None) -> None:
    """Set the attributes of a cloned tree: read-only, and under another owner when ``shifted`` is given."""
    wanted = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
    attributes = (ctypes.c_uint64 * 4)(wanted | (0 if shifted is None else _ATTR_IDMAP), 0, 0, shifted or 0)
    kernel.syscall(
        kernel.MOUNT_SETATTR,
        tree,
        b"",
        kernel.AT_EMPTY_PATH | kernel.AT_RECURSIVE,
        attributes,
        ctypes.sizeof(attributes),
    )


def renamed(paths: Mapping[str, str], path: str) -> str:
    """Return where a path lies: staged, or as it is."""
    return paths.get(path, path)
