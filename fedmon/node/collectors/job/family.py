"""The descendants of one process at one moment."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.files import read_file, read_whole
from fedmon.node.collectors.job.process import Birth, all_pids, births_of, descended, find_birth, number_of

_STATUS_BYTES = 4096
_MAX_MEMBERS = 100_000


def descendants(pid: int, *, proc: Path = THIS_MACHINE.proc) -> list[Birth]:
    """Return the descendants of a process, without itself, parents before their children.

    A process that was born during the look, or whose parent ended during it, may be missing.
    """
    if not os.access(proc / str(pid) / "task" / str(pid) / "children", os.R_OK):  # a kernel without PROC_CHILDREN
        return descended([pid], births_of(all_pids(proc), proc))
    found: dict[int, Birth] = {}
    queue = [pid]
    while queue and len(found) < _MAX_MEMBERS:
        for child in _children(queue.pop(), proc):
            each = find_birth(child, proc) if child not in found else None
            if each is not None:
                found[child] = each
                queue.append(child)
    return list(found.values())


def with_limit(name: bytes, value: int) -> list[Birth]:
    """Return the processes of this machine with a limit, such as ``b"Max file locks"``, of exactly this value."""
    found = []
    for pid in all_pids():
        try:
            limits = read_whole(b"/proc/%d/limits" % pid)
        except OSError:
            continue
        words = next((line[len(name) :].split() for line in limits.splitlines() if line.startswith(name)), [])
        each = find_birth(pid) if words[:1] == [b"%d" % value] else None
        if each is not None:
            found.append(each)
    return found


def tasks_of(user: int) -> int:
    """Return the number of visible processes and threads of a user."""
    tasks = 0
    for pid in all_pids():
        try:
            about = Path(f"/proc/{pid}/task").stat()
        except OSError:
            continue
        tasks += about.st_nlink - 2 if about.st_uid == user else 0
    return tasks


def proportional_bytes(pid: int) -> int | None:
    """Return the memory of a process, shared pages divided among the sharers; None if it cannot be read.

    Source: Linux Documentation/filesystems/proc.rst, smaps_rollup.
    """
    return _kilobytes(b"/proc/%d/smaps_rollup" % pid, b"\nPss:")


def peak_resident_bytes(pid: int) -> int | None:
    """Return the peak of a process's resident memory since exec; None if it cannot be read."""
    return _kilobytes(b"/proc/%d/status" % pid, b"\nVmHWM:")


def _kilobytes(path: bytes, key: bytes) -> int | None:
    try:
        text = read_file(path, _STATUS_BYTES)
    except OSError:
        return None
    return number_of(text, key) * 1024 if key in text else None


def _children(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    try:
        with os.scandir(proc / str(pid) / "task") as entries:
            threads = [os.fsencode(entry.path) for entry in entries]
    except OSError:
        return found
    for thread in threads:
        try:
            found.extend(map(int, read_whole(thread + b"/children").split()))
        except OSError:
            continue
    return found
