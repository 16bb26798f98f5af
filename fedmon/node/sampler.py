"""One loop that reads every collector on a fixed grid."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Why
from fedmon.node.grid import Grid

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.2
COLLECT_SECONDS = "agent_collect_seconds"
TICKS_MISSED = "agent_ticks_missed_total"


class Sampler:
    """Reads all collectors at each tick of a grid, in a thread of its own, and hands the sample over.

    All collectors of a tick share one wall and one monotonic timestamp. A tick that comes too late is left out and
    counted, never replayed. ``on_sample`` runs on the sampler's thread and only hands over. Every method is safe from
    any thread. ``start`` and ``stop`` are also the context manager.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        *,
        interval_s: float,
        on_sample: Callable[[Sample], None],
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._watches = [_Watch(collector) for collector in collectors]
        self._on_sample = on_sample
        self._monotonic, self._wall = monotonic, wall
        self._changed = threading.Condition()
        self._interval_s = _checked(interval_s)
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._ticks = self._missed = self._overruns = 0
        self._collect_s: float | None = None

    def start(self) -> None:
        """Probe the collectors, then start the thread; its first tick is now."""
        for watch in self._watches:
            watch.probe()
        self._thread = threading.Thread(target=self._run, name="fedmon-sampler")
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; it ends at once unless a collector is being read."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.error("the sampler did not end within %.1f s: a collector is stuck", timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def interval_s(self) -> float:
        """Return the present distance of two ticks."""
        return self._interval_s

    def set_interval(self, interval_s: float) -> None:
        """Sample at another interval at once: the next tick follows the last one by it, or is now.

        Raises ValueError when it is below 0.2 s.
        """
        with self._changed:
            self._interval_s = _checked(interval_s)
            self._changed.notify_all()

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason why not.

        What was found at the start, and what is wrong at present; empty before the start.
        """
        report: dict[str, str | None] = {}
        for watch in self._watches:
            report.update(watch.capabilities())
        return report

    def metrics(self) -> list[str]:
        """Return the names of the metrics that are measured."""
        return sorted({name for name, reason in self.capabilities().items() if reason is None})

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics that the sampler keeps of itself, for AgentCollector."""
        return {COLLECT_SECONDS: self._collect_s, TICKS_MISSED: self._missed}

    @property
    def ticks(self) -> int:
        """Return how many samples were taken."""
        return self._ticks

    @property
    def overruns(self) -> int:
        """Return how often sampling came too late for its next tick; each left out one tick or more."""
        return self._overruns

    def sample(self) -> Sample:
        """Read every collector once, now; called by the thread at each tick, and by who needs no grid."""
        now = Instant(t=self._wall(), mono=self._monotonic())
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for watch in self._watches:
            watch.collect(now, values, reasons)
        self._collect_s = round(self._monotonic() - now.mono, 6)
        self._ticks += 1
        return Sample(t=now.t, mono=now.mono, values=values, reasons=reasons)

    def _run(self) -> None:
        grid, number = Grid(start=self._monotonic(), interval_s=self._interval_s), 0
        while self._wait_for(grid, number):
            if grid.interval_s != self._interval_s:
                grid = Grid(start=self._restart(grid, number), interval_s=self._interval_s)
                number = 0
                continue
            self._hand_over(self.sample())
            number, missed = grid.after(number, self._monotonic())
            if missed:
                self._overruns += 1
                self._missed += missed

    def _wait_for(self, grid: Grid, number: int) -> bool:
        """Wait for a tick, or until the interval changes; False when it is time to stop."""
        with self._changed:
            while not self._stopping and self._interval_s == grid.interval_s:
                left_s = grid.due(number) - self._monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return not self._stopping

    def _restart(self, grid: Grid, number: int) -> float:
        """Return the first instant of the grid that replaces ``grid``, whose next tick was ``number``."""
        now = self._monotonic()
        return now if number == 0 else max(now, grid.due(number - 1) + self._interval_s)

    def _hand_over(self, sample: Sample) -> None:
        try:
            self._on_sample(sample)
        except Exception:  # the callback is another part's; the grid goes on
            logger.exception("a sample was lost: its receiver failed")


class _Watch:
    """One collector, what it gave last, and what is wrong with it."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._gave: tuple[str, ...] = ()
        self._problem = ""
        self._probed: dict[str, str | None] = {}

    def probe(self) -> None:
        """Ask the collector what it measures."""
        try:
            self._probed = dict(self._collector.probe())
        except Exception as error:  # noqa: BLE001 - a collector must not keep the others from starting
            self._probed = {self._collector.name: _reason(error)}
            logger.warning("collector %s cannot be probed: %s", self._collector.name, _reason(error))

    def collect(self, now: Instant, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        """Add one reading; when it fails, None and the reason for each series of the previous one."""
        try:
            reading = self._collector.collect(now)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._failed(_reason(error))
            values.update(dict.fromkeys(self._gave))
            reasons.update(dict.fromkeys(self._gave, self._problem))
            return
        if self._problem:
            logger.info("collector %s works again", self._collector.name)
            self._problem = ""
        if len(self._gave) != len(reading.values) or self._gave != tuple(reading.values):
            self._gave = tuple(reading.values)
        values.update(reading.values)
        if reading.reasons:
            reasons.update(reading.reasons)

    def capabilities(self) -> dict[str, str | None]:
        """Return what the collector said of itself, with its present problem for what it measured before."""
        problem = self._problem
        if not problem:
            return dict(self._probed)
        return {name: reason or problem for name, reason in self._probed.items()}

    def _failed(self, problem: str) -> None:
        level = logging.DEBUG if self._problem else logging.WARNING
        logger.log(level, "collector %s failed: %s", self._collector.name, problem)
        self._problem = problem


def _reason(error: Exception) -> str:
    if isinstance(error, CollectorUnavailableError):
        return error.reason
    return f"{Why.FAILED.value}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _checked(interval_s: float) -> float:
    if not interval_s >= MIN_INTERVAL_S:
        raise ValueError(f"a sampling interval of {interval_s} s is not possible: use {MIN_INTERVAL_S} s or more")
    return interval_s
