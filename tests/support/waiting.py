"""Waiting in tests: a condition and a deadline."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

import psutil
import pytest

from fedmon.common.clock import Deadline

T = TypeVar("T")
_TICK_S = 0.01


def wait_until(condition: Callable[[], T | None], timeout_s: float = 60.0, *, what: object = "the condition") -> T:
    """Return the first true value of ``condition``; fail the test when there was none within ``timeout_s``."""
    deadline = Deadline(timeout_s)
    tick = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if deadline.passed():
            pytest.fail(f"{what} did not come true within {timeout_s:g} s (last value: {value!r})", pytrace=True)
        tick.wait(_TICK_S)


def stays(condition: Callable[[], object], duration_s: float) -> bool:
    """Tell whether ``condition`` is true at every look for ``duration_s``; to show that something does not happen."""
    deadline = Deadline(duration_s)
    tick = threading.Event()
    while condition():
        if deadline.passed():
            return True
        tick.wait(_TICK_S)
    return False


def elapse(seconds: float) -> None:
    """Let an outage last."""
    assert stays(lambda: True, seconds)


def pause(pid: int) -> None:
    """Stop a process; its threads go on for a moment after SIGSTOP was sent."""
    os.kill(pid, signal.SIGSTOP)
    threads = [psutil.Process(thread.id) for thread in psutil.Process(pid).threads()]
    wait_until(lambda: all(thread.status() == psutil.STATUS_STOPPED for thread in threads), what="a stopped process")


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone or a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
