"""Probes that try to take more than a job may have; `facts` name the limits."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from pathlib import Path

from tests.node.runs.probes.calls import call, libc

Facts = dict[str, object]


def fork_bomb(facts: Facts) -> object:
    limit = int(str(facts["processes"]))
    children: list[int] = []
    try:
        while len(children) < limit + 8:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except OSError:
        return None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(children)} children"


def memory(facts: Facts) -> object:
    return len(bytearray(int(str(facts["memory_bytes"])) + 2**20))


def shared_memory(facts: Facts) -> object:
    size = int(str(facts["memory_bytes"])) * 5 // 4
    with mmap.mmap(-1, size) as area:
        for place in range(0, size, mmap.PAGESIZE):
            area[place] = 1
    return size


def memory_in_files_without_names(facts: Facts) -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    most, piece = int(str(facts["memory_bytes"])) * 5 // 4, bytes(2**20)
    ballast = bytearray(2**26)  # whoever has most is ended by a cgroup, and should not be who tells of the probes
    size = len(ballast) - 2**26
    while size < most:
        file = os.memfd_create("memory")
        for _ in range(int(str(facts["tmp_bytes"])) // len(piece)):
            size += os.write(file, piece)
    return size


def memory_in_segments(facts: Facts) -> object:
    most, piece = int(str(facts["memory_bytes"])) * 5 // 4, 2**24
    libc.shmat.restype = ctypes.c_void_p
    segments: list[int] = []
    try:
        while len(segments) * piece < most:
            segments.append(call("shmget", 0, piece, 0o1600))
            area = libc.shmat(segments[-1], None, 0)
            ctypes.memset(area, 1, piece)
            libc.shmdt(ctypes.c_void_p(area))
        return len(segments) * piece
    finally:
        for each in segments:
            libc.shmctl(each, 0, None)


def one_large_file(facts: Facts) -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path(os.environ.get("TMPDIR", "/tmp"), "large")
    try:
        with path.open("wb") as file:
            return file.truncate(int(str(facts["tmp_bytes"])) + 4096)
    finally:
        path.unlink()


def many_files(facts: Facts) -> object:
    folder = Path(os.environ.get("TMPDIR", "/tmp"), "many")
    folder.mkdir()
    try:
        for number in range(5):
            (folder / str(number)).write_bytes(bytes(int(str(facts["tmp_bytes"])) // 4))
        return "filled"
    finally:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


def open_files(facts: Facts) -> object:
    held: list[int] = []
    try:
        while len(held) < 5000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return None
    return len(held)
