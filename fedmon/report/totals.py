"""Totals of every series, in one pass over a recording: number of values, their range, mean and increase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import is_counter
from fedmon.report.blocks import NEIGHBOURS, Block, Floats, usual_distance
from fedmon.report.rates import PERF_CLOCK, is_by_perf_clock

SPREAD = frozenset({"job_cpus_busy", "gpu_utilization_ratio"})
"""Metrics of which not only the mean matters, but for how long they lay at which value."""
_LEVELS_OF_ONE = 20
"""Values are rounded down to a twentieth of one."""

_NUMBERS = ("weight", "sum", "low", "high", "first", "first_t", "last", "last_t", "covered", "moment", "increase",
            "grown_s")  # fmt: skip
_RUNNING = np.dtype(
    [("count", np.int64), ("is_counter", bool), ("is_by_perf", bool), *((one, float) for one in _NUMBERS)]
)
"""The totals of one series so far."""

HOLE_FACTOR = 2.5
"""Ratio to the usual distance from which two samples have a hole between them; a late tick is none."""
CLOCK_STEP_S = 0.5
"""Wall and monotonic clock apart by so much more from one sample to the next: the wall clock was set."""
TICKS_SKIPPED = "agent_ticks_missed_total"
_MOST = 64


class SeriesTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One series of one stream: the number of ``values``, and their statistics; times are Unix seconds.

    ``mean`` is weighted by time: a value stands for the time since the reading before it, and holes stand for nothing.
    ``increase`` is how much a counter grew within ``grown_s`` seconds, holes included, by perf's own clock for its
    counts, without growth that restarts hid; None for other kinds, and for a single reading.
    ``levels`` are values with the share of the time that they held, in order, of some metrics (SPREAD).
    """

    series: str
    values: int
    first: float
    first_t: float
    last: float
    last_t: float
    low: float
    high: float
    mean: float
    increase: float | None = None
    grown_s: float = 0.0
    levels: tuple[tuple[float, float], ...] = ()

    @property
    def per_second(self) -> float | None:
        """Mean growth of a counter per second; None for other kinds, and for a single value."""
        return None if self.increase is None or self.grown_s <= 0 else self.increase / self.grown_s


class StreamTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of one node, all of its boots together.

    ``seconds`` is the time that its samples cover, without holes; ``interval_s`` the mean distance of two samples in
    that time, None of fewer than two. ``missing`` counts numbers that lie between its samples and are not there.
    ``holes`` are the largest ones, ``hole_count`` and ``hole_seconds`` tell of all.
    """

    node_id: str
    stream: str
    boots: int
    samples: int
    first_t: float
    last_t: float
    seconds: float
    interval_s: float | None
    missing: int
    holes: tuple[Hole, ...]
    hole_count: int
    hole_seconds: float
    clock_steps: tuple[ClockStep, ...]
    series: Mapping[str, SeriesTotal]

    @property
    def elapsed_s(self) -> float:
        """From the first sample to the last; by the monotonic clock where the wall clock was set."""
        return self.seconds + self.hole_seconds if self.clock_steps else self.last_t - self.first_t


class Totals:
    """Adds up blocks, in the order in which Source gives them; bounded memory for each series. For one thread."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], tuple[CoveredTime, RunningTotals]] = {}

    def add(self, block: Block) -> None:
        """Take the next block."""
        key = (block.node_id, block.stream)
        if key not in self._streams:
            # A program reports its values when it likes, so nothing is missing between two of them.
            self._streams[key] = CoveredTime(has_pace=not is_user_stream(block.stream)), RunningTotals()
        time, running = self._streams[key]
        if block.boot != time.boot:
            running.begin_boot()
        covered = time.advance(block)
        running.add(block, covered, first_weight_s=time.typical_s or 1.0)

    def streams(self) -> list[StreamTotal]:
        """Return the totals, by node and stream."""
        return [self._total(*key) for key in sorted(self._streams)]

    def _total(self, node_id: str, stream: str) -> StreamTotal:
        time, running = self._streams[node_id, stream]
        return StreamTotal(
            node_id=node_id,
            stream=stream,
            boots=time.boots,
            samples=time.samples,
            first_t=time.first_t,
            last_t=time.last_t,
            seconds=time.seconds,
            interval_s=time.seconds / time.steps if time.steps else None,
            missing=time.missing,
            holes=tuple(time.holes),
            hole_count=time.hole_count,
            hole_seconds=time.hole_seconds,
            clock_steps=tuple(time.clock_steps),
            series={total.series: total for total in running.results()},
        )


class Hole(NamedTuple):
    """A time without samples: from Unix time ``after_t`` to ``until_t``; ``missing`` counts the sample numbers.

    ``until_seq`` is the number of the sample after it, in this boot, which may begin with it.
    """

    seconds: float
    after_t: float
    until_t: float
    missing: int
    until_seq: int
    boot: int


class ClockStep(NamedTuple):
    """The wall clock was set ``by_s`` seconds forward, or back if negative, shortly before Unix time ``t``."""

    t: float
    by_s: float


class CoveredTime:
    """Follows the samples of one stream; ``has_pace`` is False if they come at any time."""

    def __init__(self, *, has_pace: bool = True) -> None:
        self._has_pace = has_pace
        self.typical_s = 0.0
        self.boots = self.samples = self.steps = self.missing = self.hole_count = 0
        self.first_t = self.last_t = self.seconds = self.hole_seconds = 0.0
        self.clock_steps: list[ClockStep] = []
        self.holes: list[Hole] = []
        """The largest holes, the largest first."""
        self.boot: int | None = None
        self._last = (0.0, 0.0, 0)
        self._tail = np.empty(0)
        self._skipped = np.nan
        self._has_ended = False
        """Of a job without processes nothing is missing until it begins again."""

    def advance(self, block: Block) -> Floats:
        """Return the covered time up to each sample of the next block, in seconds since the first of the stream."""
        is_first = block.boot != self.boot
        if is_first:
            away_s = float(block.t[0]) - self.last_t
            if self.samples and not self._has_ended and 0 < HOLE_FACTOR * self.typical_s < away_s:
                self._note(Hole(away_s, self.last_t, float(block.t[0]), 0, block.seq, block.boot))
            self.boot, self.boots = block.boot, self.boots + 1
            self._last = (float(block.t[0]), float(block.mono[0]), block.seq - 1)
            self.first_t = min(self.first_t, float(block.t[0])) if self.samples else float(block.t[0])
        t, mono, seq = self._last
        elapsed = np.maximum(np.diff(block.mono, prepend=mono), 0.0)
        drift = np.diff(block.t, prepend=t) - elapsed
        for at in np.flatnonzero(np.abs(drift) > CLOCK_STEP_S)[: _MOST - len(self.clock_steps)]:
            self.clock_steps.append(ClockStep(float(block.t[at]), float(drift[at])))
        missing = block.seq - seq - 1
        self.missing += missing
        steps = elapsed[1:] if is_first else elapsed
        if self._has_pace and len(steps):
            elapsed = self._without_holes(block, elapsed, steps, missing, t)
        self._last = (float(block.t[-1]), float(block.mono[-1]), block.last_seq)
        self._has_ended = bool(block.columns.get("job_processes", (1,))[-1] == 0)
        self.samples += len(block.t)
        self.steps += len(steps)
        self.last_t = max(self.last_t, float(block.t.max()))
        self.first_t = min(self.first_t, float(block.t.min()))
        covered: Floats = np.cumsum(elapsed) + self.seconds
        self.seconds = float(covered[-1])
        return covered

    def _without_holes(self, block: Block, elapsed: Floats, steps: Floats, missing: int, before_t: float) -> Floats:
        recent = np.concatenate([self._tail, steps])
        usual = np.maximum(usual_distance(recent)[-len(steps) :], 1e-3)
        usual = np.pad(usual, (len(elapsed) - len(steps), 0), mode="edge")
        self._tail, self.typical_s = recent[1 - NEIGHBOURS :], float(np.median(recent))
        is_hole = elapsed > HOLE_FACTOR * usual
        if (skipped := block.columns.get(TICKS_SKIPPED)) is not None:
            # The node says which ticks it left out: any other long distance is its pace, which leases change.
            is_hole &= np.diff(skipped, prepend=self._skipped) > 0
            self._skipped = float(skipped[-1])
        if missing:
            is_hole[0] = elapsed[0] > usual[0]
        if not is_hole.any():
            return elapsed
        for at in np.flatnonzero(is_hole):
            after_t = float(block.t[at - 1]) if at else before_t
            # Of a hole the usual distance is kept: the sample after it stands for the time just before it.
            self._note(Hole(float(elapsed[at] - usual[at]), after_t, float(block.t[at]), missing if at == 0 else 0,
                            block.seq + int(at), block.boot))  # fmt: skip
        return np.where(is_hole, usual, elapsed)

    def _note(self, hole: Hole) -> None:
        self.hole_count += 1
        self.hole_seconds += hole.seconds
        self.holes = sorted((*self.holes, hole), reverse=True)[:_MOST]


class Moments(NamedTuple):
    """When samples were taken: wall clock, monotonic clock, covered time, which has no holes, and the clock of perf."""

    t: Floats
    mono: Floats
    covered: Floats
    perf: Floats


class RunningTotals:
    """Adds up the series of one stream; see SeriesTotal for the result."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._of = np.zeros(0, dtype=_RUNNING)
        self._levels: dict[int, Counter[float]] = {}
        self._last_names: tuple[str, ...] = ()
        self._last_places: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def begin_boot(self) -> None:
        """Restart counters: their growth since the last reading is unknown."""
        self._of["covered"] = np.nan

    def add(self, block: Block, covered: Floats, *, first_weight_s: float) -> None:
        """Add a block, with the covered time up to each sample; a first value stands for ``first_weight_s``."""
        if not block.columns:
            return
        places, values = self._places_of(tuple(block.columns)), np.stack([*block.columns.values()])
        moments = Moments(block.t, block.mono, covered, block.columns.get(PERF_CLOCK, block.mono))
        for rows, columns in _patterns(values):
            known = Moments(*(each[columns] for each in moments))
            self._add(places[rows], values[rows][:, columns], known, first_weight_s)

    def results(self) -> Iterator[SeriesTotal]:
        """Return the total of each series with a value, in the order of appearance."""
        for name, at in self._places.items():
            one = dict(zip(_RUNNING.names or (), self._of[at].item(), strict=True))
            if not one["count"]:
                continue
            yield SeriesTotal(
                series=name,
                values=one["count"],
                **{field: one[field] for field in ("first", "first_t", "last", "last_t", "low", "high", "grown_s")},
                # Rounding in a sum of thousands must not put the mean outside of the values.
                mean=min(max(one["sum"] / one["weight"], one["low"]), one["high"]),
                increase=one["increase"] if one["is_counter"] and one["grown_s"] > 0 else None,
                levels=_shares(self._levels[at]) if at in self._levels else (),
            )

    def _places_of(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        if names == self._last_names:
            return self._last_places
        new = [name for name in names if name not in self._places]
        for name in new:
            if metric_name(name) in SPREAD:
                self._levels[len(self._places)] = Counter()
            self._places[name] = len(self._places)
        made = np.zeros(len(new), dtype=_RUNNING)
        made["low"], made["high"], made["covered"] = np.inf, -np.inf, np.nan
        made["is_counter"] = [is_counter(name) for name in new]
        made["is_by_perf"] = [is_by_perf_clock(name) for name in new]
        self._of = np.concatenate([self._of, made])
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
        of["low"][at] = np.minimum(of["low"][at], values.min(axis=1))
        of["high"][at] = np.maximum(of["high"][at], values.max(axis=1))
        self._grow(at, values, moments, was_read)
        for row, place in enumerate(at.tolist()):
            if place in self._levels:
                levels, places = np.unique(np.floor(values[row] * _LEVELS_OF_ONE), return_inverse=True)
                held = np.bincount(places, np.concatenate([first_weights[row : row + 1], weights]))
                self._levels[place].update(dict(zip((levels / _LEVELS_OF_ONE).tolist(), held.tolist(), strict=True)))
        fresh = at[of["count"][at] == 0]
        of["first"][fresh], of["first_t"][fresh] = values[of["count"][at] == 0, 0], t[0]
        of["count"][at] += values.shape[1]
        of["last"][at], of["last_t"][at], of["covered"][at] = values[:, -1], t[-1], covered[-1]

    def _grow(self, at: NDArray[np.intp], values: Floats, moments: Moments, was_read: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(self._of["is_counter"][at])
        if not len(rows):
            return
        of, counters, places = self._of, values[rows], at[rows]
        before = np.where(was_read[rows], of["last"][places], counters[:, 0])
        grown = np.diff(counters, prepend=before[:, None])
        is_reset = grown < 0
        if is_reset.any():
            grown = np.where(is_reset, 0.0, grown)
            of["increase"][places] += grown.sum(axis=1)
        else:  # exact where sums of small differences would not be
            of["increase"][places] += counters[:, -1] - before
        # A counter also grows while nobody looks, so holes count here.
        by_perf, (mono, perf) = of["is_by_perf"][places], (moments.mono, moments.perf)
        since = np.where(was_read[rows], of["moment"][places], np.where(by_perf, perf[0], mono[0]))
        of["moment"][places] = np.where(by_perf, perf[-1], mono[-1])
        of["grown_s"][places] += of["moment"][places] - since


def _shares(levels: Mapping[float, float]) -> tuple[tuple[float, float], ...]:
    whole = sum(levels.values()) or 1.0
    return tuple((value, held / whole) for value, held in sorted(levels.items()))


def _patterns(values: Floats) -> Iterator[tuple[Any, Any]]:
    """Return the rows that have values in the same columns, with these columns, as indices.

    Series that are read equally often share a pattern, so there are few.
    """
    known = ~np.isnan(values)
    if known.all():
        yield slice(None), slice(None)
        return
    patterns: dict[bytes, list[int]] = {}
    for row, packed in enumerate(np.packbits(known, axis=1)):
        patterns.setdefault(packed.tobytes(), []).append(row)
    for rows in patterns.values():
        columns = np.flatnonzero(known[rows[0]])
        if len(columns):
            yield rows, columns
