"""Ending processes, and never one that only has the number of one that is meant."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmon.common.clock import Deadline
from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.family import Relative, relative

_LOOK_AGAIN_S = 0.002
_TRIES_WITHOUT_NEWS = 2


class Known(NamedTuple):
    """A process by its number and its start in clock ticks since the boot; no other one ever has both."""

    pid: int
    start: int


def send(known: Known, number: int, *, proc: Path = THIS_MACHINE.proc) -> bool:
    """Send a signal to a process, unless its number belongs to another one now; tell whether it was sent.

    The process is held by a descriptor before its start is looked at, so that it cannot be replaced in between.
    """
    try:
        held = os.pidfd_open(known.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3
        return _send_by_number(known, number, proc)
    try:
        now = relative(known.pid, proc=proc)
        if now is None or now.start != known.start:
            return False
        signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(held)
    return True


def end_all(living: Callable[[], Sequence[Relative]], *, timeout_s: float) -> list[Known]:
    """Kill whatever ``living`` returns until it returns nothing but zombies; return those that are left.

    All of them are stopped before any is killed, as one that is stopped starts no others meanwhile.
    """
    deadline = Deadline(timeout_s)
    pause = threading.Event()
    while True:
        stopped: set[Known] = set()
        for _ in range(_TRIES_WITHOUT_NEWS):
            news = _known(living()) - stopped
            while news and not deadline.passed():
                for each in news:
                    send(each, signal.SIGSTOP)
                stopped |= news
                news = _known(living()) - stopped
        left = _known(living())
        for each in left:
            send(each, signal.SIGKILL)
        if not left or deadline.passed():
            return sorted(left)
        pause.wait(_LOOK_AGAIN_S)


def reap() -> dict[int, int]:
    """Wait for every child of this process that has ended, and return their statuses by number."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found[pid] = status
    return found


def _known(relatives: Iterable[Relative]) -> set[Known]:
    return {Known(each.pid, each.start) for each in relatives if not each.is_zombie}


def _send_by_number(known: Known, number: int, proc: Path) -> bool:
    now = relative(known.pid, proc=proc)
    if now is None or now.start != known.start:
        return False
    try:
        os.kill(known.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
