"""Load averages and uptime."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile

LOADS = ("host_load1", "host_load5", "host_load15")
UPTIME = "host_uptime_seconds"


class LoadCollector:
    """Reads ``loadavg``."""

    name = "load"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._loadavg = ProcFile(proc / "loadavg", size_bytes=128)

    def collect(self, _now: Instant) -> Reading:
        """Read the three averages."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say whether the averages can be read."""
        return probe_by_reading(self._values, LOADS)

    def _values(self) -> dict[str, float | None]:
        one, five, fifteen = self._loadavg.head().split(None, 3)[:3]
        return {"host_load1": float(one), "host_load5": float(five), "host_load15": float(fifteen)}


class UptimeCollector:
    """Reads ``uptime``."""

    name = "uptime"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._uptime = ProcFile(proc / "uptime", size_bytes=128)

    def collect(self, _now: Instant) -> Reading:
        """Read the seconds since the system started."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say whether the uptime can be read."""
        return probe_by_reading(self._values, (UPTIME,))

    def _values(self) -> dict[str, float | None]:
        return {UPTIME: float(self._uptime.head().partition(b" ")[0])}
