"""What there is of every series, in one pass over a recording: how many values, their range, mean and increase."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fedmon.common.metrics.sample import is_user_stream
from fedmon.report.block import Block
from fedmon.report.covered_time import ClockStep, CoveredTime, Hole
from fedmon.report.running_totals import RunningTotals


class SeriesTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One series of one stream: ``values`` of them, and what they say; times are Unix seconds.

    ``mean`` is weighted by time: a value stands for the time since the reading before it, and holes stand for nothing.
    ``seconds`` is the time that the mean covers. ``increase`` is how much a counter grew within ``grown_s`` seconds,
    holes included, by perf's own clock for its counts, but for what it lost at ``resets``; None of what is no counter,
    and of a single reading.
    ``low_share`` is the share of the time in which the value lay below the limit under which its metric counts as idle
    (IDLE_BELOW); None of others.
    """

    series: str
    values: int
    first: float
    first_t: float
    last: float
    last_t: float
    low: float
    low_t: float
    high: float
    high_t: float
    mean: float
    seconds: float
    increase: float | None = None
    resets: int = 0
    low_share: float | None = None
    grown_s: float = 0.0

    @property
    def per_second(self) -> float | None:
        """How much a counter grew a second on average; None of what is no counter, and of a single value."""
        return None if self.increase is None or self.grown_s <= 0 else self.increase / self.grown_s


class StreamTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of one node, all of its boots together.

    ``seconds`` is the time that its samples cover, without holes; ``interval_s`` the mean distance of two samples in
    that time, None of fewer than two. ``missing`` counts numbers that lie between its samples and are not there.
    ``holes`` are the largest ones, ``hole_count`` and ``hole_seconds`` tell of all. ``empty`` names series that have
    a column and no value.
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
    empty: tuple[str, ...]

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
        if not len(block.t):
            return
        key = (block.node_id, block.stream)
        if key not in self._streams:
            # A program reports its values when it likes, so nothing is missing between two of them.
            self._streams[key] = CoveredTime(has_pace=not is_user_stream(block.stream)), RunningTotals()
        time, running = self._streams[key]
        is_new_boot = time.begins_boot(block)
        covered = time.advance(block)
        if is_new_boot:
            running.begin_boot()
        running.add(block, covered, first_weight_s=time.typical_s or 1.0)

    def streams(self) -> list[StreamTotal]:
        """Return what was added up, by node and stream."""
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
            series={name: SeriesTotal(series=name, **found) for name, found in running.results()},
            empty=tuple(running.empty()),
        )
