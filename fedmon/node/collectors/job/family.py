"""The descendants of one process at one moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.files import read_file, read_whole
from fedmon.node.collectors.job.process import descended, stat_fields

_STAT_BYTES = 1024
_STATUS_BYTES = 4096
_MAX_MEMBERS = 100_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Relative(NamedTuple):
    """A living process or a zombie; ``start`` is in clock ticks since the boot.

    ``cpu_s`` includes the CPU time of the children that it waited for.
    """

    pid: int
    parent: int
    start: int
    cpu_s: float
    threads: int
    resident_bytes: int
    is_zombie: bool


def relative(pid: int, *, proc: Path = THIS_MACHINE.proc) -> Relative | None:
    """Return one process, or None if no process has this number.

    Source: Linux Documentation/filesystems/proc.rst, table 1-4.
    """
    try:
        fields = stat_fields(read_file(b"%s/%d/stat" % (os.fsencode(proc), pid), _STAT_BYTES))
    except (OSError, ValueError):
        return None
    threads = int(fields[17])
    return Relative(
        pid,
        int(fields[1]),
        int(fields[19]),
        sum(map(int, fields[11:15])) / _TICKS_PER_S,
        threads,
        max(int(fields[21].split()[0]), 0) * _PAGE_BYTES,
        fields[0] in b"ZX" and threads <= 1,
    )


def descendants(pid: int, *, proc: Path = THIS_MACHINE.proc) -> list[Relative]:
    """Return the descendants of a process, without itself, parents before their children.

    A process that was born during the look, or whose parent ended during it, may be missing.
    """
    children = _children_by_thread if os.access(proc / str(pid) / "task" / str(pid) / "children", os.R_OK) else None
    if children is None:
        return _among_all(pid, proc)
    found: dict[int, Relative] = {}
    queue = [pid]
    while queue and len(found) < _MAX_MEMBERS:
        for child in children(queue.pop(), proc):
            each = relative(child, proc=proc) if child not in found else None
            if each is not None:
                found[child] = each
                queue.append(child)
    return list(found.values())


def with_limit(name: bytes, value: int, *, proc: Path = THIS_MACHINE.proc) -> list[Relative]:
    """Return the processes of this machine with a limit, such as ``b"Max file locks"``, of exactly this value."""
    found = []
    for pid in _all_pids(proc):
        try:
            limits = read_whole(b"%s/%d/limits" % (os.fsencode(proc), pid))
        except OSError:
            continue
        words = next((line[len(name) :].split() for line in limits.splitlines() if line.startswith(name)), [])
        each = relative(pid, proc=proc) if words[:1] == [b"%d" % value] else None
        if each is not None:
            found.append(each)
    return found


def tasks_of(user: int, *, proc: Path = THIS_MACHINE.proc) -> int:
    """Return the number of visible processes and threads of a user."""
    tasks = 0
    for pid in _all_pids(proc):
        try:
            about = (proc / str(pid) / "task").stat()
        except OSError:
            continue
        tasks += about.st_nlink - 2 if about.st_uid == user else 0
    return tasks


def proportional_bytes(pid: int, *, proc: Path = THIS_MACHINE.proc) -> int | None:
    """Return the memory of a process, shared pages divided among the sharers; None if it cannot be read.

    Source: Linux Documentation/filesystems/proc.rst, smaps_rollup.
    """
    return _kilobytes(b"%s/%d/smaps_rollup" % (os.fsencode(proc), pid), b"Pss:")


def peak_resident_bytes(pid: int, *, proc: Path = THIS_MACHINE.proc) -> int | None:
    """Return the peak of a process's resident memory since exec; None if it cannot be read."""
    return _kilobytes(b"%s/%d/status" % (os.fsencode(proc), pid), b"VmHWM:")


def _kilobytes(path: bytes, key: bytes) -> int | None:
    try:
        text = read_file(path, _STATUS_BYTES)
    except OSError:
        return None
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _children_by_thread(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    try:
        with os.scandir(proc / str(pid) / "task") as entries:
            threads = [os.fsencode(entry.path) for entry in entries]
    except OSError:
        return found
    for thread in threads:
        try:
            found.extend(map(int, read_whole(thread + b"/children").split()))
        except (OSError, ValueError):
            continue
    return found


def _among_all(pid: int, proc: Path) -> list[Relative]:
    """For kernels without CONFIG_PROC_CHILDREN."""
    everything = (relative(number, proc=proc) for number in _all_pids(proc))
    return descended([pid], [each for each in everything if each is not None])


def _all_pids(proc: Path) -> list[int]:
    with os.scandir(proc) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]
