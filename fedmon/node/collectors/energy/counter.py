"""A counter of energy that wraps, is reset, or is away for a while, added up without inventing anything."""

from __future__ import annotations

from fedmon.node.collectors.base import Why

SHORTEST_WRAP_S = 60.0
"""No counter wraps faster than this. Source: Intel SDM volume 3B, "RAPL Interfaces": around 60 s at high power."""

IMPOSSIBLE_WATTS = 10_000.0
"""A zone of one processor that seems to draw more did not count: its counter was set to another value."""

_LEAST_ELAPSED_S = 1.0  # a counter is refreshed in steps: two readings at once may lie some milliseconds of it apart


class EnergyCounter:
    """The energy that one counter has shown since its first reading, in whole microjoules.

    ``range_uj`` is the value at which it starts again from 0, None where it does not or where that is unknown.
    ``max_watts`` is the most that it can measure: whether a counter that went back has wrapped or was reset follows
    from it, and so does the time after which it may have wrapped twice.
    """

    def __init__(self, *, range_uj: int | None, max_watts: float, impossible_watts: float | None = None) -> None:
        self.range_uj = range_uj
        self.total_uj = 0
        self._max_watts, self._impossible_watts = max_watts, impossible_watts
        self._last: tuple[int, float] | None = None
        self._gap: str | None = None

    def add(self, raw_uj: int, mono: float) -> str | None:
        """Add what was counted since the previous reading; return the reason where that cannot be known.

        ``mono`` is monotonic time in seconds. After a reason the counting goes on from this reading.
        """
        last, self._last = self._last, (raw_uj, mono)
        if last is None:
            gap, self._gap = self._gap, None
            return gap
        elapsed_s = max(mono - last[1], _LEAST_ELAPSED_S)
        if self.range_uj and elapsed_s > (shortest := self._shortest_wrap_s(self.range_uj)):
            return (
                f"{Why.FAILED.value}: the counter may have wrapped more than once in {elapsed_s:.0f} s, which takes it"
                f" {shortest:.0f} s at {self._max_watts:g} W; sample more often"
            )
        counted = raw_uj - last[0]
        if counted < 0:
            wrapped = self._wrapped(counted, elapsed_s)
            if wrapped is None:
                return (
                    f"{Why.FAILED.value}: the counter went back from {last[0]} to {raw_uj} uJ; it was reset, and the"
                    " energy since the previous reading is not known"
                )
            counted = wrapped
        if self._impossible_watts is not None and counted > self._impossible_watts * elapsed_s * 1e6:
            return (
                f"{Why.FAILED.value}: the counter jumped by {counted / 1e6:.0f} J in {elapsed_s:.1f} s,"
                " more than a machine draws; the energy since the previous reading is not known"
            )
        self.total_uj += counted
        return None

    def restart(self, gap: str) -> None:
        """Count from the next reading on; ``gap`` is the reason that this reading gives."""
        if self._last is not None:
            self._last, self._gap = None, gap

    def _shortest_wrap_s(self, range_uj: int) -> float:
        return max(range_uj / 1e6 / self._max_watts, SHORTEST_WRAP_S)

    def _wrapped(self, counted: int, elapsed_s: float) -> int | None:
        """Return what was counted across one wrap; None where that would be more than can have been drawn."""
        if not self.range_uj:
            return None
        across = counted + self.range_uj
        return across if 0 <= across <= min(self._max_watts * elapsed_s * 1e6, self.range_uj / 2) else None
