"""A program that does what a line of its input says, so that a test knows what a job did.

Run with the number of a pipe: what it forked lives until that pipe's other end is closed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

kept: list[object] = []


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def live(hold: int) -> None:
    """Wait for the end of the test, then end without Python's farewell."""
    os.read(hold, 1)
    os._exit(0)


def chain(depth: int, hold: int) -> list[int]:
    """Fork a child that forks a child and so on; return all of them."""
    read, write = os.pipe()
    if os.fork() == 0:
        below = chain(depth - 1, hold) if depth > 1 else []
        os.write(write, " ".join(map(str, [os.getpid(), *below])).encode())
        live(hold)
    os.close(write)
    return [int(word) for word in os.read(read, 4096).split()]


def orphan(hold: int, *, detached: bool, work_s: float) -> int:
    """Fork a child whose child goes on alone."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        if detached:
            os.setsid()
        if os.fork() == 0:
            burn(work_s)
            os.write(write, b"%d" % os.getpid())
            live(hold)
        os._exit(0)
    os.waitpid(middle, 0)
    return int(os.read(read, 64))


def many(number: int, hold: int) -> list[int]:
    """Fork children that live on."""
    pids = []
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            live(hold)
        pids.append(pid)
    return pids


def worker(hold: int, work_s: float) -> int:
    """Fork a child that works and then waits to be ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        burn(work_s)
        os.write(write, b"x")
        live(hold)
    os.read(read, 1)
    return pid


def short(number: int, work_s: float) -> None:
    """Fork children one after the other, and wait for each."""
    for _ in range(number):
        pid = os.fork()
        if pid == 0:
            burn(work_s)
            os._exit(0)
        os.waitpid(pid, 0)


def zombie() -> int:
    """Fork a child that ends, and do not wait for it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def end(pid: int) -> None:
    """Kill a child, and wait for it unless nobody is waited for."""
    os.kill(pid, signal.SIGKILL)
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        os.waitpid(pid, 0)


def write(size: int, path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"x" * size)


def times() -> list[float]:
    now = os.times()
    return [now.user, now.system, now.children_user, now.children_system]


def main() -> None:
    hold = int(sys.argv[1])
    deeds: dict[str, Callable[..., object]] = {
        "burn": lambda seconds: burn(float(seconds)),
        "chain": lambda depth: chain(int(depth), hold),
        "orphan": lambda work: orphan(hold, detached=False, work_s=float(work)),
        "daemon": lambda work: orphan(hold, detached=True, work_s=float(work)),
        "many": lambda number: many(int(number), hold),
        "short": lambda number, work: short(int(number), float(work)),
        "worker": lambda work: worker(hold, float(work)),
        "zombie": zombie,
        "end": lambda pid: end(int(pid)),
        "wait_for_nobody": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        "allocate": lambda size: kept.append(bytearray(b"x") * int(size)),
        "write": lambda size, path: write(int(size), path),
        "open": lambda number: kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(int(number))),
        "times": times,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        deed, *words = line.split()
        answer = deeds[deed](*words)
        print("" if answer is None else " ".join(map(str, answer)) if isinstance(answer, list) else answer, flush=True)


if __name__ == "__main__":
    main()
