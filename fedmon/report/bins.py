"""Recordings over time, in a few hundred steps: the numbers behind plots."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.table import is_counter
from fedmon.report.blocks import NEIGHBOURS, Block, Floats, usual_distance
from fedmon.report.rates import Rates
from fedmon.report.source import HOST
from fedmon.report.totals import HOLE_FACTOR, CoveredTime, Hole
from fedmon.report.training import Trainings, is_kept_exactly

COUNT = 480
"""Steps in time: about as many as a chart has pixels where two stand side by side."""
_TOO_SOON = 0.25
"""Readings closer than this part of the usual distance have no rate: in so short a time the coarse steps of a counter
look like a peak."""
_GAP, _PAUSE = 1.75, 10.0
"""Ratios to the usual distance from which values are missing, and from which programs had nothing to report."""


class SeriesKey(NamedTuple):
    """One series of one stream of one node."""

    node_id: str
    stream: str
    series: str


class Binned(NamedTuple):
    """One series over time: its values in each step that has any; a counter as its growth per second.

    ``t`` is the mean Unix time of a step's values, ``counts`` how many there are. These arrays are of the same length
    and have no NaN. ``gaps`` tells for each two neighbours whether values are missing between them.
    """

    t: Floats
    mean: Floats
    low: Floats
    high: Floats
    counts: NDArray[np.int64]
    gaps: NDArray[np.bool_]


_CELL = np.dtype([("count", np.uint32), *((name, np.float64) for name in ("offset", "total", "low", "high"))])
_EMPTY = np.array((0, 0.0, 0.0, np.inf, -np.inf), dtype=_CELL)


class _Stream:
    """The sums of all series of one stream; a row a series, a column a step; its ``latest`` times, and its holes."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.time = CoveredTime(has_pace=not is_user_stream(name))
        self.rows: dict[str, int] = {}
        self.cells = np.full((0, count), _EMPTY)
        self.has_samples = np.zeros(count, dtype=np.bool_)
        self.boot, self.latest = -1, np.empty(0)

    def add(self, names: list[str], steps: NDArray[np.int64], offset: Floats, values: Floats) -> None:
        """Add values, a row a series, in steps that ascend."""
        rows = np.array([self.rows.setdefault(name, len(self.rows)) for name in names])
        new = np.full((len(self.rows) - len(self.cells), self.cells.shape[1]), _EMPTY)
        self.cells = cells = np.concatenate([self.cells, new]) if len(new) else self.cells
        self.has_samples[steps] = True
        begins = np.flatnonzero(np.diff(steps, prepend=-1))
        at, known = (rows[:, None], steps[begins][None, :]), ~np.isnan(values)
        cells["count"][at] += np.add.reduceat(known, begins, axis=1, dtype=np.uint32)
        cells["offset"][at] += np.add.reduceat(np.where(known, offset, 0.0), begins, axis=1)
        cells["total"][at] += np.add.reduceat(np.where(known, values, 0.0), begins, axis=1)
        cells["low"][at] = np.fmin(cells["low"][at], np.fmin.reduceat(values, begins, axis=1))
        cells["high"][at] = np.fmax(cells["high"][at], np.fmax.reduceat(values, begins, axis=1))

    def gaps(self, steps: NDArray[np.int64], t: Floats) -> NDArray[np.bool_]:
        """Tell where the stream has a hole, or samples without a value for clearly longer than between those around."""
        middles = sorted((hole.after_t + hole.until_t) / 2 for hole in self.time.holes)
        sampled = np.cumsum(self.has_samples)
        apart = np.diff(t)
        is_reported = is_user_stream(self.name)
        far = _PAUSE if is_reported else _GAP
        is_far = apart > far * usual_distance(apart) if len(apart) else np.zeros(0, dtype=np.bool_)
        if self.name != HOST and not is_reported:  # a program grew from nothing or ended meanwhile
            is_far[:1] = is_far[-1:] = True
        has_samples = is_reported | (sampled[steps[1:] - 1] > sampled[steps[:-1]])
        return np.asarray((np.diff(np.searchsorted(middles, t)) > 0) | (is_far & has_samples))


class Bins:
    """A consumer of blocks that keeps mean, lowest and highest value of each series in ``count`` steps of ``span``.

    ``span`` is the time looked at, in Unix seconds, as `Subject.span` gives it; samples outside are left out.
    ``wanted`` says which series are kept. Values that ``trainings`` keep exactly are not kept twice.
    """

    def __init__(
        self,
        span: tuple[float, float] | None,
        *,
        count: int = COUNT,
        wanted: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self.trainings = Trainings()
        start, end = span or (0.0, 0.0)
        self.start, self.end = start, max(end, start + 1.0)  # a single moment has no width
        self.count = count
        self.width_s = (self.end - self.start) / count
        self._wants = functools.cache(wanted)
        self._rates = Rates()
        self._streams: dict[tuple[str, str], _Stream] = {}

    def add(self, block: Block) -> None:
        """Take samples in; blocks of a stream come in order."""
        self.trainings.add(block)
        names = [name for name in block.columns if self._wants(name) and not is_kept_exactly(name, block.columns)]
        stream = self._streams.setdefault((block.node_id, block.stream), _Stream(block.stream, self.count))
        stream.time.advance(block)
        if not names:
            return
        before = stream.latest if stream.boot == block.boot else np.empty(0)
        mono = np.concatenate([before, block.mono])
        stream.boot, stream.latest = block.boot, mono[-NEIGHBOURS:]
        soon = _too_soon(mono)[len(before) :]
        values = np.stack([
            self._rates.of(block, name, passed_over=soon) if is_counter(name) else block.columns[name] for name in names
        ])  # fmt: skip
        offset = block.t - self.start
        steps = np.floor(offset / self.width_s).astype(np.int64)
        steps[block.t == self.end] = self.count - 1
        order = np.argsort(steps, kind="stable")
        order = order[(steps[order] >= 0) & (steps[order] < self.count)]
        if len(order):
            stream.add(names, steps[order], offset[order], np.take(values, order, axis=1))

    def keys(self) -> list[SeriesKey]:
        """Name every series that has a value, by node and stream, in the order in which they came."""
        return [
            SeriesKey(node_id, name, series)
            for (node_id, name), stream in sorted(self._streams.items(), key=lambda item: item[0])
            for series, row in stream.rows.items()
            if stream.cells["count"][row].any()
        ]

    def holes(self, node_id: str, stream: str) -> list[Hole]:
        """Return the times without samples of a stream; of a machine, which is always there, of all of the span."""
        found = self._streams.get((node_id, stream))
        if found is None:
            return []
        time = found.time
        ends = ((self.start, time.first_t), (time.last_t, self.end)) if stream == HOST else ()
        return time.holes + [
            Hole(until - after, after, until, 0, 0, 0)
            for after, until in ends
            if 0 < HOLE_FACTOR * time.typical_s < until - after
        ]

    def of(self, key: SeriesKey) -> Binned:
        """Return one series over time, one of `keys`."""
        stream = self._streams[key.node_id, key.stream]
        cells = stream.cells[stream.rows[key.series]]
        index = np.flatnonzero(cells["count"])
        cells = cells[index]
        count = cells["count"].astype(np.int64)
        t, mean = self.start + cells["offset"] / count, cells["total"] / count
        return Binned(t, mean, cells["low"], cells["high"], count, stream.gaps(index, t))


def _too_soon(mono: Floats) -> NDArray[np.bool_]:
    """Tell which samples come right after another, as the last one of a job does."""
    apart, soon = np.diff(mono), np.zeros(len(mono), dtype=np.bool_)
    if len(apart) and np.min(apart) < _TOO_SOON * np.max(apart):
        soon[1:] = apart < _TOO_SOON * usual_distance(apart)
    return soon
