"""One loop that reads every collector of every stream on a fixed grid."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from fedmon.common.metrics.sample import Instant, Sample
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Collector
from fedmon.node.measure.cost import Cost
from fedmon.node.measure.grid import MIN_INTERVAL_S, Grid
from fedmon.node.measure.stream_reader import STUCK_AFTER_S, StreamReader

logger = logging.getLogger(__name__)

COST_BUDGET_RATIO = 0.05
COLLECT_SECONDS = "agent_collect_seconds"
COLLECT_CPU = "agent_collect_cpu_seconds_total"
INTERVAL = "agent_interval_seconds"
TICKS_MISSED = "agent_ticks_missed_total"
COLLECTOR_SECONDS = "agent_collector_seconds"
_PATIENCE_S = 1.0


class Sampler:
    """Reads all collectors at each tick of a grid, in a thread of its own, and hands the samples over by stream.

    All collectors of a tick, whatever their stream, share one wall and one monotonic timestamp. A tick that comes too
    late is left out and counted, never replayed. ``on_sample(stream, sample)`` runs on the sampler's thread and only
    hands over. When sampling takes more than ``cost_budget_ratio`` of a core, ticks are taken further apart. Every
    method is safe from any thread. ``start`` and ``stop`` are also the context manager.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[Collector]],
        *,
        interval_s: float,
        on_sample: Callable[[str, Sample], None],
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
        self._asked_s = _checked(interval_s)
        self._cost = Cost(budget_ratio=cost_budget_ratio)
        self._stopping = self._is_last_wanted = self._is_early_wanted = False
        self._thread: threading.Thread | None = None
        self._ticks = self._missed = self._overruns = 0
        self._collect_s: float | None = None
        self._unclosed: list[StreamReader] = []
        self._is_stuck = False

    def start(self) -> None:
        """Probe the collectors, then start the thread; its first tick is now."""
        for reader in self._readers.values():
            reader.probe()
        # A collector that never comes back, against its promise, must not keep the process from ending after `stop`.
        self._thread = threading.Thread(target=self._run, name="fedmon-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0, *, last_sample: bool = False) -> None:
        """End the thread, and close the collectors; it ends at once unless a collector is being read.

        One that never comes back is left behind with the thread, and all others are closed. With ``last_sample`` one
        more is taken before, beside the grid.
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
        """Read these collectors, too, from the next tick on; those of the stream before are closed.

        After `stop` they are closed at once.
        """
        reader = StreamReader(collectors)
        if not self._stopping:
            reader.probe()
        with self._changed:
            is_late = self._stopping
            replaced = reader if is_late else self._readers.get(stream)
            self._readers = self._readers if is_late else {**self._readers, stream: reader}
        if replaced is not None:
            self._close(replaced)

    def remove_stream(self, stream: str) -> None:
        """Read a stream no longer; nothing happens when there is none of this name."""
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
    def asked_interval_s(self) -> float:
        """Return the distance of two ticks that was asked for."""
        return self._asked_s

    @property
    def interval_s(self) -> float:
        """Return the present distance of two ticks: what was asked for, or more when that costs too much."""
        return self._asked_s * self._cost.stretch

    def set_interval(self, interval_s: float) -> None:
        """Sample at another interval at once: the next tick follows the last one by it, or is now.

        Raises ValueError when it is below 0.2 s.
        """
        with self._changed:
            self._asked_s = _checked(interval_s)
            self._changed.notify_all()

    def set_cost_budget(self, ratio: float) -> None:
        """Keep to another share of a core from the next tick on."""
        self._cost.budget_ratio = ratio

    # --- what is known of it -----------------------------------------------------------------------------------------

    def capabilities(self, stream: str | None = None) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason why not.

        What was found at the start, and what is wrong at present, of one stream or of all; empty before the start.
        """
        readers = self._readers
        report: dict[str, str | None] = {}
        for reader in readers.values() if stream is None else filter(None, (readers.get(stream),)):
            for name, reason in reader.capabilities().items():
                # What one stream measures is measured, though another cannot.
                report[name] = None if reason is None or report.get(name, reason) is None else reason
        return report

    def metrics(self) -> list[str]:
        """Return the names of the metrics that are measured."""
        return sorted({name for name, reason in self.capabilities().items() if reason is None})

    def counts(self) -> dict[str, float | None]:
        """Return the ``agent_`` metrics that the sampler keeps of itself, for AgentCollector."""
        return {
            COLLECT_SECONDS: self._collect_s,
            COLLECT_CPU: round(self._cost.cpu_s, 6),
            INTERVAL: self.interval_s,
            TICKS_MISSED: self._missed,
        }

    def collector_counts(self) -> dict[str, float | None]:
        """Return how long the last reading of each collector took, as series of ``agent_collector_seconds``."""
        return {
            series(COLLECTOR_SECONDS, stream=stream, collector=name): None if seconds is None else round(seconds, 6)
            for stream, reader in self._readers.items()
            for name, seconds in reader.seconds().items()
        }

    @property
    def ticks(self) -> int:
        """Return how many ticks were taken."""
        return self._ticks

    @property
    def overruns(self) -> int:
        """Return how often sampling came too late for its next tick; each left out one tick or more."""
        return self._overruns

    def sample(self) -> dict[str, Sample]:
        """Read every collector that is due, now, by stream; called by the thread, and by who needs no grid."""
        with self._reading:
            now = Instant(t=self._wall(), mono=self._monotonic())
            samples = {stream: reader.read(now) for stream, reader in self._readers.items()}
            self._collect_s = round(self._monotonic() - now.mono, 6)
            self._ticks += 1
            return samples

    def look_after(self, stuck_after_s: float = STUCK_AFTER_S) -> None:
        """Say once when a collector does not come back, since all others wait for it; called about once a second."""
        readers = (*self._readers.values(), *self._unclosed)
        stuck = next(filter(None, (reader.stuck(stuck_after_s) for reader in readers)), None)
        if stuck is not None and not self._is_stuck:
            logger.error("nothing is measured, since one collector does not come back: %s", stuck)
        self._is_stuck = stuck is not None

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        grid, number = Grid(start=self._monotonic(), interval_s=self.interval_s), 0
        while self._wait_for(grid, number):
            if grid.interval_s != self.interval_s:
                grid = Grid(start=self._restart(grid, number), interval_s=self.interval_s)
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
                self._overruns += 1
                self._missed += missed
        if self._is_last_wanted:
            self._take()

    def _take(self) -> None:
        for stream, sample in self.sample().items():
            self._hand_over(stream, sample)

    def _wait_for(self, grid: Grid, number: int) -> bool:
        """Wait for a tick, or until the interval changes; False when it is time to stop."""
        with self._changed:
            while not self._stopping and self.interval_s == grid.interval_s:
                left_s = grid.due(number) - self._monotonic()
                if left_s <= 0 or self._is_early_wanted:
                    break
                self._changed.wait(left_s)
            return not self._stopping

    def _restart(self, grid: Grid, number: int) -> float:
        """Return the first instant of the grid that replaces ``grid``, whose next tick was ``number``."""
        now = self._monotonic()
        return now if number == 0 else max(now, grid.due(number - 1) + self.interval_s)

    def _hand_over(self, stream: str, sample: Sample) -> None:
        if not sample.values:
            return
        try:
            self._on_sample(stream, sample)
        except Exception:  # the callback is another part's; the grid goes on
            logger.exception("a sample of stream %s was lost: its receiver failed", stream)

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
