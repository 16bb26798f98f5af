"""CPU time and busy share of each single CPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.cpu import MODES, NOT_BUSY, CpuBusy, ticks_of
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile

BUSY = "host_cpu_core_busy_ratio"
SECONDS = "host_cpu_core_seconds_total"
METRICS = (BUSY, SECONDS)
MAX_BY_MODE = 64
"""Above this number of CPUs only the busy shares are given: eight modes of each would not fit into a message."""
MAX_CORES = 512
"""CPUs beyond this number are left out, so that one sample always fits into a message."""

_TOO_MANY = f"{Why.UNSUPPORTED.value}: modes of each CPU are given up to {MAX_BY_MODE} CPUs, for want of room"
_NAME = re.compile(rb"cpu\d+")


class PerCoreCollector:
    """Reads the lines of single CPUs in ``stat``; a CPU that is switched off has none."""

    name = "cpu-cores"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._stat = ProcFile(proc / "stat")
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._cores: dict[bytes, _Core] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read each CPU; its busy share is None at the first tick."""
        lines = self._lines()
        by_mode = len(lines) <= MAX_BY_MODE
        values: Values = {}
        reasons: Reasons = {}
        for name in self._cores.keys() - {name for name, _, _ in lines}:
            core = self._cores.pop(name)
            gone = f"{Why.NOT_FOUND.value}: {name.decode()} is no longer listed in {self._stat.path}"
            miss(values, reasons, core.keys if by_mode else (core.busy_key,), gone)
        for name, line, is_whole in lines:
            core = self._cores.get(name) or self._cores.setdefault(name, _Core(name[3:].decode()))
            try:
                ticks = ticks_of(line, name, is_whole=is_whole, where=self._stat.path)
            except CollectorUnavailableError as error:
                miss(values, reasons, core.keys if by_mode else (core.busy_key,), error.reason)
                continue
            total = sum(ticks)
            values[core.busy_key], reason = core.busy.between(total - sum(ticks[NOT_BUSY]), total)
            if reason is not None:
                reasons[core.busy_key] = reason
            if by_mode:
                for key, value in zip(core.mode_keys, ticks, strict=False):
                    values[key] = value / self._ticks_per_s
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether there are such lines, and whether they are few enough for each mode."""
        try:
            lines = self._lines()
        except CollectorUnavailableError as error:
            return dict.fromkeys(METRICS, error.reason)
        return {BUSY: None, SECONDS: None if len(lines) <= MAX_BY_MODE else _TOO_MANY}

    def _lines(self) -> list[tuple[bytes, bytes, bool]]:
        """Return name and text of each CPU's line, and whether the line is whole."""
        lines = self._stat.read().split(b"\n")
        last = len(lines) - 1  # what follows the last newline: nothing, unless the file was cut off
        found = []
        for number, line in enumerate(lines[1 : MAX_CORES + 1], 1):
            name = line.partition(b" ")[0]
            if not _NAME.fullmatch(name) or name == line:
                break  # the CPUs come first; a name that nothing follows is cut off
            found.append((name, line, number < last))
        if not found:
            raise CollectorUnavailableError(Why.NOT_FOUND, f"{self._stat.path} lists no single CPU")
        return found


class _Core:
    """The series of one CPU, and its counters of the previous tick."""

    def __init__(self, cpu: str) -> None:
        self.busy = CpuBusy()
        self.busy_key = series(BUSY, cpu=cpu)
        self.mode_keys = tuple(series(SECONDS, cpu=cpu, mode=mode) for mode in MODES)
        self.keys = (self.busy_key, *self.mode_keys)
