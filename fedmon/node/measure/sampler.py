"""One loop that reads every collector of every stream on a fixed grid."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from fedmon.common.actor import Actor, BusyError
from fedmon.common.metrics.sample import Instant, Sample
from fedmon.common.metrics.series import series
from fedmon.node.collectors.agent import TIMES
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Why

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 0.2
"""The shortest interval that can be asked for."""
COST_BUDGET_RATIO = 0.05
MAX_STRETCH = 64
STUCK_AFTER_S = 10.0
"""Seconds after which the other collectors continue without one that has not returned."""

COLLECT_SECONDS = "agent_collect_seconds"
COLLECT_CPU = "agent_collect_cpu_seconds_total"
INTERVAL = "agent_interval_seconds"
TICKS_MISSED = "agent_ticks_missed_total"

_HANGS = f"{Why.FAILED.value}: the collector does not return"
_AVERAGED_TICKS, _CALM_TICKS = 8.0, 20
_EARLY_S = 0.1
"""A lane is due this long before its time is over, because ticks are late by different amounts."""


class Sampler:
    """Reads all collectors at each tick of a grid, on a dedicated thread; a context manager.

    All collectors of a tick, whatever their stream, share one wall and one monotonic timestamp. A tick that comes too
    late is skipped and counted, never replayed. ``on_tick(samples)`` gets them by stream, also empty ones; it runs on
    the sampler's thread and must not wait. If sampling takes more than ``cost_budget_ratio`` of a core, ticks are taken
    further apart. ``asked_interval_s`` is the interval before that, and ``overruns`` counts how often sampling came too
    late for its next tick. Every method is safe from any thread.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[Collector]],
        *,
        interval_s: float,
        on_tick: Callable[[Mapping[str, Sample]], object],
        cost_budget_ratio: float = COST_BUDGET_RATIO,
    ) -> None:
        self._readers = {stream: StreamReader(collectors) for stream, collectors in streams.items()}
        self._closing: set[StreamReader] = set()
        self._on_tick = on_tick
        self.asked_interval_s = interval_s
        self._cost = SamplingCost(budget_ratio=cost_budget_ratio)
        self._lock = threading.Lock()
        self._actor = Actor("fedmon-sampler")
        self._is_started = self._is_stopped = False
        self._paced_s: float | None = None
        self._due = self._last_due = -math.inf
        self.overruns = self._missed = 0
        self._collect_s: float | None = None

    def start(self) -> None:
        """Probe the collectors, then start the thread; its first tick is now."""
        for reader in self._readers.values():
            reader.probe()
        self._is_started = True
        self._actor.post(self._arrange)
        self._actor.start()

    def stop(self, timeout_s: float = 2.0, *, last_sample: bool = False) -> None:
        """End the thread within about ``timeout_s``, and close the collectors.

        With ``last_sample`` one more sample is taken first, off the grid. A collector that does not return is left
        behind with the thread. Safe to call twice.
        """
        if last_sample:
            self._actor.post(lambda: self._take(is_last=True))
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        if not self._actor.close(timeout_s=timeout_s):
            logger.error("the sampler did not end within %.1f s: a collector does not return", timeout_s)
        for reader in (*self._readers.values(), *self._closing):
            reader.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sample_now(self, stream: str | None = None) -> None:
        """Take a sample of one stream, or of all, off the grid, as soon as the thread is free."""
        self._actor.post(lambda: self._take(stream))

    # --- streams -----------------------------------------------------------------------------------------------------

    def add_stream(self, stream: str, collectors: Sequence[Collector]) -> None:
        """Read these collectors from the next tick on; close those that the stream had before.

        After `stop` they are closed at once.
        """
        reader = StreamReader(collectors)
        if self._is_started and not self._is_stopped:
            reader.probe()
        with self._lock:
            replaced = reader if self._is_stopped else self._readers.get(stream)
            if not self._is_stopped:
                self._readers = {**self._readers, stream: reader}
        self._close(replaced)

    def remove_stream(self, stream: str) -> None:
        """Stop reading a stream, if it exists."""
        with self._lock:
            removed = self._readers.get(stream)
            self._readers = {name: reader for name, reader in self._readers.items() if name != stream}
        self._close(removed)

    def sample_stream(self, stream: str, timeout_s: float = 2.0, *, is_last: bool = False) -> None:
        """Take a sample of a stream off the grid, its last one if ``is_last``; wait for it at most so long."""
        if self._is_started:
            with contextlib.suppress(BusyError):
                self._actor.call(lambda: self._take(stream, is_last=is_last), timeout_s=timeout_s)

    @property
    def streams(self) -> list[str]:
        """Name the streams that are read."""
        return list(self._readers)

    def _close(self, reader: StreamReader | None) -> None:
        """Close a reader between two ticks."""
        if reader is not None:
            self._closing.add(reader)
            if not self._actor.post(self._close_removed):
                self._close_removed()

    def _close_removed(self) -> None:
        with contextlib.suppress(_LeftBehindError):
            for reader in tuple(self._closing):
                reader.close()
                self._closing.discard(reader)

    # --- pace --------------------------------------------------------------------------------------------------------

    @property
    def interval_s(self) -> float:
        """The present distance of two ticks: the one asked for, or more if that costs too much."""
        return self.asked_interval_s * self._cost.stretch

    def set_interval(self, interval_s: float) -> None:
        """Sample at another interval at once: the next tick follows the last one by it, or is now."""
        self.asked_interval_s = interval_s
        self._actor.post(self._arrange)

    def set_cost_budget(self, ratio: float) -> None:
        """Keep to another share of a core from the next tick on."""
        self._cost.budget_ratio = ratio

    # --- reports -----------------------------------------------------------------------------------------------------

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None if it is measured, else to the reason why not.

        Present problems count as well as those found at the start; empty before the start.
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
        """Return the ``agent_`` metrics of the sampler itself, for `agent_collector`."""
        return {
            COLLECT_SECONDS: self._collect_s,
            COLLECT_CPU: round(self._cost.cpu_s, 6),
            INTERVAL: self.interval_s,
            TICKS_MISSED: self._missed,
        }

    def collector_counts(self) -> dict[str, float | None]:
        """Return the duration of the last reading of each collector, as series of ``agent_collector_seconds``."""
        return {
            series(TIMES, stream=stream, collector=watch.name): round(watch.seconds, 6)
            for stream, reader in self._readers.items()
            for watch in reader.watches
            if watch.seconds is not None
        }

    def sample(self, stream: str | None = None, *, is_last: bool = False) -> dict[str, Sample]:
        """Read every collector that is due, now, of one stream or of all; for the thread, and callers without a grid.

        Before a last reading the collectors are told so.
        """
        readers = {name: reader for name, reader in self._readers.items() if stream in (None, name)}
        for watch in (watch for reader in readers.values() for watch in reader.watches if is_last):
            watch.tell("ending")
        now = Instant(t=time.time(), mono=time.monotonic())
        samples = {name: reader.read(now) for name, reader in readers.items()}
        self._collect_s = round(time.monotonic() - now.mono, 6)
        return samples

    def check_stuck(self, stuck_after_s: float = STUCK_AFTER_S) -> None:
        """Go on without a collector that does not return, until it does; called about once a second.

        Its thread is left to it, and another one reads the others.
        """
        with self._lock:
            is_running = self._is_started and not self._is_stopped
            readers = (*self._readers.values(), *tuple(self._closing)) if is_running else ()
            stuck = next((each for reader in readers for each in reader.watches if each.leave(stuck_after_s)), None)
            if stuck is None:
                return
            left, self._actor, self._paced_s = self._actor, Actor("fedmon-sampler"), None
        logger.error("collector %s does not return, and the others go on without it", stuck.name)
        self._actor.post(self._close_removed)
        self._actor.post(self._arrange)
        self._actor.start()
        left.close(timeout_s=0.0, drop=True)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Have the next tick taken at its time, on a new grid if the interval has changed."""
        if self._paced_s != self.interval_s:
            self._paced_s = self.interval_s
            self._due = max(time.monotonic(), self._last_due + self._paced_s)
        due, paced_s = self._due, self._paced_s
        self._actor.at(due, lambda: self._tick(due, paced_s))

    def _tick(self, due: float, paced_s: float) -> None:
        # The interval may have changed meanwhile.
        if (due, paced_s) == (self._due, self._paced_s) and self._take():
            self._last_due = due
            self._due, missed = next_tick(due, paced_s, time.monotonic())
            self.overruns += missed > 0
            self._missed += missed
            self._arrange()

    def _take(self, stream: str | None = None, *, is_last: bool = False) -> bool:
        """Hand on a sample of one stream, or of all; False if another thread took over meanwhile."""
        before = time.thread_time()
        try:
            samples = self.sample(stream, is_last=is_last)
        except _LeftBehindError:
            return False
        try:
            self._on_tick(samples)
        except Exception:  # the receiver is another part; the grid goes on
            logger.exception("the samples of a tick were lost: their receiver failed")
        self._cost.account(time.thread_time() - before, self.interval_s)
        return True


def next_tick(due: float, interval_s: float, now: float) -> tuple[float, int]:
    """Return when the first tick after that of ``due`` is that is not over, and how many are skipped before it.

    Ticks are whole intervals apart, so that they cannot drift.
    """
    steps = max(1, math.ceil((now - due) / interval_s))
    steps += due + steps * interval_s < now  # the division rounded down
    return due + steps * interval_s, steps - 1


class SamplingCost:
    """Compares the CPU time of sampling with a budget; for the sampler's thread, except for ``stretch``.

    The share of a core is averaged over about eight ticks. Above the budget ``stretch``, the factor of the interval, is
    doubled, at most to 64. It is halved again if the share would stay below half of the budget at half the interval,
    for 20 ticks. ``cpu_s`` is the sum of all ticks.
    """

    def __init__(self, *, budget_ratio: float) -> None:
        self.budget_ratio = budget_ratio
        self.stretch = 1
        self.cpu_s = 0.0
        # From 0, so that the first tick, which opens every file, does not count more than others.
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

    A collector that fails leaves gaps with a reason, and so does one that has not returned to another thread.
    """

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self.watches = [_Watch(collector) for collector in collectors]

    def probe(self) -> None:
        """Probe every collector."""
        for watch in self.watches:
            watch.probe()

    def read(self, now: Instant) -> Sample:
        """Read every collector that is due."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for watch in self.watches:
            if watch.is_fast or watch.is_due(now):
                watch.collect(now, values, reasons)
        return Sample(t=now.t, mono=now.mono, values=values, reasons=reasons)

    def close(self) -> None:
        """Close the collectors; one that is being called is closed when it returns."""
        for watch in self.watches:
            watch.tell("close")

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None if it is measured, else to the reason why not."""
        return {name: reason for watch in self.watches for name, reason in watch.capabilities().items()}


class _LeftBehindError(Exception):
    """A collector returned to a thread that was left to it: another thread reads the others by now."""


class _Watch:
    """One collector: when it is due, its last reading, and its present problem."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lane_s = collector.lane.value
        self.is_fast = collector.lane is Lane.FAST
        self._start: float | None = None
        self._next = 0.0
        self._gave: Collection[str] = ()
        self._problem = ""
        self._probed: dict[str, str | None] = {}
        self.name = collector.name
        self.seconds: float | None = None
        self._lock = threading.Lock()
        self._begun: float | None = None
        self._is_closing = self._is_left = self._is_closed = False

    def leave(self, stuck_after_s: float) -> bool:
        """Leave the thread to the present call of the collector if that has taken so long; tell whether it was left."""
        with self._lock:
            begun = self._begun
            is_stuck = begun is not None and not self._is_left and time.perf_counter() - begun > stuck_after_s
            self._is_left |= is_stuck
            return is_stuck

    def probe(self) -> None:
        """Probe the collector, before its first reading."""
        if self._enter():
            try:
                self._probe()
            finally:
                self._returned()

    def _probe(self) -> None:
        try:
            self._probed = dict(self._collector.probe())
        except Exception as error:  # noqa: BLE001 - a collector must not keep the others from starting
            reason = CollectorUnavailableError.of(error).reason
            self._probed = {self.name: reason}
            logger.warning("collector %s cannot be probed: %s", self.name, reason)

    def is_due(self, now: Instant) -> bool:
        """Tell whether this is a tick of the collector's lane, as the first one is, or it has news."""
        if self._start is None:
            self._start = now.mono
        if now.mono < self._next:
            return self._has_news()
        passed = (now.mono + _EARLY_S - self._start) // self._lane_s + 1
        self._next = self._start + passed * self._lane_s - _EARLY_S
        return True

    def collect(self, now: Instant, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        """Add one reading; if it fails, None and the reason for each series of the previous one."""
        if not self._enter():
            if not self._is_closing:
                self._miss(_HANGS, values, reasons)
            return
        before = time.perf_counter()
        try:
            reading = self._collector.collect(now)
            if self._has_news():
                self._probe()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            level = logging.DEBUG if self._problem else logging.WARNING
            self._problem = CollectorUnavailableError.of(error).reason
            logger.log(level, "collector %s failed: %s", self.name, self._problem)
            self._miss(self._problem, values, reasons)
            return
        finally:
            self.seconds = time.perf_counter() - before
            self._returned()
        if self._problem:
            logger.info("collector %s works again", self.name)
            self._problem = ""
        self._gave = reading.values
        values.update(reading.values)
        if reading.reasons:
            reasons.update(reading.reasons)

    def capabilities(self) -> dict[str, str | None]:
        """Return the last probe of the collector, with its present problem for everything it measured before."""
        problem = _HANGS if self._is_left else self._problem
        return {name: reason or problem or None for name, reason in self._probed.items()}

    def tell(self, word: str) -> None:
        """Call an optional method of the collector, unless another call is under way, which ``close`` then follows."""
        if self._enter(closes=word == "close"):
            with contextlib.suppress(Exception):
                getattr(self._collector, word, lambda: None)()
            self._returned()

    def _enter(self, *, closes: bool = False) -> bool:
        """Begin a call of the collector, unless another one is under way; once it is to be closed, only that one."""
        with self._lock:
            self._is_closing |= closes
            if self._begun is not None or self._is_closed or self._is_closing != closes:
                return False
            self._begun, self._is_closed = time.perf_counter(), closes
            return True

    def _returned(self) -> None:
        with self._lock:
            was_left, self._is_left, self._begun = self._is_left, False, None
        if self._is_closing:
            self.tell("close")
        if was_left:
            raise _LeftBehindError

    def _has_news(self) -> bool:
        return bool(getattr(self._collector, "probe_changed", False))

    def _miss(self, reason: str, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        values.update(dict.fromkeys(self._gave))
        reasons.update(dict.fromkeys(self._gave, reason))
