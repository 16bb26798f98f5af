"""How fast counters grow, over a whole recording that is read block by block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.series import metric_name
from fedmon.report.blocks import LARGEST, Block, Floats

PERF_CLOCK = "perf_counted_seconds_total"
"""The clock of perf, which tells its counts late: they are divided by this one's growth wherever it was recorded."""
_BY_PERF_CLOCK = frozenset({"perf_events_total", "perf_task_clock_seconds_total"})


def is_by_perf_clock(series: str) -> bool:
    """Tell whether the growth of a counter a second is by the clock of perf."""
    return metric_name(series) in _BY_PERF_CLOCK


def clock_of(series: str, columns: Mapping[str, Floats], mono: Floats) -> Floats:
    """Return the times by which a counter grew, among the columns beside it: those of perf's clock, or ``mono``."""
    return columns.get(PERF_CLOCK, mono) if is_by_perf_clock(series) else mono


class Rates:
    """Turns counters into rates; it remembers the last reading of each series of each stream and boot.

    Blocks of a stream must come in order, as Source gives them. Time between readings is monotonic time, so a clock
    that is set changes nothing; for counts of perf it is the time of perf's own clock, which the block must have.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, str, str], tuple[float, float]] = {}

    def begin(self, block: Block, name: str, moment: float, value: float) -> None:
        """Set the previous reading of a series of the block's stream, and its time by its clock."""
        self._last[block.node_id, block.boot, block.stream, name] = (moment, value)

    def of(self, block: Block, name: str, *, passed_over: NDArray[np.bool_] | None = None) -> Floats:
        """Return the growth a second of one series of a block up to each of its samples; ask once for each.

        NaN at the first reading, where the series has no value, and where the counter went back: it was restarted then,
        and its count in between is unknown. A sample that is ``passed_over`` has none unless the counter went back; the
        next is over both times.
        """
        values, times = block.columns[name], clock_of(name, block.columns, block.mono)
        key = (block.node_id, block.boot, block.stream, name)
        before = self._last.get(key, (np.nan, np.inf))  # as if from a counter that went back
        is_known = ~(np.isnan(values) | np.isnan(times))
        if passed_over is not None:
            is_known &= ~passed_over | (np.diff(values, prepend=before[1]) < 0)
        known = np.flatnonzero(is_known)
        per_second = np.full(len(values), np.nan)
        if not len(known):
            return per_second
        readings, moments = values[known], times[known]
        self._last[key] = (float(moments[-1]), float(readings[-1]))
        grown = np.diff(readings, prepend=before[1])
        elapsed = np.diff(moments, prepend=before[0])
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            speed = grown / elapsed
        per_second[known] = np.where((grown >= 0) & (elapsed > 0) & (speed <= LARGEST), speed, np.nan)
        return per_second
