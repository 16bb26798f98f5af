"""Waits for what ends a run: a signal, the stop file, the time limit, the command's end, or that of all processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from fedmon.node.job.channel import Channel

if TYPE_CHECKING:
    from fedmon.node.job.commands import StopRequest

LOOK_S = 1.0
GRACE_S = 5.0
"""A command that was told to end by a signal has so long before its measuring is completed without it."""
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGXCPU,
    signal.SIGQUIT,
)
_ASKED_TO_END = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")
_MARGIN_RATIO, _LEAST_MARGIN_S, _MOST_MARGIN_S = 0.05, 5.0, 60.0


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run ended; ``exit_code`` and context ``switches`` are those of a command that ended."""

    reason: str
    exit_code: int | None = None
    switches: tuple[int, int] | None = None


def margin_s(time_limit_s: float) -> float:
    """Return how long before the scheduler's limit a run ends by itself, so that everything can be written."""
    return min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, _MARGIN_RATIO * time_limit_s))


class AlsoWhen:
    """A StopRequest that is set when another one is, or when ``check`` returns why to end."""

    def __init__(self, stop: StopRequest, check: Callable[[], str | None]) -> None:
        self._stop, self._check = stop, check

    def is_set(self) -> bool:
        """Tell whether one of the two says so."""
        return self._stop.is_set() or self._check() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the other one, at most so many seconds; what is checked is asked afterwards."""
        return self._stop.wait(timeout) or self._check() is not None


class Endings:
    """Hears signals, where ``channel`` is None, or what the process that runs the command tells.

    A context manager, for the main thread. Also a StopRequest: of what is done before anybody calls `wait_for_end`.
    """

    def __init__(self, *, channel: Channel | None) -> None:
        self._channel = channel
        self._signals: list[int] = []
        self._asked_at: float | None = None
        self._asked_by = ""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def __enter__(self) -> Self:
        if self._channel is None:
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            for number in _SIGNALS:
                # Whoever had us ignore hang-ups, as nohup does, wants us to go on.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """From now on only SIGINT ends the process: the recording is complete, and the rest may take its time."""
        if self._channel is None:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        os.close(self._wake_read)
        os.close(self._wake_write)

    def is_set(self) -> bool:
        """Tell whether something came that may end the run."""
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for what may end the run, at most so many seconds, and leave it to be heard; tell whether it came."""
        if self._channel is not None and self._channel.has_more:
            return True
        return bool(self._signals) or bool(select.select(self._heard_on, [], [], timeout)[0]) or bool(self._signals)

    @property
    def _heard_on(self) -> list[int]:
        return [self._wake_read] if self._channel is None else [self._channel.descriptor]

    def wait_for_end(self, checks: Sequence[Callable[[], str | None]]) -> End:
        """Return why the run ends; ``checks`` are asked about once a second and return why to end, or None."""
        look_at = time.monotonic()
        while True:
            end = self._heard()
            if end is not None:
                return end
            left_s = look_at - time.monotonic()
            if left_s <= 0:
                look_at = time.monotonic() + LOOK_S
                for check in checks:
                    reason = check()
                    if reason is not None:
                        return End(reason=reason)
                continue
            select.select(self._heard_on, [], [], left_s)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _heard(self) -> End | None:
        if self._channel is not None:
            return self._told(self._channel)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        return End(reason=f"{signal.Signals(self._signals[0]).name} came") if self._signals else None

    def _told(self, channel: Channel) -> End | None:
        while (told := channel.listen(0.0)) is not None:
            if told.kind == "ended":
                return End(reason=_how(told.code), exit_code=told.code, switches=told.switches)
            if told.kind == "signal" and told.text in _ASKED_TO_END and self._asked_at is None:
                self._asked_at, self._asked_by = time.monotonic(), told.text
        if channel.is_closed:
            return End(reason="the process that ran the command was killed")
        if self._asked_at is not None and time.monotonic() - self._asked_at >= GRACE_S:
            return End(reason=f"{self._asked_by} came, and the command did not end within {GRACE_S:g} s")
        return None


def _how(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"the command was ended by {signal.Signals(code - 128).name}"
    return f"the command ended with exit code {code}"
