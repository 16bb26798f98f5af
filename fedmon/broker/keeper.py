"""Run one child process and end it when the process that started this keeper ends, however that happens.

Run as a script with the child's command line as arguments; imports nothing of ours, so that it starts in milliseconds.
The first line on standard output is ``pid <number>`` or ``error <reason>``. Each byte on standard input is an order:
``H`` hang up, ``T`` terminate, ``K`` kill. The end of standard input, a new parent process and SIGTERM mean terminate,
then kill after three seconds. Exits with the child's code, or 128 plus the signal that ended it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from types import FrameType

GRACE_S = 3.0
PARENT_CHECK_S = 1.0
OPEN_FILES = 65_536
ORDERS = {b"H": signal.SIGHUP, b"T": signal.SIGTERM, b"K": signal.SIGKILL}
PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Start the command, obey orders, and return its exit code."""
    parent = os.getppid()
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _noted)
    _allow_open_files()
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_keeper)  # noqa: PLW1509 (this process has one thread)
    except OSError as error:
        _say(f"error {error}")
        return 127
    _say(f"pid {child.pid}")
    while child.poll() is None:
        readable, _, _ = select.select([0, woken], [], [], PARENT_CHECK_S)
        if woken in readable:
            os.read(woken, 4096)
        order = os.read(0, 1) if 0 in readable else None
        if order == b"" or stops or os.getppid() != parent:
            _end(child)
        elif order in ORDERS:
            child.send_signal(ORDERS[order])
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _allow_open_files() -> None:
    """Raise the soft limit: a broker has an open file for each connection, and shells allow 1,024 unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Let the wake-up pipe tell of it."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _die_with_keeper() -> None:
    """Have the kernel kill the child when the keeper is killed; runs in the child, before its program starts.

    Source: prctl(2), PR_SET_PDEATHSIG; Linux only, elsewhere the keeper's pipe alone does it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
