"""Pressure: how long processes stood still for want of CPU, memory or disk."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import MAX_NUMBER, garbled

SECONDS = "host_pressure_seconds_total"
RATIO = "host_pressure_ratio"
METRICS = (SECONDS, RATIO)
RESOURCES = ("cpu", "memory", "io")
STALLED = ("some", "full")
_MICRO = 1_000_000
_MAX_PERCENT = 101.0
_SHARES = rb"avg10=(\d+\.\d+) avg60=[\d.]+ avg300=[\d.]+ total=(\d+)\n"
_LINES = re.compile(rb"some " + _SHARES + rb"(?:full " + _SHARES + rb")?")


class PressureCollector:
    """Reads ``pressure/cpu``, ``memory`` and ``io``.

    Source: Linux Documentation/accounting/psi.rst. Kernels before 5.13 have no line ``full`` for the CPU.
    """

    name = "pressure"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._files = [
            (
                ProcFile(proc / "pressure" / resource, size_bytes=512),
                {
                    stalled.encode(): tuple(series(metric, resource=resource, stalled=stalled) for metric in METRICS)
                    for stalled in STALLED
                },
            )
            for resource in RESOURCES
        ]
        self._given = False

    def collect(self, _now: Instant) -> Reading:
        """Read all resources; nothing on a kernel that does not account for pressure.

        Raises CollectorUnavailableError when none can be read.
        """
        values: Values = {}
        reasons: Reasons = {}
        problem: CollectorUnavailableError | None = None
        for file, keys_of in self._files:
            try:
                lines = pressures(file.head(), where=file.path)
            except CollectorUnavailableError as error:
                problem = error
                keys = [key for pair in keys_of.values() for key in pair]
                miss(values, reasons, keys if self._given or not error.is_lack else (), error.reason)
                continue
            for stalled, seconds, ratio in lines:
                pair = keys_of.get(stalled)
                if pair is not None:
                    values[pair[0]], values[pair[1]] = seconds, ratio
        if problem is None or len(reasons) < len(values):
            self._given = True
        elif self._given or not problem.is_lack:
            raise problem
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say which resources the kernel accounts for."""
        report: dict[str, str | None] = {}
        problems = []
        for file, keys_of in self._files:
            try:
                pressures(file.head(), where=file.path)
            except CollectorUnavailableError as error:
                problems.append(error.reason)
                report.update(dict.fromkeys((key for pair in keys_of.values() for key in pair), error.reason))
        if len(problems) == len(self._files):
            return dict.fromkeys(METRICS, problems[0])
        return dict.fromkeys(METRICS, None) | report


def pressures(text: bytes, *, where: Path) -> list[tuple[bytes, float, float]]:
    """Return ``some`` or ``full``, the stalled seconds, and the share of the last 10 s, of each line.

    Raises CollectorUnavailableError when a line is not one of the kernel's, or is cut off.
    """
    match = _LINES.fullmatch(text)
    if match is None:
        raise garbled(where, text)
    some_ten, some_total, full_ten, full_total = match.groups()
    found = []
    for stalled, ten, total in ((b"some", some_ten, some_total), (b"full", full_ten, full_total)):
        if ten is None:
            continue
        percent, micro = float(ten), int(total)
        # The kernel rounds the share, and it may be a little above 100 %.
        if percent > _MAX_PERCENT or micro > MAX_NUMBER:
            raise garbled(where, text)
        found.append((stalled, micro / _MICRO, round(min(percent, 100.0) / 100, 6)))
    return found
