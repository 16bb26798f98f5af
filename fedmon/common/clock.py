"""Timestamps come from UTC, durations from the monotonic clock."""

from __future__ import annotations

import datetime
import time

_ENDLESS_S = 1e9
"""30 years; some system calls refuse much longer timeouts."""


def utc_now() -> datetime.datetime:
    """Return the present moment in UTC, with its zone."""
    return datetime.datetime.now(datetime.UTC)


def seconds_from_now(seconds: float) -> datetime.datetime:
    """Return the UTC moment ``seconds`` ahead, or back if negative, at most 30 years away."""
    return utc_now() + datetime.timedelta(seconds=max(-_ENDLESS_S, min(seconds, _ENDLESS_S)))


def timestamp(moment: datetime.datetime) -> str:
    """Return a UTC moment as a text that sorts like time does."""
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")


class Deadline:
    """A point on the monotonic clock after which waiting ends; jumps of the wall clock do not move it."""

    def __init__(self, seconds: float | None) -> None:
        """End after ``seconds``; with None, never in practice."""
        self._start = time.monotonic()
        self._end = self._start + (_ENDLESS_S if seconds is None else seconds)

    def left_s(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Tell whether the deadline has passed."""
        return time.monotonic() >= self._end

    def elapsed_s(self) -> float:
        """Return the seconds since the deadline was set."""
        return time.monotonic() - self._start
