"""CPU time by mode, the busy share, and how many CPUs there are."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first eight columns; guest and guest_nice, which follow, are already counted in user and nice.

Source: Linux Documentation/filesystems/proc.rst, section 1.7.
"""

BUSY = "host_cpu_busy_ratio"
SECONDS = "host_cpu_seconds_total"
COUNT = "host_cpu_count"
_NOT_BUSY = slice(MODES.index("idle"), MODES.index("iowait") + 1)
_SERIES = tuple(series(SECONDS, mode=mode) for mode in MODES)


class CpuBusy:
    """The busy share of all CPUs between two readings of their counters."""

    def __init__(self) -> None:
        self._earlier: tuple[float, float] | None = None

    def between(self, busy_s: float, total_s: float) -> tuple[float | None, str | None]:
        """Return the share since the previous call, or the reason why there is none.

        The kernel may let iowait, and so the sum, go back a little; the share is kept between 0 and 1.
        """
        earlier, self._earlier = self._earlier, (busy_s, total_s)
        if earlier is None:
            return None, Why.FIRST_SAMPLE.value
        if total_s <= earlier[1]:
            return None, f"{Why.FAILED.value}: the CPU counters did not advance"
        return round(min(1.0, max(0.0, (busy_s - earlier[0]) / (total_s - earlier[1]))), 6), None


class CpuCollector:
    """Reads the first line of ``stat``, and the list of online CPUs."""

    name = "cpu"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._stat = ProcFile(proc / "stat", size_bytes=512)
        self._online = ProcFile(sys / "devices" / "system" / "cpu" / "online", size_bytes=512)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._busy = CpuBusy()

    def collect(self, _now: Instant) -> Reading:
        """Read the counters; the busy share is None at the first tick."""
        ticks = self._ticks()
        total = sum(ticks)
        share, reason = self._busy.between(total - sum(ticks[_NOT_BUSY]), total)
        values: dict[str, float | None] = {BUSY: share}
        for key, value in zip(_SERIES, ticks, strict=False):
            values[key] = value / self._ticks_per_s
        try:
            values[COUNT] = self._count()
        except CollectorUnavailableError as error:
            return Reading({**values, COUNT: None}, {COUNT: error.reason, **({BUSY: reason} if reason else {})})
        return Reading(values, {BUSY: reason} if reason else {})

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters and the list can be read."""
        return probe_by_reading(self._ticks, (BUSY, SECONDS)) | probe_by_reading(self._count, (COUNT,))

    def _ticks(self) -> list[int]:
        fields = self._stat.head().partition(b"\n")[0].split()
        if len(fields) < 5 or fields[0] != b"cpu":
            raise CollectorUnavailableError(Why.FAILED, "the first line of stat is not that of all CPUs")
        return list(map(int, fields[1 : 1 + len(MODES)]))

    def _count(self) -> int:
        """Count the CPUs of a list such as ``0-3,8``."""
        text = self._online.head().strip()
        try:
            ranges = [part.partition(b"-") for part in text.split(b",")]
            return sum(int(last if dash else first) - int(first) + 1 for first, dash, last in ranges)
        except ValueError:
            raise CollectorUnavailableError(Why.FAILED, f"{text[:80]!r} is not a list of CPUs") from None
