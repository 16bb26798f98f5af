"""Ending processes, and never one that only has the number of one that is meant."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.wire.runs import JobState
from fedmon.node.collectors.base import THIS_MACHINE
from fedmon.node.collectors.job.family import Relative, relative
from fedmon.node.runs.order import StopAsked
from fedmon.node.runs.verdict import Verdict

_LOOK_AGAIN_S = 0.002
_TRIES_WITHOUT_NEWS = 2
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_STOP_ASKED = msgspec.json.Decoder(StopAsked)
_MAX_STOP_BYTES = 65_536


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


class Signals:
    """Turns signals into readiness of ``descriptor``; belongs to the main thread.

    A job is to end when one of SIGTERM, SIGHUP and SIGINT came, or when there is a file ``stop.json``.
    """

    def __init__(self, stop_file: str) -> None:
        self._stop_file = stop_file
        self.descriptor, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._came: int | None = None
        self._is_new = True
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._child)
        for number in _ENDING:
            signal.signal(number, self._end)
        # The daemon waits for these with them blocked, and who it starts inherits that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, *_ENDING))

    def clear(self) -> None:
        """Read what woke us up."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass

    def asked(self) -> Verdict | None:
        """Return why the job is to end, if that was asked since the last call."""
        if not self._is_new:
            return None
        self._is_new = False
        try:
            with open(self._stop_file, "rb") as file:
                stop = _STOP_ASKED.decode(file.read(_MAX_STOP_BYTES))
            return Verdict(stop.state, stop.reason)
        except (OSError, msgspec.DecodeError):
            pass
        if self._came is None:
            return None
        name = signal.Signals(self._came).name
        return Verdict(
            JobState.LOST, f"what watches over the job was ended by {name}, as when the machine or its service stops"
        )

    def _child(self, _number: int, _frame: FrameType | None) -> None:
        """Do nothing: being called is what writes into the pipe."""

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._came, self._is_new = number, True
