"""What the kernel did: context switches, interrupts, new processes; paging, swapping and killing for want of memory."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Given, Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import MAX_NUMBER, garbled

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STAT = {
    "host_context_switches_total": (b"\nctxt ", 1),
    "host_interrupts_total": (b"\nintr ", 1),
    "host_processes_started_total": (b"\nprocesses ", 1),
    "host_processes_running": (b"\nprocs_running ", 1),
    "host_processes_blocked": (b"\nprocs_blocked ", 1),
}
VMSTAT = {
    "host_swap_in_bytes_total": (b"\npswpin ", _PAGE_BYTES),
    "host_swap_out_bytes_total": (b"\npswpout ", _PAGE_BYTES),
    "host_page_faults_total": (b"\npgfault ", 1),
    "host_page_faults_major_total": (b"\npgmajfault ", 1),
    "host_oom_kills_total": (b"\noom_kill ", 1),
}
"""Metric to the beginning of its line, and what its number is multiplied by; swapping is counted in pages."""


class CountersCollector:
    """Reads a file whose lines are a name and a number; a line that this kernel does not have is left out."""

    lane = Lane.MEDIUM

    def __init__(self, name: str, path: Path, fields: dict[str, tuple[bytes, int]]) -> None:
        self.name = name
        self._file, self._fields = ProcFile(path, size_bytes=65_536), fields
        self._given = Given(where=str(path))

    def collect(self, _now: Instant) -> Reading:
        """Read the counters; one that cannot be understood is None."""
        values, reasons = self._reading()
        self._given.follow(values, reasons)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say which lines this kernel has."""
        try:
            values, reasons = self._reading()
        except CollectorUnavailableError as error:
            return dict.fromkeys(self._fields, error.reason)
        missing = f"{Why.UNSUPPORTED.value}: {self._file.path} of this kernel does not tell"
        return {metric: reasons.get(metric) if metric in values else missing for metric in self._fields}

    def _reading(self) -> tuple[Values, Reasons]:
        text = b"\n" + self._file.read()
        values: Values = {}
        reasons: Reasons = {}
        for metric, (begin, factor) in self._fields.items():
            start = text.find(begin)
            if start < 0:
                continue
            line, newline, _ = text[start + len(begin) :].partition(b"\n")
            number, space, _ = line.partition(b" ")
            try:
                count = int(number) * factor
                if not 0 <= count <= MAX_NUMBER or not (newline or space):
                    raise ValueError(line)
                values[metric] = count
            except ValueError:
                miss(values, reasons, (metric,), garbled(self._file.path, begin[1:] + line).reason)
        if not values:
            raise garbled(self._file.path, text)
        if not text.endswith(b"\n"):
            cut_off = (metric for metric in self._fields if metric not in values)
            miss(values, reasons, cut_off, f"{Why.FAILED.value}: {self._file.path} is cut off")
        return values, reasons


def activity_collectors(*, proc: Path) -> list[CountersCollector]:
    """Return the collectors of ``stat``, but for its CPU times, and of ``vmstat``."""
    return [CountersCollector("activity", proc / "stat", STAT), CountersCollector("paging", proc / "vmstat", VMSTAT)]
