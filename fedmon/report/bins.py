"""Recordings over time, in a few hundred steps: the numbers behind plots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.table import is_counter
from fedmon.report.blocks import Block, Floats, usual_distance
from fedmon.report.rates import Rates
from fedmon.report.training import Trainings, is_kept_exactly

COUNT = 480
"""Steps in time: about as many as a chart has pixels where two stand side by side."""
_TOO_SOON = 0.25
"""Readings closer than this part of the usual distance have no rate: the last sample of a job comes right after
another, and in so short a time the coarse steps of a counter look like a peak."""
_GAP = 1.75


class SeriesKey(NamedTuple):
    """One series of one stream of one node."""

    node_id: str
    stream: str
    series: str


class Binned(NamedTuple):
    """One series over time: its values in each step that has any; a counter as its growth per second.

    ``steps`` numbers the steps, ``t`` is the mean Unix time of a step's values, ``counts`` how many there are. All
    arrays are of the same length and have no NaN.
    """

    steps: NDArray[np.int64]
    t: Floats
    mean: Floats
    low: Floats
    high: Floats
    counts: NDArray[np.int64]

    @property
    def is_dense(self) -> bool:
        """Tell whether most steps have several values, so that a line through their means hides something."""
        return len(self.counts) > 0 and float(np.mean(self.counts)) >= 2

    def gaps(self) -> NDArray[np.bool_]:
        """Tell for each two neighbouring steps whether values are missing between them.

        A gap is clearly longer than the distance of the values around it, as a node may change its interval.
        """
        apart = np.diff(self.steps).astype(np.float64) if self.is_dense else np.diff(self.t)
        if len(apart) < 2 or np.max(apart) <= _GAP * np.min(apart):
            return np.zeros(len(apart), dtype=np.bool_)
        return np.asarray(apart > _GAP * usual_distance(apart))


class _Stream:
    """The sums of all series of one stream; a row a series, a column a step."""

    def __init__(self, count: int) -> None:
        self.rows: dict[str, int] = {}
        self.usual_s = 0.0
        self.total = np.zeros((0, count))
        self.offset = np.zeros((0, count))
        self.low = np.zeros((0, count))
        self.high = np.zeros((0, count))
        self.count = np.zeros((0, count), dtype=np.uint32)

    def rows_of(self, names: list[str]) -> NDArray[np.int64]:
        """Return the row of each series; makes room for new ones."""
        found = [self.rows.setdefault(name, len(self.rows)) for name in names]
        more = len(self.rows) - len(self.total)
        if more > 0:
            count = self.total.shape[1]
            self.total = np.concatenate([self.total, np.zeros((more, count))])
            self.offset = np.concatenate([self.offset, np.zeros((more, count))])
            self.low = np.concatenate([self.low, np.full((more, count), np.inf)])
            self.high = np.concatenate([self.high, np.full((more, count), -np.inf)])
            self.count = np.concatenate([self.count, np.zeros((more, count), dtype=np.uint32)])
        return np.array(found, dtype=np.int64)


class Bins:
    """A consumer of blocks that keeps mean, lowest and highest value of each series in ``count`` steps of ``span``.

    ``span`` is the time looked at, in Unix seconds, as `Source.span` gives it; samples outside are left out. ``wanted``
    says which series are kept. Values that are not finite count as missing. ``machines`` names those that several nodes
    share, by the id of the node whose samples count. Values that ``trainings`` keep exactly are not kept twice.
    """

    def __init__(
        self,
        span: tuple[float, float] | None,
        *,
        count: int = COUNT,
        wanted: Callable[[str], bool] = lambda _name: True,
        machines: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.machines, self.trainings = machines, Trainings()
        self.start, self.end = span or (0.0, 0.0)
        self.count = count
        self.width_s = max(self.end - self.start, 1e-3) / count
        self._wants = functools.cache(wanted)
        self._rates = Rates()
        self._streams: dict[tuple[str, str], _Stream] = {}

    def add(self, block: Block) -> None:
        """Take samples in; blocks of a stream come in order."""
        self.trainings.add(block)
        names = [name for name in block.columns if self._wants(name) and not is_kept_exactly(name, block.columns)]
        stream = self._streams.setdefault((block.node_id, block.stream), _Stream(self.count))
        if not names or not len(block.t):
            return
        values = np.empty((len(names), len(block.t)))
        if len(block.t) > 2 or not stream.usual_s:
            stream.usual_s = float(np.median(np.diff(block.mono))) if len(block.t) > 1 else 0.0
        for row, name in enumerate(names):
            values[row] = (
                self._rates.of(block, name, shortest_s=_TOO_SOON * stream.usual_s)
                if is_counter(name)
                else block.columns[name]
            )
        offset = block.t - self.start
        steps = np.floor(offset / self.width_s).astype(np.int64)
        steps[block.t == self.end] = self.count - 1
        if not (is_sorted := bool(np.all(steps[1:] >= steps[:-1]))) or steps[0] < 0 or steps[-1] >= self.count:
            chosen = np.flatnonzero((steps >= 0) & (steps < self.count))
            if not is_sorted:
                chosen = chosen[np.argsort(steps[chosen], kind="stable")]
            if not len(chosen):
                return
            steps, offset, values = steps[chosen], offset[chosen], values[:, chosen]
        begins = np.flatnonzero(np.diff(steps, prepend=-1))
        _add(stream, stream.rows_of(names)[:, None], steps[begins][None, :], begins, offset, values)

    def keys(self) -> list[SeriesKey]:
        """Name every series that has a value, by node and stream, in the order in which they came."""
        return [
            SeriesKey(node_id, name, series)
            for (node_id, name), stream in sorted(self._streams.items(), key=lambda item: item[0])
            for series, row in stream.rows.items()
            if stream.count[row].any()
        ]

    def of(self, key: SeriesKey) -> Binned:
        """Return one series over time, one of `keys`."""
        stream = self._streams[key.node_id, key.stream]
        row = stream.rows[key.series]
        index = np.flatnonzero(stream.count[row])
        count = stream.count[row, index].astype(np.int64)
        with np.errstate(over="ignore"):
            return Binned(
                index,
                self.start + stream.offset[row, index] / count,
                stream.total[row, index] / count,
                stream.low[row, index],
                stream.high[row, index],
                count,
            )


def _add(
    stream: _Stream,
    rows: NDArray[np.int64],
    steps: NDArray[np.int64],
    begins: NDArray[np.int64],
    offset: Floats,
    values: Floats,
) -> None:
    """Add values, a row a series, in steps that begin at ``begins``, to a stream."""
    lengths = np.diff(begins, append=len(offset))
    is_known = np.isfinite(values)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_known.all():
            stream.count[rows, steps] += lengths.astype(np.uint32)
            stream.offset[rows, steps] += np.add.reduceat(offset, begins)
            stream.total[rows, steps] += np.add.reduceat(values, begins, axis=1)
            low, high = (part.reduceat(values, begins, axis=1) for part in (np.minimum, np.maximum))
        else:
            stream.count[rows, steps] += np.add.reduceat(is_known, begins, axis=1, dtype=np.uint32)
            stream.offset[rows, steps] += np.add.reduceat(np.where(is_known, offset, 0.0), begins, axis=1)
            stream.total[rows, steps] += np.add.reduceat(np.where(is_known, values, 0.0), begins, axis=1)
            low = np.minimum.reduceat(np.where(is_known, values, np.inf), begins, axis=1)
            high = np.maximum.reduceat(np.where(is_known, values, -np.inf), begins, axis=1)
    stream.low[rows, steps] = np.minimum(stream.low[rows, steps], low)
    stream.high[rows, steps] = np.maximum(stream.high[rows, steps], high)
