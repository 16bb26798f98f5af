"""Pressure: how long processes stood still for want of CPU, memory or disk."""

from __future__ import annotations

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
        self._given: set[str] = set()

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
                keys = [key for pair in keys_of.values() for key in pair if key in self._given]
                miss(values, reasons, keys, error.reason)
                continue
            for stalled, seconds, ratio in lines:
                pair = keys_of.get(stalled)
                if pair is not None:
                    values[pair[0]], values[pair[1]] = seconds, ratio
        if problem is not None and len(reasons) == len(values):
            if self._given or not problem.is_lack:
                raise problem
            return Reading({})
        if len(values) > len(self._given):
            self._given.update(values)
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
    *lines, rest = text.split(b"\n")
    found = []
    try:
        for line in lines:
            stalled, ten, _, _, total = line.split(b" ")
            if not (ten.startswith(b"avg10=") and total.startswith(b"total=")):
                raise ValueError(line)
            percent, micro = float(ten[6:]), int(total[6:])
            # The kernel rounds the share, and it may be a little above 100 %.
            if not (0 <= percent <= 101 and 0 <= micro <= MAX_NUMBER):
                raise ValueError(line)
            found.append((stalled, micro / _MICRO, round(min(percent, 100.0) / 100, 6)))
    except ValueError:
        raise garbled(where, text) from None
    if rest or not found:
        raise garbled(where, text)
    return found
