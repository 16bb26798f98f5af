"""CPU time by mode and busy share, of the host and of each CPU, and clock frequencies."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.files import (
    PROBE,
    TICKS_PER_S,
    KernelFile,
    Reasons,
    SourceCollector,
    Values,
    entries_or_none,
    miss,
    note,
    read_number,
)

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first eight columns; guest and guest_nice, which follow, are already counted in user and nice.

Source: Linux Documentation/filesystems/proc.rst, section 1.7.
"""
BUSY, SECONDS, COUNT = "host_cpu_busy_ratio", "host_cpu_seconds_total", "host_cpu_count"
CORE_BUSY, CORE_SECONDS = "host_cpu_core_busy_ratio", "host_cpu_core_seconds_total"
MEAN, LOWEST, HIGHEST = "host_cpu_frequency_hertz", "host_cpu_frequency_min_hertz", "host_cpu_frequency_max_hertz"
FREQUENCIES, CORE_FREQUENCY = (MEAN, LOWEST, HIGHEST), "host_cpu_core_frequency_hertz"

MAX_BY_MODE = 64
"""With more CPUs only the busy shares are given: eight modes of each would not fit into a message."""
MAX_CORES = 512
"""CPUs beyond this number are left out, so that one sample always fits into a message."""

_NOT_BUSY = slice(MODES.index("idle"), MODES.index("iowait") + 1)
_SERIES = tuple(series(SECONDS, mode=mode) for mode in MODES)
_CORE = re.compile(rb"^cpu(\d+) (.*)\n", re.MULTILINE)
_FREQUENCY = re.compile(rb"^(processor|cpu MHz)[ \t]*:[ \t]*([^\n]*)\n", re.MULTILINE)
_TOO_MANY = f"{Why.UNSUPPORTED.value}: modes of each CPU are given up to {MAX_BY_MODE} CPUs; more would not fit"


class CpuBusy:
    """The busy share of CPUs between two readings of their counters."""

    def __init__(self) -> None:
        self._earlier: tuple[float, float] | None = None

    def between(self, busy: float, total: float) -> tuple[float | None, str]:
        """Return the share since the previous call, or None and the reason.

        In the kernel idle and iowait, and so the sum, may go back a little: the share is kept below 1.
        """
        earlier, self._earlier = self._earlier, (busy, total)
        if earlier is None:
            return None, Why.FIRST_SAMPLE.value
        if total <= earlier[1] or busy < earlier[0]:
            return None, f"{Why.FAILED.value}: the CPU counters did not advance"
        return round(min(1.0, (busy - earlier[0]) / (total - earlier[1])), 6), ""

    def of(self, ticks: list[int], now: Instant) -> tuple[float | None, str]:
        """Return the share for ticks by mode; a probe begins none."""
        if now == PROBE:
            return None, Why.FIRST_SAMPLE.value
        total = sum(ticks)
        return self.between(total - sum(ticks[_NOT_BUSY]), total)


class CpuCollector(SourceCollector):
    """Reads the first line of ``stat``, and the list of online CPUs; the busy share is None at the first tick."""

    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._stat, self._online = KernelFile(proc / "stat", size_bytes=512), OnlineCpus(sys)
        files = (self._stat, self._online.file)
        super().__init__("cpu", Lane.FAST, (BUSY, SECONDS, COUNT), where=proc / "stat", files=files)
        self._busy = CpuBusy()

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        text = self._stat.head()
        ticks = _ticks_of(text[4 : text.index(b"\n")])
        share, reason = self._busy.of(ticks, now)
        values: Values = {BUSY: share}
        reasons = {BUSY: reason} if reason else {}
        for key, value in zip(_SERIES, ticks, strict=False):
            values[key] = value / TICKS_PER_S
        note(values, reasons, COUNT, self._online.count)
        return values, reasons


class OnlineCpus:
    """Counts the online CPUs."""

    def __init__(self, sys: Path) -> None:
        self.file = KernelFile(sys / "devices" / "system" / "cpu" / "online", size_bytes=4096)

    def count(self) -> int:
        """Return the number of CPUs in a list such as ``0-3,8``. Raises CollectorUnavailableError."""
        ranges = [list(map(int, part.split(b"-"))) for part in self.file.head().split(b",")]
        return sum(each[-1] - each[0] + 1 for each in ranges)


class PerCoreCollector(SourceCollector):
    """Reads the lines of single CPUs in ``stat``; an offline CPU has none."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._stat = KernelFile(proc / "stat")
        metrics = (CORE_BUSY, CORE_SECONDS)
        super().__init__("cpu-cores", Lane.FAST, metrics, where=self._stat.path, untold=_TOO_MANY, files=[self._stat])
        self._cores: dict[bytes, _Core] = {}

    def _read(self, now: Instant) -> tuple[Values, Reasons]:
        lines = _CORE.findall(self._stat.read())[:MAX_CORES]
        values: Values = {}
        reasons: Reasons = {}
        cores, self._cores = self._cores, {}
        for cpu, line in lines:
            core = self._cores[cpu] = cores.get(cpu) or _Core(cpu.decode())
            ticks = _ticks_of(line)
            values[core.busy_key], reason = core.busy.of(ticks, now)
            if reason:
                reasons[core.busy_key] = reason
            if len(lines) <= MAX_BY_MODE:
                for key, value in zip(core.mode_keys, ticks, strict=False):
                    values[key] = value / TICKS_PER_S
        return values, reasons


class _Core:
    """The series of one CPU, and its counters of the previous tick."""

    def __init__(self, cpu: str) -> None:
        self.busy = CpuBusy()
        self.busy_key = series(CORE_BUSY, cpu=cpu)
        self.mode_keys = tuple(series(CORE_SECONDS, cpu=cpu, mode=mode) for mode in MODES)


class FrequencyCollector(SourceCollector):
    """Reads ``cpufreq/scaling_cur_freq`` of each online CPU, else the lines ``cpu MHz`` of ``cpuinfo``.

    A virtual machine's ``cpuinfo`` holds the nominal frequency. Sources: Linux Documentation/admin-guide/pm/cpufreq.rst
    (kilohertz), and arch/x86/kernel/cpu/proc.c.
    """

    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), per_core: bool = False) -> None:
        self._cpus = sys / "devices" / "system" / "cpu"
        metrics = (*FREQUENCIES, CORE_FREQUENCY) if per_core else FREQUENCIES
        self._cpuinfo = KernelFile(proc / "cpuinfo")
        super().__init__("frequency", Lane.MEDIUM, metrics, where=self._cpus, files=[self._cpuinfo])
        self._per_core = per_core

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        found, unread = self._frequencies()
        known = found.values()
        values: Values = {}
        reasons: Reasons = {}
        if known:
            values |= {MEAN: round(sum(known) / len(known)), LOWEST: min(known), HIGHEST: max(known)}
        else:
            miss(values, reasons, FREQUENCIES, next(iter(unread.values())))
        if self._per_core:
            values |= {series(CORE_FREQUENCY, cpu=cpu): hertz for cpu, hertz in list(found.items())[:MAX_CORES]}
            values |= dict.fromkeys(unread)
            reasons |= unread
        return values, reasons

    def _frequencies(self) -> tuple[dict[str, int], Reasons]:
        """Return the frequency of each CPU in hertz, and the reason of each unknown series."""
        found: dict[str, int] = {}
        reasons: Reasons = {}
        for name in entries_or_none(self._cpus, r"cpu\d+"):
            try:
                found[name[3:]] = read_number(f"{self._cpus}/{name}/cpufreq/scaling_cur_freq") * 1000
            except CollectorUnavailableError as error:
                if not error.is_lack:
                    reasons[series(CORE_FREQUENCY, cpu=name[3:])] = error.reason
        if not found and not reasons:
            found = self._found_in_cpuinfo()
        return found, reasons

    def _found_in_cpuinfo(self) -> dict[str, int]:
        found: dict[str, int] = {}
        cpu = ""
        for key, value in _FREQUENCY.findall(self._cpuinfo.read()):
            if key == b"processor":
                cpu = value.strip().decode()
            else:
                found[cpu] = round(float(value) * 1_000_000)
        if not found:
            raise CollectorUnavailableError(
                Why.UNSUPPORTED, f"neither cpufreq nor {self._cpuinfo.path} has a frequency"
            )
        return found


def _ticks_of(line: bytes) -> list[int]:
    """Return the clock ticks by mode; old kernels have fewer modes."""
    return list(map(int, line.split(None, len(MODES))[: len(MODES)]))
