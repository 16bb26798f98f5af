"""The collectors of one stream: each read when its lane is due, and none of them able to stop the others."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence

from fedmon.common.metrics.sample import Instant, Sample
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Why

logger = logging.getLogger(__name__)

STUCK_AFTER_S = 10.0
"""A collector that has been read for so long without an end is named, with what it measures."""

_EARLY_S = 0.1
"""A lane is due this long before its time is over, since no two ticks are late by just the same."""


class StreamReader:
    """Reads the collectors of one stream; ``probe``, ``read`` and ``close`` belong to one thread at a time.

    Where a collector never comes back to the thread that reads it, ``close`` from another one leaves it alone.
    """

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._watches = [_Watch(collector) for collector in collectors]

    def probe(self) -> None:
        """Ask every collector what it measures."""
        for watch in self._watches:
            watch.probe()

    def read(self, now: Instant) -> Sample:
        """Read every collector that is due."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for watch in self._watches:
            if watch.is_fast or watch.is_due(now):
                watch.collect(now, values, reasons)
        if None in values.values():
            _explain(values, reasons)
        return Sample(t=now.t, mono=now.mono, values=values, reasons=reasons)

    def close(self) -> None:
        """Let collectors give back what they hold, but for one that is being read."""
        for watch in self._watches:
            if not watch.is_read:
                watch.close()

    def stuck(self, after_s: float = STUCK_AFTER_S) -> str | None:
        """Name the collector that has been read for so long, with the reason of what it measures; or return None."""
        reasons = ((watch.name, watch.stuck(after_s)) for watch in self._watches)
        return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason why not."""
        report: dict[str, str | None] = {}
        for watch in self._watches:
            report.update(watch.capabilities())
        return report

    def seconds(self) -> dict[str, float | None]:
        """Return for each collector how long its last reading took, in wall time; None before the first."""
        return {watch.name: watch.seconds for watch in self._watches}


class _Watch:
    """One collector, when it is due, what it gave last, and what is wrong with it."""

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

    @property
    def is_read(self) -> bool:
        """Whether the collector is being read at this moment."""
        return self._begun is not None

    def stuck(self, after_s: float = STUCK_AFTER_S) -> str | None:
        """Return the reason of a collector that has been read for too long, None where there is none."""
        begun = self._begun
        if begun is None or (waited_s := time.perf_counter() - begun) < after_s:
            return None
        return f"{Why.FAILED.value}: no answer for {waited_s:.0f} s"

    def probe(self) -> None:
        """Ask the collector what it measures."""
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
            self._failed(_reason(error))
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
        problem = self.stuck() or self._problem
        if not problem:
            return dict(self._probed)
        return {name: reason or problem for name, reason in self._probed.items()}

    def close(self) -> None:
        """Let the collector give back what it holds, where it holds anything."""
        close = getattr(self._collector, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):
                close()

    def _failed(self, problem: str) -> None:
        level = logging.DEBUG if self._problem else logging.WARNING
        logger.log(level, "collector %s failed: %s", self.name, problem)
        self._problem = problem


def _explain(values: Mapping[str, float | None], reasons: dict[str, str]) -> None:
    """Give a reason to each missing value that came without one."""
    for key, value in values.items():
        if value is None and key not in reasons:
            reasons[key] = f"{Why.FAILED.value}: the collector gave no value and no reason"


def _reason(error: Exception) -> str:
    if isinstance(error, CollectorUnavailableError):
        return error.reason
    return f"{Why.FAILED.value}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
