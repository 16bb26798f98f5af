"""Instants that lie a fixed interval apart, so that periodic work cannot drift."""

from __future__ import annotations

import math

import msgspec

MIN_INTERVAL_S = 0.2
"""No two samples are asked for closer together than this."""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """The instants ``start + n * interval_s`` on the monotonic clock, ``n`` from 0."""

    start: float
    interval_s: float

    def due(self, number: int) -> float:
        """Return the instant of one tick; computed from the start, so that rounding does not add up."""
        return self.start + number * self.interval_s

    def after(self, number: int, now: float) -> tuple[int, int]:
        """Return the tick that follows tick ``number`` at ``now``, and how many ticks lie behind and are left out."""
        following = number + 1
        if now <= self.due(following):
            return following, 0
        due = math.ceil((now - self.start) / self.interval_s)
        while self.due(due) < now:  # the division may have rounded down
            due += 1
        return due, due - following
