"""Clock frequencies of the CPUs."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Given, Reasons, Values
from fedmon.node.collectors.percore import MAX_CORES
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import entries, garbled, read_number

MEAN, LOWEST, HIGHEST = "host_cpu_frequency_hertz", "host_cpu_frequency_min_hertz", "host_cpu_frequency_max_hertz"
CORE = "host_cpu_core_frequency_hertz"
METRICS = (MEAN, LOWEST, HIGHEST)
LOOK_AGAIN_S = 60.0
"""How long a CPU that is switched on may go unnoticed here."""
_MAX_HERTZ = 100_000_000_000
_LINE = re.compile(rb"^(processor|cpu MHz)[ \t]*:[ \t]*([^\n]*)\n", re.MULTILINE)


class FrequencyCollector:
    """Reads ``cpufreq/scaling_cur_freq`` of each CPU that is on, else the lines ``cpu MHz`` of ``cpuinfo``.

    A virtual machine's ``cpuinfo`` tells the nominal frequency. Sources: Linux Documentation/admin-guide/pm/cpufreq.rst
    (kilohertz), and arch/x86/kernel/cpu/proc.c.
    """

    name = "frequency"
    lane = Lane.MEDIUM

    def __init__(self, *, proc: Path = Path("/proc"), sys: Path = Path("/sys"), per_core: bool = False) -> None:
        self._cpuinfo = ProcFile(proc / "cpuinfo", size_bytes=65_536)
        self._cpus = sys / "devices" / "system" / "cpu"
        self._per_core = per_core
        self._gave = False
        self._files: dict[str, str] = {}
        self._look_again = -math.inf
        self._given = Given(where=str(self._cpus))

    def collect(self, now: Instant) -> Reading:
        """Read each CPU; mean, lowest and highest are those of the CPUs that told.

        Nothing on a machine that does not tell frequencies.
        """
        if now.mono >= self._look_again:
            self._files, self._look_again = self._list(), now.mono + LOOK_AGAIN_S
        try:
            found = self._found()
        except CollectorUnavailableError as error:
            if self._gave or not error.is_lack:
                raise
            return Reading({})
        self._gave = True
        known = [hertz for hertz in found.values() if isinstance(hertz, int)]
        values: Values = {}
        reasons: Reasons = {}
        if known:
            values = {MEAN: round(sum(known) / len(known)), LOWEST: min(known), HIGHEST: max(known)}
        else:
            values = dict.fromkeys(METRICS)
            reasons = dict.fromkeys(METRICS, next(iter(found.values())))  # type: ignore[arg-type] # all are reasons
        for cpu, hertz in list(found.items())[: MAX_CORES if self._per_core else 0]:
            key = series(CORE, cpu=cpu)
            if isinstance(hertz, int):
                values[key] = hertz
            else:
                values[key], reasons[key] = None, hertz
        self._given.follow(values, reasons)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether the frequencies can be read, and of which CPUs not."""
        metrics = (*METRICS, CORE) if self._per_core else METRICS
        self._files = self._list()
        try:
            found = self._found()
        except CollectorUnavailableError as error:
            return dict.fromkeys(metrics, error.reason)
        unknown = {cpu: hertz for cpu, hertz in found.items() if isinstance(hertz, str)}
        if len(unknown) == len(found):
            return dict.fromkeys(metrics, next(iter(unknown.values())))
        return dict.fromkeys(metrics) | {series(CORE, cpu=cpu): reason for cpu, reason in unknown.items()}

    def _found(self) -> dict[str, int | str]:
        """Map each CPU to its frequency in hertz, or to the reason why it is unknown."""
        found: dict[str, int | str] = {}
        for cpu, path in self._files.items():
            try:
                found[cpu] = _checked(read_number(path) * 1000, path)
            except CollectorUnavailableError as error:
                if not error.is_lack:
                    found[cpu] = error.reason
                self._look_again = -math.inf
        return found or self._found_in_cpuinfo()

    def _list(self) -> dict[str, str]:
        """Map each CPU that cpufreq knows to the file of its frequency."""
        try:
            names = entries(self._cpus, r"cpu\d+")
        except CollectorUnavailableError:
            return {}
        files = {name[3:]: f"{self._cpus}/{name}/cpufreq/scaling_cur_freq" for name in names}
        return {cpu: path for cpu, path in files.items() if os.path.lexists(path)}

    def _found_in_cpuinfo(self) -> dict[str, int | str]:
        found: dict[str, int | str] = {}
        cpu = ""
        for key, value in _LINE.findall(self._cpuinfo.read()):
            if key == b"processor":
                cpu = value.strip().decode(errors="replace")
                continue
            try:
                found[cpu] = _checked(round(float(value) * 1_000_000), self._cpuinfo.path)
            except (ValueError, OverflowError):
                found[cpu] = garbled(self._cpuinfo.path, value).reason
            except CollectorUnavailableError as error:
                found[cpu] = error.reason
        if not found:
            where = f"neither cpufreq nor {self._cpuinfo.path} tells a frequency"
            raise CollectorUnavailableError(Why.UNSUPPORTED, where)
        return found


def _checked(hertz: int, path: Path | str) -> int:
    if not 0 < hertz < _MAX_HERTZ:
        raise garbled(path, f"{hertz} Hz".encode())
    return hertz
