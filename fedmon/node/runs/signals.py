"""The signals of a keeper: they wake it up, and say that the job is to end."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

import msgspec

from fedmon.common.wire.runs import JobState
from fedmon.node.runs.order import StopAsked
from fedmon.node.runs.verdict import Verdict

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_STOP_ASKED = msgspec.json.Decoder(StopAsked)
_MAX_STOP_BYTES = 65_536


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
