"""CPU time by mode, the busy share, and how many CPUs there are."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import MAX_NUMBER, garbled

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first eight columns; guest and guest_nice, which follow, are already counted in user and nice.

Source: Linux Documentation/filesystems/proc.rst, section 1.7.
"""

BUSY = "host_cpu_busy_ratio"
SECONDS = "host_cpu_seconds_total"
COUNT = "host_cpu_count"
NOT_BUSY = slice(MODES.index("idle"), MODES.index("iowait") + 1)
MAX_CPUS = 65_536
_SERIES = tuple(series(SECONDS, mode=mode) for mode in MODES)
_MIN_MODES = 4


class CpuBusy:
    """The busy share of CPUs between two readings of their counters."""

    def __init__(self) -> None:
        self._earlier: tuple[float, float] | None = None

    def between(self, busy_s: float, total_s: float) -> tuple[float | None, str | None]:
        """Return the share since the previous call, or the reason why there is none.

        The kernel may let idle and iowait, and so the sum, go back a little: the share is kept below 1. Busy time only
        grows.
        """
        earlier, self._earlier = self._earlier, (busy_s, total_s)
        if earlier is None:
            return None, Why.FIRST_SAMPLE.value
        if total_s <= earlier[1]:
            return None, f"{Why.FAILED.value}: the CPU counters did not advance"
        if busy_s < earlier[0]:
            return None, f"{Why.FAILED.value}: the CPU's busy time went back"
        return round(min(1.0, (busy_s - earlier[0]) / (total_s - earlier[1])), 6), None


class CpuCollector:
    """Reads the first line of ``stat``, and the list of online CPUs."""

    name = "cpu"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._stat = ProcFile(proc / "stat", size_bytes=512)
        self._online = ProcFile(sys / "devices" / "system" / "cpu" / "online", size_bytes=512)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._busy = CpuBusy()
        self._counted: tuple[bytes, int] | None = None

    def collect(self, _now: Instant) -> Reading:
        """Read the counters; the busy share is None at the first tick."""
        ticks = self._ticks()
        total = sum(ticks)
        share, reason = self._busy.between(total - sum(ticks[NOT_BUSY]), total)
        values: dict[str, float | None] = {BUSY: share}
        ticks_per_s = self._ticks_per_s
        for key, value in zip(_SERIES, ticks, strict=False):
            values[key] = value / ticks_per_s
        try:
            values[COUNT] = self._count()
        except CollectorUnavailableError as error:
            return Reading({**values, COUNT: None}, {COUNT: error.reason, **({BUSY: reason} if reason else {})})
        return Reading(values, {BUSY: reason} if reason else {})

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters and the list can be read."""
        return probe_by_reading(self._ticks, (BUSY, SECONDS)) | probe_by_reading(self._count, (COUNT,))

    def _ticks(self) -> list[int]:
        line, newline, _ = self._stat.head().partition(b"\n")
        return ticks_of(line, b"cpu", is_whole=bool(newline), where=self._stat.path)

    def _count(self) -> int:
        text = self._online.head()
        if self._counted is None or self._counted[0] != text:
            self._counted = text, len(cpus_in(text, where=self._online.path))
        return self._counted[1]


def ticks_of(line: bytes, name: bytes, *, is_whole: bool, where: Path) -> list[int]:
    """Return the clock ticks by mode of one line of ``stat``; old kernels have fewer modes.

    Raises CollectorUnavailableError when it is not the line of ``name``, or is not whole.
    """
    fields = line.split(None, len(MODES) + 1)
    try:
        if fields[0] != name or not (is_whole or len(fields) > len(MODES) + 1):
            raise garbled(where, line)
        ticks = list(map(int, fields[1 : 1 + len(MODES)]))
        if len(ticks) < _MIN_MODES or min(ticks) < 0 or max(ticks) > MAX_NUMBER:
            raise garbled(where, line)
    except (ValueError, IndexError):
        raise garbled(where, line) from None
    return ticks


def cpus_in(text: bytes, *, where: Path) -> list[int]:
    """Return the CPUs, or NUMA nodes, of a list such as ``0-3,8``.

    Raises CollectorUnavailableError when it is no such list.
    """
    cpus: list[int] = []
    try:
        for part in text.strip().split(b","):
            first, dash, last = part.partition(b"-")
            low, high = int(first), int(last if dash else first)
            if not 0 <= low <= high < MAX_CPUS:
                raise garbled(where, text)
            cpus += range(low, high + 1)
    except ValueError:
        raise garbled(where, text) from None
    return cpus
