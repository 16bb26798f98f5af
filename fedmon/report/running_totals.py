"""Sums of all series of one stream, as arrays, so that a block costs a few operations and not a few for each series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import is_counter
from fedmon.report.block import Block, Floats
from fedmon.report.rates import PERF_CLOCK, is_by_perf_clock

IDLE_BELOW: Mapping[str, float] = MappingProxyType(
    {"gpu_utilization_ratio": 0.05, "job_gpu_sm_ratio": 0.05, "host_cpu_core_busy_ratio": 0.05}
)
"""Below so much a device counts as idle: a driver's and a monitor's own activity stay under 5 %."""

_AT_ONCE = 500_000
"""So many values are looked at together: 4 MB, which fits a cache and bounds the memory."""
_FIELDS = (
    "count", "weight", "sum", "low", "low_t", "high", "high_t", "first", "first_t", "last", "last_t", "covered",
    "moment", "increase", "grown_s", "resets", "idle_s",
)  # fmt: skip
_START = {"low": np.inf, "high": -np.inf, "covered": np.nan}


class Moments(NamedTuple):
    """When samples were taken: wall clock, monotonic clock, covered time, which has no holes, and the clock of perf."""

    t: Floats
    mono: Floats
    covered: Floats
    perf: Floats


class RunningTotals:
    """Adds up the series of one stream; see SeriesTotal for what comes of it."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._is_counter = self._is_by_perf = np.zeros(0, dtype=bool)
        self._idle_below = np.zeros(0)
        self._of: dict[str, Floats] = {name: np.zeros(0) for name in _FIELDS}
        self._last_names: tuple[str, ...] = ()
        self._last_places: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def begin_boot(self) -> None:
        """Start counters anew: what grew while nobody looked is not known."""
        self._of["covered"].fill(np.nan)

    def add(self, block: Block, covered: Floats, *, first_weight_s: float) -> None:
        """Add a block, with the covered time up to each sample; a first value stands for ``first_weight_s``."""
        names = tuple(block.columns)
        places = self._places_of(names)
        step = max(1, _AT_ONCE // len(block.t))
        for first in range(0, len(names), step):
            values = np.stack([block.columns[name] for name in names[first : first + step]])
            for rows, columns in _patterns(values):
                chosen = values if rows is None else values[rows]
                at = places[first : first + step] if rows is None else places[first : first + step][rows]
                moments = Moments(block.t, block.mono, covered, block.columns.get(PERF_CLOCK, block.mono))
                if columns is not None:
                    chosen, moments = chosen[:, columns], Moments(*(each[columns] for each in moments))
                self._add(at, chosen, moments, first_weight_s)

    def results(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return what each series with a value came to, in the order in which they came."""
        for name, at in self._places.items():
            one = {field: float(array[at]) for field, array in self._of.items()}
            if not one["count"]:
                continue
            kept = ("first", "first_t", "last", "last_t", "low", "low_t", "high", "high_t")
            yield (
                name,
                {
                    "values": int(one["count"]),
                    **{field: one[field] for field in kept},
                    # Rounding in a sum of thousands must not put the mean outside of the values.
                    "mean": min(max(one["sum"] / one["weight"], one["low"]), one["high"]),
                    "seconds": one["weight"],
                    "increase": one["increase"] if self._is_counter[at] and one["grown_s"] > 0 else None,
                    "grown_s": one["grown_s"],
                    "resets": int(one["resets"]),
                    "low_share": one["idle_s"] / one["weight"] if self._idle_below[at] > 0 else None,
                },
            )

    def empty(self) -> list[str]:
        """Name the series that have a column and no value."""
        return [name for name, at in self._places.items() if not self._of["count"][at]]

    def _places_of(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        if names == self._last_names:
            return self._last_places
        new = [name for name in names if name not in self._places]
        for name in new:
            self._places[name] = len(self._places)
        if new:
            for field, array in self._of.items():
                self._of[field] = np.concatenate([array, np.full(len(new), _START.get(field, 0.0))])
            counters = np.array([is_counter(name) or _ends_in_total(name) for name in new], dtype=bool)
            self._is_counter = np.concatenate([self._is_counter, counters])
            by_perf = np.array([is_by_perf_clock(name) for name in new], dtype=bool)
            self._is_by_perf = np.concatenate([self._is_by_perf, by_perf])
            limits = np.array([IDLE_BELOW.get(metric_name(name), 0.0) for name in new])
            self._idle_below = np.concatenate([self._idle_below, limits])
        self._last_names = names
        self._last_places = np.array([self._places[name] for name in names], dtype=np.intp)
        return self._last_places

    def _add(self, at: NDArray[np.intp], values: Floats, moments: Moments, first_weight_s: float) -> None:
        """Add values that are all there, one row a series."""
        of, t, covered = self._of, moments.t, moments.covered
        was_read = ~np.isnan(of["covered"][at])
        first_weights = np.where(was_read, covered[0] - of["covered"][at], first_weight_s)
        weights = np.diff(covered)
        of["sum"][at] += values[:, 0] * first_weights + values[:, 1:] @ weights
        of["weight"][at] += first_weights + (covered[-1] - covered[0])
        self._note_extreme("low", at, values, t, better=np.less, find=np.argmin)
        self._note_extreme("high", at, values, t, better=np.greater, find=np.argmax)
        self._grow(at, values, moments, was_read)
        idle = self._idle_below[at]
        if idle.any():
            rows = np.flatnonzero(idle)
            below = values[rows] < idle[rows, None]
            of["idle_s"][at[rows]] += below[:, 0] * first_weights[rows] + below[:, 1:] @ weights
        fresh = at[of["count"][at] == 0]
        of["first"][fresh], of["first_t"][fresh] = values[of["count"][at] == 0, 0], t[0]
        of["count"][at] += values.shape[1]
        of["last"][at], of["last_t"][at], of["covered"][at] = values[:, -1], t[-1], covered[-1]

    def _note_extreme(
        self, name: str, at: NDArray[np.intp], values: Floats, t: Floats, *, better: Any, find: Any
    ) -> None:
        places = find(values, axis=1)
        found = values[np.arange(len(values)), places]
        rows = np.flatnonzero(better(found, self._of[name][at]))
        self._of[name][at[rows]] = found[rows]
        self._of[f"{name}_t"][at[rows]] = t[places[rows]]

    def _grow(self, at: NDArray[np.intp], values: Floats, moments: Moments, was_read: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(self._is_counter[at])
        if not len(rows):
            return
        of, counters, places = self._of, values[rows], at[rows]
        before = np.where(was_read[rows], of["last"][places], counters[:, 0])
        grown = np.diff(counters, prepend=before[:, None])
        is_reset = grown < 0
        if is_reset.any():
            of["resets"][places] += is_reset.sum(axis=1)
            grown = np.where(is_reset, 0.0, grown)
            of["increase"][places] += grown.sum(axis=1)
        else:  # exact where sums of small differences would not be
            of["increase"][places] += counters[:, -1] - before
        # A counter also grows while nobody looks, so holes count here.
        by_perf, (mono, perf) = self._is_by_perf[places], (moments.mono, moments.perf)
        since = np.where(was_read[rows], of["moment"][places], np.where(by_perf, perf[0], mono[0]))
        of["moment"][places] = np.where(by_perf, perf[-1], mono[-1])
        of["grown_s"][places] += of["moment"][places] - since


def _patterns(values: Floats) -> Iterator[tuple[NDArray[np.intp] | None, NDArray[np.intp] | None]]:
    """Return the rows that have values in the same columns, with these columns; None stands for all of them.

    Series that are read equally often share a pattern, so there are few.
    """
    known = ~np.isnan(values)
    if known.all():
        yield None, None
        return
    patterns: dict[bytes, list[int]] = {}
    for row, packed in enumerate(np.packbits(known, axis=1)):
        patterns.setdefault(packed.tobytes(), []).append(row)
    for rows in patterns.values():
        columns = np.flatnonzero(known[rows[0]])
        if len(columns):
            yield np.array(rows, dtype=np.intp), columns


def _ends_in_total(name: str) -> bool:
    return metric_name(name).endswith("_total")
