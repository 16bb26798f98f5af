"""Counters of whole disks."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.listing import Listing, Reasons, Values, miss
from fedmon.node.collectors.procfile import ProcFile
from fedmon.node.collectors.sysfs import LONGEST_TEXT, MAX_NUMBER, garbled

MAX_DISKS = 64
"""Disks beyond this number are left out, in the kernel's order, so that one sample always fits into a message."""

METRICS = (
    "host_disk_reads_total",
    "host_disk_read_bytes_total",
    "host_disk_writes_total",
    "host_disk_written_bytes_total",
    "host_disk_busy_seconds_total",
)
SECTOR_BYTES = 512
_USED = (0, 2, 4, 6, 9)
_COLUMNS = 11
_LINE_BYTES = 1024
"""More than a name and twenty numbers take."""
_NOT_A_DISK = re.compile(rb"(?:loop|z?ram|fd|sr)\d+(?:p\d+)?")
_PARTITION = re.compile(rb"((?:[hsv]|xv)d[a-z]+)\d+|((?:nvme\d+n|mmcblk|nbd|md)\d+)p\d+")


class DiskCollector:
    """Reads ``diskstats``: disks, volumes and arrays; no partitions, loop, RAM, floppy or optical devices.

    A name such as ``xvda1`` is a partition only where its disk ``xvda`` is listed too. Sectors are 512 bytes whatever
    the disk's own size is. Source: Linux Documentation/admin-guide/iostats.rst.
    """

    name = "disk"
    lane = Lane.FAST

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._diskstats = ProcFile(proc / "diskstats")
        self._listing = Listing(partial(_begins, self._diskstats.path), choose_disks, where=str(proc / "diskstats"))

    def collect(self, _now: Instant) -> Reading:
        """Read the counters of each disk that is there now."""
        return self._reading()

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters can be read."""
        return probe_by_reading(self._some, METRICS)

    def _some(self) -> None:
        values, reasons = self._reading()
        if not any(value is not None for value in values.values()):
            reason = next(iter(reasons.values()), "")
            raise CollectorUnavailableError(Why.NOT_FOUND, reason or "no disk is listed")

    def _reading(self) -> Reading:
        values: Values = {}
        reasons: Reasons = {}
        for keys, row in self._listing.rows(self._diskstats.read(longest_line_bytes=_LINE_BYTES), values, reasons):
            try:
                # One column more than is used: a number may be cut off unless another follows it.
                columns = row.split(None, _COLUMNS)
                reads, read, writes, written, busy_ms = numbers = [int(columns[index]) for index in _USED]
                if len(columns) <= _USED[-1] + 1 or min(numbers) < 0 or max(numbers) > MAX_NUMBER // SECTOR_BYTES:
                    raise ValueError(columns)
            except (ValueError, IndexError):
                miss(values, reasons, keys, garbled(self._diskstats.path, row).reason)
                continue
            values[keys[0]] = reads
            values[keys[1]] = read * SECTOR_BYTES
            values[keys[2]] = writes
            values[keys[3]] = written * SECTOR_BYTES
            values[keys[4]] = busy_ms / 1000
        return Reading(values, reasons)


def choose_disks(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Map each device that is reported to its series, in the order of METRICS."""
    disks = [name for name in names if not _NOT_A_DISK.fullmatch(name) and not _is_partition(name, names)]
    return {
        disk: tuple(series(metric, device=disk[:LONGEST_TEXT].decode(errors="replace")) for metric in METRICS)
        for disk in disks[:MAX_DISKS]
    }


def _begins(where: Path, text: bytes) -> dict[bytes, bytes]:
    """Return the listed names; a line that is cut off in its name, or that is no line of the kernel's, has none."""
    lines = [line.split(None, 3) for line in text.splitlines()]
    names = [fields[2] for fields in lines if len(fields) > 3]
    if text and not names:
        raise garbled(where, text)
    return {name: b" " + name + b" " for name in names}


def _is_partition(name: bytes, names: tuple[bytes, ...]) -> bool:
    match = _PARTITION.fullmatch(name)
    return match is not None and (match[1] or match[2]) in names
