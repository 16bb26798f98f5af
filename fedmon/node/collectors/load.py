"""Load averages and uptime."""

from __future__ import annotations

from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import Lane, Reading, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import garbled

LOADS = ("host_load1", "host_load5", "host_load15")
THREADS, RUNNABLE = "host_threads", "host_threads_runnable"
METRICS = (*LOADS, THREADS, RUNNABLE)
UPTIME = "host_uptime_seconds"
_INFINITE = float(2**63)


class LoadCollector:
    """Reads ``loadavg``."""

    name = "load"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._loadavg = ProcFile(proc / "loadavg", size_bytes=128)

    def collect(self, _now: Instant) -> Reading:
        """Read the three averages and the number of threads."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say whether the averages can be read."""
        return probe_by_reading(self._values, METRICS)

    def _values(self) -> dict[str, float | None]:
        text = self._loadavg.head()
        try:
            first, second, third, threads, _ = text.split(None, 4)
            runnable, _, all_threads = threads.partition(b"/")
            one, five, fifteen = float(first), float(second), float(third)
            running, existing = int(runnable), int(all_threads)
            if not (
                0 <= one < _INFINITE
                and 0 <= five < _INFINITE
                and 0 <= fifteen < _INFINITE
                and 0 <= running < _INFINITE
                and 0 <= existing < _INFINITE
            ):
                raise garbled(self._loadavg.path, text)
        except ValueError:
            raise garbled(self._loadavg.path, text) from None
        return {
            "host_load1": one,
            "host_load5": five,
            "host_load15": fifteen,
            THREADS: existing,
            RUNNABLE: running,
        }


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
        text = self._uptime.head()
        up, space, _ = text.partition(b" ")
        try:
            seconds = float(up)
            if not (space and 0 <= seconds < _INFINITE):
                raise garbled(self._uptime.path, text)
            return {UPTIME: seconds}
        except ValueError:
            raise garbled(self._uptime.path, text) from None
