"""Space of local file systems."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, why
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.mounts import Mounts, parse_mounts
from fedmon.node.collectors.procfile import ProcFile

METRICS = ("host_filesystem_size_bytes", "host_filesystem_free_bytes", "host_filesystem_available_bytes")
REREAD_MOUNTS_S = 10.0
"""How long a change of the mounts may go unnoticed: the list is long on container hosts and changes seldom."""


_NOT_OURS = (
    f"{Why.UNSUPPORTED.value}: a tree that stands in for a machine lists its mounts, and this machine has others"
)


def refuse_to_ask(_point: str) -> os.statvfs_result:
    """Stand in for statvfs where the mounts are those of another machine. Raises CollectorUnavailableError."""
    _, _, detail = _NOT_OURS.partition(": ")
    raise CollectorUnavailableError(Why.UNSUPPORTED, detail)


class FilesystemCollector:
    """Reads the mounts, and asks each local one for its space; see ``mounts`` for those that are never asked."""

    name = "filesystem"
    lane = Lane.MEDIUM

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
        read_mounts: Callable[[], Mounts] | None = None,
    ) -> None:
        self._file = ProcFile(proc / "self" / "mounts")
        self._given_mounts = read_mounts
        self._statvfs = statvfs
        self._text = b""
        self._mounts = Mounts(readable=(), unread={})
        self._series: dict[str, tuple[str, str, str]] = {}
        self._reread = -math.inf

    def collect(self, now: Instant) -> Reading:
        """Read the space of each readable mount."""
        if now.mono >= self._reread:
            self._series = series_of_mounts(self._read_mounts())
            self._reread = now.mono + REREAD_MOUNTS_S
        values: Values = {}
        reasons: Reasons = {}
        for point, keys in self._series.items():
            try:
                space = self._statvfs(point)
            except OSError as error:
                miss(values, reasons, keys, why(error).reason)
                continue
            except CollectorUnavailableError as error:
                miss(values, reasons, keys, error.reason)
                continue
            unit = space.f_frsize
            values[keys[0]] = space.f_blocks * unit
            values[keys[1]] = space.f_bfree * unit
            values[keys[2]] = space.f_bavail * unit
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say whether the mounts can be read, and for each mount that is not asked why not."""
        try:
            mounts = self._read_mounts()
        except CollectorUnavailableError as error:
            return dict.fromkeys(METRICS, error.reason)
        reason = None
        if self._statvfs is refuse_to_ask:
            reason = _NOT_OURS
        elif not mounts.readable:
            reason = f"{Why.NOT_FOUND.value}: no local file system is mounted"
        report: dict[str, str | None] = dict.fromkeys(METRICS, reason)
        for point, reason in mounts.unread.items():
            report[series(METRICS[0], mountpoint=_printable(point))] = reason
        return report

    def _read_mounts(self) -> Mounts:
        if self._given_mounts is not None:
            return self._given_mounts()
        text = self._file.read()
        if text != self._text:
            self._text, self._mounts = text, parse_mounts(text)
        return self._mounts


def series_of_mounts(mounts: Mounts) -> dict[str, tuple[str, str, str]]:
    """Map each readable mount point to its series of size, free and available bytes."""
    return {
        point: (
            series(METRICS[0], mountpoint=_printable(point)),
            series(METRICS[1], mountpoint=_printable(point)),
            series(METRICS[2], mountpoint=_printable(point)),
        )
        for point in mounts.readable
    }


def _printable(point: str) -> str:
    return point.encode(errors="surrogateescape").decode(errors="replace")
