"""The cost of the agent: the node's own process, its sampler and its publisher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading, Why
from fedmon.node.collectors.files import PAGE_BYTES, KernelFile, Values

CPU, RSS, TIMES = "agent_cpu_seconds_total", "agent_memory_rss_bytes", "agent_collector_seconds"

Counts = Callable[[], Mapping[str, float | None]]


class AgentCollector:
    """Reads the cost of the process that it runs in.

    ``counts`` is asked at each tick for further ``agent_`` metrics: those that sampler and publisher keep. It is
    called from the sampler's thread and must not wait. A count is None only before there is a first one.
    """

    name = "agent"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc"), counts: Counts | None = None) -> None:
        self._statm = KernelFile(proc / "self" / "statm", size_bytes=128)
        self._counts: Counts = counts if counts is not None else dict

    def collect(self, _now: Instant) -> Reading:
        """Read CPU time, memory and counts."""
        rss = int(self._statm.head().split(None, 2)[1]) * PAGE_BYTES
        values: Values = {CPU: round(time.process_time(), 6), RSS: rss, **self._counts()}
        return Reading(values, {key: Why.FIRST_SAMPLE.value for key, value in values.items() if value is None})

    def probe(self) -> dict[str, str | None]:
        """Report that this can always be measured."""
        return dict.fromkeys((CPU, RSS, *self._counts()))

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        self._statm.close()


class CollectorTimes:
    """Reads how long each collector took last; ``times`` gives it as series of ``agent_collector_seconds``."""

    name = "collector-times"
    lane = Lane.MEDIUM

    def __init__(self, times: Counts) -> None:
        self._times = times

    def collect(self, _now: Instant) -> Reading:
        """Read the times; a collector that was not read yet is left out."""
        return Reading(self._times())

    def probe(self) -> dict[str, str | None]:
        """Report that this can always be measured."""
        return {TIMES: None}
