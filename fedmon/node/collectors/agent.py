"""The cost of the agent: the node's own process, its sampler and its publisher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading
from fedmon.node.collectors.files import PAGE_BYTES, FileCollector, Values

CPU, RSS, TIMES = "agent_cpu_seconds_total", "agent_memory_rss_bytes", "agent_collector_seconds"

Counts = Callable[[], Mapping[str, float | None]]


def agent_collector(counts: Counts, *, proc: Path = Path("/proc")) -> FileCollector:
    """Return the collector of the cost of the process that it runs in.

    ``counts`` is asked at each tick for further ``agent_`` metrics: those that sampler and publisher keep. It is
    called from the sampler's thread and must not wait. A count is None only before there is a first one.
    """

    def parse(text: bytes) -> Values:
        return own_cost(int(text.split(None, 2)[1]) * PAGE_BYTES) | dict(counts())

    return FileCollector("agent", Lane.FAST, proc / "self" / "statm", parse, (CPU, RSS), size_bytes=128)


def own_cost(rss_bytes: int) -> Values:
    """Return the CPU time of this process, with its memory."""
    return {CPU: round(time.process_time(), 6), RSS: rss_bytes}


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
