"""How fast counters grow, over a whole recording that is read block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmon.report.block import Block, Floats


class Growth(NamedTuple):
    """How a counter grew up to each sample: ``per_second``, and by how much since the reading before.

    NaN at the first reading, where the series has no value, and where the counter went back: it was restarted then,
    and what it counted in between is not known.
    """

    per_second: Floats
    increase: Floats


class Rates:
    """Turns counters into rates; it remembers the last reading of each series of each stream and boot.

    Blocks of a stream must come in order, as Source gives them. Time between readings is monotonic time, so a clock
    that is set changes nothing.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, str, str], tuple[float, float]] = {}

    def begin(self, block: Block, name: str, mono: float, value: float) -> None:
        """Say what a series of the block's stream was read as before, where that block was not seen."""
        self._last[block.node_id, block.boot, block.stream, name] = (mono, value)

    def of(self, block: Block, name: str) -> Growth:
        """Return the growth of one series of a block up to each of its samples; ask once for each block and series."""
        values = block.columns[name]
        key = (block.node_id, block.boot, block.stream, name)
        known = np.flatnonzero(~np.isnan(values))
        per_second = np.full(len(values), np.nan)
        increase = np.full(len(values), np.nan)
        if not len(known):
            return Growth(per_second, increase)
        readings, moments = values[known], block.mono[known]
        before = self._last.get(key)
        self._last[key] = (float(moments[-1]), float(readings[-1]))
        if before is None:
            before = (float(moments[0]), np.nan)
        grown = np.diff(readings, prepend=before[1])
        elapsed = np.diff(moments, prepend=before[0])
        with np.errstate(invalid="ignore", divide="ignore"):
            is_growth = (grown >= 0) & (elapsed > 0)
            increase[known] = np.where(is_growth, grown, np.nan)
            per_second[known] = np.where(is_growth, grown / elapsed, np.nan)
        return Growth(per_second, increase)
