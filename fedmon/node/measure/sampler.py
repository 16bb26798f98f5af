"""One loop that reads every collector of every stream on a fixed grid."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

import msgspec

from fedmon.common.metrics.sample import Instant, Sample
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Why

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.2
"""No two samples are asked for closer together than this."""
COST_BUDGET_RATIO = 0.05
MAX_STRETCH = 64
STUCK_AFTER_S = 10.0
"""A collector that has been read for so long without an end is named, with what it measures."""

COLLECT_SECONDS = "agent_collect_seconds"
COLLECT_CPU = "agent_collect_cpu_seconds_total"
INTERVAL = "agent_interval_seconds"
TICKS_MISSED = "agent_ticks_missed_total"
COLLECTOR_SECONDS = "agent_collector_seconds"

_PATIENCE_S = 1.0
_AVERAGED_TICKS, _CALM_TICKS = 8.0, 20
_EARLY_S = 0.1
"""A lane is due this long before its time is over, since no two ticks are late by just the same."""


class Sampler:
    """Reads all collectors at each tick of a grid, on its own thread, and hands the samples over by stream.

    All collectors of a tick, whatever their stream, share one wall and one monotonic timestamp. A tick that comes too
    late is left out and counted, never replayed. ``on_sample(stream, sample)`` runs on the sampler's thread and only
    hands over. When sampling takes more than ``cost_budget_ratio`` of a core, ticks are taken further apart.
    ``asked_interval_s`` is the interval that was asked for, ``ticks`` counts the ticks that were taken, and
    ``overruns`` how often sampling came too late for its next tick. Every method is safe from any thread. ``start``
    and ``stop`` are also the context manager.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[Collector]],
        *,
        interval_s: float,
        on_sample: Callable[[str, Sample], object],
        cost_budget_ratio: float = COST_BUDGET_RATIO,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._readers = {stream: StreamReader(collectors) for stream, collectors in streams.items()}
        self._on_sample = on_sample
        self._monotonic, self._wall, self._cpu = monotonic, wall, cpu
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self.asked_interval_s = _checked(interval_s)
        self._cost = SamplingCost(budget_ratio=cost_budget_ratio)
        self._stopping = self._is_last_wanted = self._is_early_wanted = False
        self._thread: threading.Thread | None = None
        self.ticks = self.overruns = self._missed = 0
        self._collect_s: float | None = None
        self._unclosed: list[StreamReader] = []
        self._is_stuck = False

    def start(self) -> None:
        """Probe the collectors, then start the thread; its first tick is now."""
        for reader in self._readers.values():
            reader.probe()
        # A collector that never returns, against its promise, must not keep the process from ending after `stop`.
        self._thread = threading.Thread(target=self._run, name="fedmon-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0, *, last_sample: bool = False) -> None:
        """End the thread, at once unless a collector is being read, and close the collectors.

        A collector that never returns is left behind with the thread. With ``last_sample`` one more sample is taken
        before, beside the grid.
        """
        with self._changed:
            self._stopping, self._is_last_wanted = True, last_sample
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("the sampler did not end within %.1f s: a collector is stuck", timeout_s)
        for reader in (*self._readers.values(), *self._unclosed):
            reader.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sample_now(self) -> None:
        """Have one sample taken beside the grid, as soon as the thread gets to it."""
        with self._changed:
            self._is_early_wanted = True
            self._changed.notify_all()

    # --- streams -----------------------------------------------------------------------------------------------------

    def add_stream(self, stream: str, collectors: Sequence[Collector]) -> None:
        """Read these collectors, too, from the next tick on; close those that the stream had before.

        After `stop` they are closed at once.
        """
        reader = StreamReader(collectors)
        if self._thread is not None and not self._stopping:
            reader.probe()
        with self._changed:
            is_late = self._stopping
            replaced = reader if is_late else self._readers.get(stream)
            self._readers = self._readers if is_late else {**self._readers, stream: reader}
        if replaced is not None:
            self._close(replaced)

    def remove_stream(self, stream: str) -> None:
        """Stop reading a stream, if there is one of this name."""
        with self._changed:
            removed = self._readers.get(stream)
            self._readers = {name: reader for name, reader in self._readers.items() if name != stream}
        if removed is not None:
            self._close(removed)

    @property
    def streams(self) -> list[str]:
        """Name the streams that are read."""
        return list(self._readers)

    # --- pace --------------------------------------------------------------------------------------------------------

    @property
    def interval_s(self) -> float:
        """Return the present distance of two ticks: what was asked for, or more when that costs too much."""
        return self.asked_interval_s * self._cost.stretch

    def set_interval(self, interval_s: float) -> None:
        """Sample at another interval at once: the next tick follows the last one by it, or is now.

        Raises ValueError when it is below 0.2 s.
        """
        with self._changed:
            self.asked_interval_s = _checked(interval_s)
            self._changed.notify_all()

    def set_cost_budget(self, ratio: float) -> None:
        """Keep to another share of a core from the next tick on."""
        self._cost.budget_ratio = ratio

    # --- reports -----------------------------------------------------------------------------------------------------

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason why not.

        Says what was found at the start, and what is wrong at present; empty before the start.
        """
        report: dict[str, str | None] = {}
        for reader in self._readers.values():
            for name, reason in reader.capabilities().items():
                # A metric is measured if one stream measures it, though another cannot.
                report[name] = None if reason is None or report.get(name, reason) is None else reason
        return report

    def metrics(self) -> list[str]:
        """Return the names of the metrics that are measured."""
        return sorted({name for name, reason in self.capabilities().items() if reason is None})

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics of the sampler itself, for AgentCollector."""
        return {
            COLLECT_SECONDS: self._collect_s,
            COLLECT_CPU: round(self._cost.cpu_s, 6),
            INTERVAL: self.interval_s,
            TICKS_MISSED: self._missed,
        }

    def collector_counts(self) -> dict[str, float | None]:
        """Return how long the last reading of each collector took, as series of ``agent_collector_seconds``."""
        return {
            series(COLLECTOR_SECONDS, stream=stream, collector=watch.name): (
                None if watch.seconds is None else round(watch.seconds, 6)
            )
            for stream, reader in self._readers.items()
            for watch in reader.watches
        }

    def sample(self) -> dict[str, Sample]:
        """Read every collector that is due, now, by stream; for the thread, and for callers without a grid."""
        with self._reading:
            now = Instant(t=self._wall(), mono=self._monotonic())
            samples = {stream: reader.read(now) for stream, reader in self._readers.items()}
            self._collect_s = round(self._monotonic() - now.mono, 6)
            self.ticks += 1
            return samples

    def check_stuck(self, stuck_after_s: float = STUCK_AFTER_S) -> None:
        """Log once when a collector does not return, since all others wait for it; called about once a second."""
        watches = (watch for reader in (*self._readers.values(), *self._unclosed) for watch in reader.watches)
        stuck = next((f"{watch.name}: {why}" for watch in watches if (why := watch.stuck(stuck_after_s))), "")
        if stuck and not self._is_stuck:
            logger.error("nothing is measured, since one collector does not come back: %s", stuck)
        self._is_stuck = bool(stuck)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        grid, number = TickGrid(start=self._monotonic(), interval_s=self.interval_s), 0
        while self._wait_for(grid, number):
            if grid.interval_s != self.interval_s:
                grid = TickGrid(start=self._restart(grid, number), interval_s=self.interval_s)
                number = 0
                continue
            is_early = self._is_early_wanted and grid.due(number) > self._monotonic()
            self._is_early_wanted = False
            before = self._cpu()
            self._take()
            self._cost.account(self._cpu() - before, grid.interval_s)
            while self._unclosed:
                self._unclosed.pop().close()
            if is_early:
                continue
            number, missed = grid.after(number, self._monotonic())
            if missed:
                self.overruns += 1
                self._missed += missed
        if self._is_last_wanted:
            self._take()

    def _take(self) -> None:
        for stream, sample in self.sample().items():
            if not sample.values:
                continue
            try:
                self._on_sample(stream, sample)
            except Exception:  # the callback is another part's; the grid goes on
                logger.exception("a sample of stream %s was lost: its receiver failed", stream)

    def _wait_for(self, grid: TickGrid, number: int) -> bool:
        """Wait for a tick, or until the interval changes; False when it is time to stop."""
        with self._changed:
            while not self._stopping and self.interval_s == grid.interval_s:
                left_s = grid.due(number) - self._monotonic()
                if left_s <= 0 or self._is_early_wanted:
                    break
                self._changed.wait(left_s)
            return not self._stopping

    def _restart(self, grid: TickGrid, number: int) -> float:
        """Return the first instant of the grid that replaces ``grid``, whose next tick was ``number``."""
        now = self._monotonic()
        return now if number == 0 else max(now, grid.due(number - 1) + self.interval_s)

    def _close(self, reader: StreamReader) -> None:
        """Close a reader between two ticks; one whose tick does not end is left to the thread, or to `stop`."""
        if threading.current_thread() is self._thread:
            reader.close()
        elif self._reading.acquire(timeout=_PATIENCE_S):
            try:
                reader.close()
            finally:
                self._reading.release()
        else:
            self._unclosed.append(reader)


def _checked(interval_s: float) -> float:
    if not interval_s >= MIN_INTERVAL_S:
        raise ValueError(f"a sampling interval of {interval_s} s is not possible: use {MIN_INTERVAL_S} s or more")
    return interval_s


class TickGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The instants ``start + n * interval_s`` on the monotonic clock, ``n`` from 0, so that ticks cannot drift."""

    start: float
    interval_s: float

    def due(self, number: int) -> float:
        """Return the instant of one tick; computed from the start, so that rounding does not add up."""
        return self.start + number * self.interval_s

    def after(self, number: int, now: float) -> tuple[int, int]:
        """Return the tick that follows tick ``number`` at ``now``, and how many ticks lie behind and are left out."""
        due = max(number + 1, math.ceil((now - self.start) / self.interval_s))
        if self.due(due) < now:  # the division rounded down
            due += 1
        return due, due - number - 1


class SamplingCost:
    """Compares the CPU time of sampling with a budget; for the sampler's thread, except for ``stretch``.

    The share of a core is averaged over about eight ticks. Above the budget ``stretch``, by which the interval is
    multiplied, is doubled, at most to 64; if the share would stay below half of the budget at half the interval, for
    20 ticks, it is halved again. ``cpu_s`` is the sum of all ticks.
    """

    def __init__(self, *, budget_ratio: float) -> None:
        self.budget_ratio = budget_ratio
        self.stretch = 1
        self.cpu_s = 0.0
        # From 0, so that the first tick, which opens every file, is one among many, too.
        self._share = 0.0
        self._calm = 0

    def account(self, cpu_s: float, interval_s: float) -> None:
        """Add the CPU seconds of one tick, with the interval as it is stretched."""
        self.cpu_s += cpu_s
        self._share += (cpu_s / interval_s - self._share) / _AVERAGED_TICKS
        self._calm = self._calm + 1 if self._share * 4 < self.budget_ratio else 0
        if self._share > self.budget_ratio and self.stretch < MAX_STRETCH:
            self._change(self.stretch * 2)
        elif self._calm >= _CALM_TICKS and self.stretch > 1:
            self._change(self.stretch // 2)

    def _change(self, stretch: int) -> None:
        logger.warning(
            "sampling takes %.1f %% of a core and its budget is %.1f %%: samples are now %d times as far apart",
            self._share * 100, self.budget_ratio * 100, stretch,
        )  # fmt: skip
        # The average of another interval starts anew, or one costly tick would count more than once.
        self.stretch, self._share, self._calm = stretch, 0.0, 0


class StreamReader:
    """Reads the collectors of one stream; ``probe``, ``read`` and ``close`` belong to one thread at a time.

    No collector can stop the others. If one never returns to the thread that reads it, ``close`` from another thread
    leaves it alone.
    """

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self.watches = [_Watch(collector) for collector in collectors]

    def probe(self) -> None:
        """Ask every collector what it measures."""
        for watch in self.watches:
            watch.probe()

    def read(self, now: Instant) -> Sample:
        """Read every collector that is due."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for watch in self.watches:
            if watch.is_fast or watch.is_due(now):
                watch.collect(now, values, reasons)
        if None in values.values():
            for key, value in values.items():
                if value is None and key not in reasons:
                    reasons[key] = f"{Why.FAILED.value}: the collector gave no value and no reason"
        return Sample(t=now.t, mono=now.mono, values=values, reasons=reasons)

    def close(self) -> None:
        """Let collectors release what they hold, except one that is being read."""
        for watch in self.watches:
            watch.close()

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason why not."""
        return {name: reason for watch in self.watches for name, reason in watch.capabilities().items()}


class _Watch:
    """One collector: when it is due, what it gave last, and what is wrong with it."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lane_s = collector.lane.value
        self.is_fast = collector.lane is Lane.FAST
        self._learns = hasattr(type(collector), "probe_changed")
        self._start: float | None = None
        self._next = 0.0
        self._gave: Collection[str] = ()
        self._problem = ""
        self._probed: dict[str, str | None] = {}
        self.name = collector.name
        self.seconds: float | None = None
        self._begun: float | None = None

    def stuck(self, after_s: float) -> str | None:
        """Return the reason of a collector that has been read for too long, else None."""
        begun = self._begun
        if begun is None or (waited_s := time.perf_counter() - begun) < after_s:
            return None
        return f"{Why.FAILED.value}: no answer for {waited_s:.0f} s"

    def probe(self) -> None:
        try:
            self._probed = dict(self._collector.probe())
        except Exception as error:  # noqa: BLE001 - a collector must not keep the others from starting
            self._probed = {self.name: _reason(error)}
            logger.warning("collector %s cannot be probed: %s", self.name, _reason(error))

    def is_due(self, now: Instant) -> bool:
        """Tell whether this is a tick of the collector's lane; the first one always is."""
        if self._start is None:
            self._start = now.mono
        if now.mono < self._next:
            return False
        passed = (now.mono - self._start) // self._lane_s + 1
        self._next = self._start + passed * self._lane_s - _EARLY_S
        if self._next <= now.mono:  # this tick came within the early part
            self._next += self._lane_s
        return True

    def collect(self, now: Instant, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        """Add one reading; when it fails, None and the reason for each series of the previous one."""
        self._begun = before = time.perf_counter()
        try:
            reading = self._collector.collect(now)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            level = logging.DEBUG if self._problem else logging.WARNING
            self._problem = _reason(error)
            logger.log(level, "collector %s failed: %s", self.name, self._problem)
            values.update(dict.fromkeys(self._gave))
            reasons.update(dict.fromkeys(self._gave, self._problem))
            return
        finally:
            self.seconds, self._begun = time.perf_counter() - before, None
        if self._problem:
            logger.info("collector %s works again", self.name)
            self._problem = ""
        if self._learns and getattr(self._collector, "probe_changed", False):
            self.probe()
        self._gave = reading.values
        values.update(reading.values)
        if reading.reasons:
            reasons.update(reading.reasons)

    def capabilities(self) -> dict[str, str | None]:
        """Return what the collector said of itself, with its present problem for what it measured before."""
        problem = self.stuck(STUCK_AFTER_S) or self._problem
        return {name: reason or problem or None for name, reason in self._probed.items()}

    def close(self) -> None:
        close = getattr(self._collector, "close", None)
        if close is not None and self._begun is None:
            with contextlib.suppress(Exception):
                close()


def _reason(error: Exception) -> str:
    if isinstance(error, CollectorUnavailableError):
        return error.reason
    return f"{Why.FAILED.value}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
