"""Which process has a run: the one that holds the lock of its journal, which is asked for without taking it."""

from __future__ import annotations

import os
from pathlib import Path

_LOCKS, _PROCESSES = Path("/proc/locks"), Path("/proc")


def holder_of(path: Path) -> int | None:
    """Return the process that holds the lock of a file; null where there is none, or nobody can know.

    Source: proc_locks(5): ``1: FLOCK  ADVISORY  WRITE 22768 fe:00:3277848 0 EOF``.
    """
    try:
        inode = str(path.stat().st_ino)
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for words in map(str.split, lines):
        # A device's number differs from that of its files on some file systems, so the process is asked what it has.
        if "FLOCK" in words[1:2] and len(words) > 5 and words[5].rpartition(":")[2] == inode and words[4].isdigit():
            number = int(words[4])
            if _has_open(number, path):
                return number
    return None


def _has_open(process: int, path: Path) -> bool:
    try:
        with os.scandir(_PROCESSES / str(process) / "fd") as found:
            return any(_is_same(each, path) for each in found)
    except OSError:
        return False


def _is_same(found: os.DirEntry[str], path: Path) -> bool:
    try:
        return os.path.samestat(found.stat(), path.stat())
    except OSError:
        return False
