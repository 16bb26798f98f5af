"""Pressure: how long processes stood still for want of CPU, memory or disk."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import garbled

SECONDS = "host_pressure_seconds_total"
RATIO = "host_pressure_ratio"
METRICS = (SECONDS, RATIO)
RESOURCES = ("cpu", "memory", "io")
STALLED = ("some", "full")
_MICRO = 1_000_000
_PER_HUNDREDTH_OF_A_PERCENT = 10_000
_SHARES = rb"avg10=(\d{1,3})\.(\d\d) avg60=[\d.]+ avg300=[\d.]+ total=(\d{1,20})\n"
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
                tuple(series(metric, resource=resource, stalled=stalled) for stalled in STALLED for metric in METRICS),
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
        for file, keys in self._files:
            try:
                _read(file, keys, values)
            except CollectorUnavailableError as error:
                problem = error
                miss(values, reasons, keys if self._given or not error.is_lack else (), error.reason)
        if problem is None or len(reasons) < len(values):
            self._given = True
        elif self._given or not problem.is_lack:
            raise problem
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say which resources the kernel accounts for."""
        report: dict[str, str | None] = {}
        problems = []
        for file, keys in self._files:
            try:
                _read(file, keys, {})
            except CollectorUnavailableError as error:
                problems.append(error.reason)
                report.update(dict.fromkeys(keys, error.reason))
        if len(problems) == len(self._files):
            return dict.fromkeys(METRICS, problems[0])
        return dict.fromkeys(METRICS, None) | report


def _read(file: ProcFile, keys: tuple[str, ...], values: Values) -> None:
    """Read one resource: its stalled seconds and the share of the last 10 s, for ``some`` and ``full``.

    Raises CollectorUnavailableError when the lines are not the kernel's, or are cut off.
    """
    text = file.head()
    match = _LINES.fullmatch(text)
    if match is None:
        raise garbled(file.path, text)
    some, some_rest, some_total, full, full_rest, full_total = match.groups()
    values[keys[0]] = int(some_total) / _MICRO
    values[keys[1]] = _ratio(some + some_rest)
    if full is not None:
        values[keys[2]] = int(full_total) / _MICRO
        values[keys[3]] = _ratio(full + full_rest)


def _ratio(digits: bytes) -> float:
    """Return a share of so many hundredths of a percent; the kernel rounds, and may tell a little above 100 %."""
    ratio = int(digits) / _PER_HUNDREDTH_OF_A_PERCENT
    return ratio if ratio < 1 else 1.0
