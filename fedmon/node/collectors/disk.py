"""Counters of whole disks."""

from __future__ import annotations

import re
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why, probe_by_reading
from fedmon.node.collectors.procfile import ProcFile

MAX_DISKS = 64
"""Disks beyond this number are left out, in the kernel's order, so that one sample always fits into a message."""

METRICS = (
    "host_disk_reads_total",
    "host_disk_read_bytes_total",
    "host_disk_writes_total",
    "host_disk_written_bytes_total",
    "host_disk_busy_seconds_total",
)
_SECTOR_BYTES = 512
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
        self._names: tuple[bytes, ...] = ()
        self._series: dict[bytes, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read the counters of each disk that is there now."""
        return Reading(self._values())

    def probe(self) -> dict[str, str | None]:
        """Say whether the counters can be read."""
        return probe_by_reading(self._some, METRICS)

    def _some(self) -> None:
        if not self._values():
            raise CollectorUnavailableError(Why.NOT_FOUND, "no disk is listed")

    def _values(self) -> dict[str, float | None]:
        lines = [line.split(None, 3) for line in self._diskstats.read().splitlines()]
        names = tuple([fields[2] for fields in lines])
        if names != self._names:
            self._names, self._series = names, choose_disks(names)
        values: dict[str, float | None] = {}
        for _, _, name, numbers in lines:
            keys = self._series.get(name)
            if keys is None:
                continue
            fields = numbers.split(None, 10)
            values[keys[0]] = int(fields[0])
            values[keys[1]] = int(fields[2]) * _SECTOR_BYTES
            values[keys[2]] = int(fields[4])
            values[keys[3]] = int(fields[6]) * _SECTOR_BYTES
            values[keys[4]] = int(fields[9]) / 1000
        return values


def choose_disks(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Map each device that is reported to its series, in the order of METRICS."""
    disks = [name for name in names if not _NOT_A_DISK.fullmatch(name) and not _is_partition(name, names)]
    return {
        disk: tuple(series(metric, device=disk.decode(errors="replace")) for metric in METRICS)
        for disk in disks[:MAX_DISKS]
    }


def _is_partition(name: bytes, names: tuple[bytes, ...]) -> bool:
    match = _PARTITION.fullmatch(name)
    return match is not None and (match[1] or match[2]) in names
