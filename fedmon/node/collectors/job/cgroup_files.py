"""Which file of a cgroup holds which metric, in both versions, and how its text is understood.

Source: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{cpuacct,memory,blkio-controller,pids}.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Lane
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup

CHARGED = "job_memory_charged_bytes"
PEAK = "job_memory_peak_bytes"
LIMIT = "job_memory_limit_bytes"
SWAP = "job_memory_swap_bytes"
ANON = "job_memory_anon_bytes"
CACHE = "job_memory_cache_bytes"
OOM_KILLS = "job_memory_oom_kills_total"
LIMIT_HITS = "job_memory_limit_hits_total"
THROTTLED_S = "job_cpu_throttled_seconds_total"
THROTTLED_PERIODS = "job_cpu_throttled_periods_total"
DISK_READ = "job_disk_read_bytes_total"
DISK_WRITTEN = "job_disk_written_bytes_total"
DISK_READS = "job_disk_reads_total"
DISK_WRITES = "job_disk_writes_total"
TASKS = "job_tasks"
TASKS_LIMIT = "job_tasks_limit"
PRESSURE = "job_pressure_seconds_total"
ONLY_CGROUP = (
    *(CHARGED, LIMIT, ANON, CACHE, OOM_KILLS, LIMIT_HITS, THROTTLED_S, THROTTLED_PERIODS),
    *(DISK_READ, DISK_WRITTEN, DISK_READS, DISK_WRITES, TASKS, TASKS_LIMIT, PRESSURE),
)
"""Metrics that nothing but a cgroup tells; peak and swap come from the processes otherwise."""

MAX_DEVICES = 64
"""Devices beyond this number are left out, so that one sample always fits into a message."""

Values = dict[str, float | None]
Understand = Callable[[bytes], Values]
_UNLIMITED = 2**60
"""Version 1 writes the largest number of pages there is where there is no limit."""

_V2_OPERATIONS = {b"rbytes": DISK_READ, b"wbytes": DISK_WRITTEN, b"rios": DISK_READS, b"wios": DISK_WRITES}


class CgroupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, the metrics that it holds, and how its text is understood.

    A text without ``mark`` is that of a kernel or group that does not count this. ``understand`` leaves out what the
    text does not tell, and raises ValueError or IndexError when the text is not what the kernel writes.
    """

    path: Path
    metrics: tuple[str, ...]
    understand: Understand
    lane: Lane = Lane.FAST
    mark: bytes = b""


def cgroup_files(cgroup: JobCgroup, *, sys: Path) -> list[CgroupFile]:
    """Return the files that may hold metrics of a cgroup, those to be preferred first."""
    makers: Mapping[str, Callable[[Path, Path], list[CgroupFile]]] = {
        UNIFIED: _unified, "memory": _memory_v1, "cpu": _cpu_v1, "blkio": _blkio_v1, "pids": _pids,
    }  # fmt: skip
    return [file for name, make in makers.items() if name in cgroup.folders for file in make(cgroup.folders[name], sys)]


def _unified(folder: Path, sys: Path) -> list[CgroupFile]:
    medium = Lane.MEDIUM  # the kernel gathers these two from all CPUs
    throttled = _keyed({b"throttled_usec": (THROTTLED_S, 1e6), b"nr_throttled": (THROTTLED_PERIODS, 1)})
    events = _keyed({b"oom_kill": (OOM_KILLS, 1), b"max": (LIMIT_HITS, 1)})
    return [
        CgroupFile(path=folder / "memory.current", metrics=(CHARGED,), understand=_number(CHARGED)),
        CgroupFile(path=folder / "memory.peak", metrics=(PEAK,), understand=_number(PEAK)),
        CgroupFile(path=folder / "memory.max", metrics=(LIMIT,), understand=_limit(LIMIT), lane=medium),
        CgroupFile(path=folder / "memory.swap.current", metrics=(SWAP,), understand=_number(SWAP)),
        CgroupFile(path=folder / "memory.events", metrics=(OOM_KILLS, LIMIT_HITS), understand=events),
        CgroupFile(
            path=folder / "memory.stat",
            metrics=(ANON, CACHE),
            understand=_keyed({b"anon": (ANON, 1), b"file": (CACHE, 1)}),
            lane=medium,
        ),
        CgroupFile(
            path=folder / "cpu.stat",
            metrics=(THROTTLED_S, THROTTLED_PERIODS),
            understand=throttled,
            mark=b"throttled_usec",
        ),
        CgroupFile(
            path=folder / "io.stat", metrics=tuple(_V2_OPERATIONS.values()), understand=_io_stat(sys), lane=medium
        ),
        *_pids(folder, sys),
        *(
            CgroupFile(path=folder / f"{resource}.pressure", metrics=(PRESSURE,), understand=_pressure(resource))
            for resource in ("cpu", "memory", "io")
        ),
    ]


def _memory_v1(folder: Path, _sys: Path) -> list[CgroupFile]:
    inside = {b"total_rss": (ANON, 1), b"total_cache": (CACHE, 1), b"total_swap": (SWAP, 1)}
    oom_kills = _keyed({b"oom_kill": (OOM_KILLS, 1)})
    return [
        CgroupFile(path=folder / "memory.usage_in_bytes", metrics=(CHARGED,), understand=_number(CHARGED)),
        CgroupFile(path=folder / "memory.max_usage_in_bytes", metrics=(PEAK,), understand=_number(PEAK)),
        CgroupFile(path=folder / "memory.limit_in_bytes", metrics=(LIMIT,), understand=_limit(LIMIT), lane=Lane.MEDIUM),
        CgroupFile(path=folder / "memory.failcnt", metrics=(LIMIT_HITS,), understand=_number(LIMIT_HITS)),
        CgroupFile(
            path=folder / "memory.oom_control", metrics=(OOM_KILLS,), understand=oom_kills, mark=b"oom_kill "
        ),
        CgroupFile(
            path=folder / "memory.stat", metrics=(ANON, CACHE, SWAP), understand=_keyed(inside), lane=Lane.MEDIUM
        ),
    ]  # fmt: skip


def _cpu_v1(folder: Path, _sys: Path) -> list[CgroupFile]:
    throttled = _keyed({b"throttled_time": (THROTTLED_S, 1e9), b"nr_throttled": (THROTTLED_PERIODS, 1)})
    return [
        CgroupFile(
            path=folder / "cpu.stat",
            metrics=(THROTTLED_S, THROTTLED_PERIODS),
            understand=throttled,
            mark=b"throttled_time",
        )
    ]


def _blkio_v1(folder: Path, sys: Path) -> list[CgroupFile]:
    served = {b"Read": DISK_READ, b"Write": DISK_WRITTEN}, {b"Read": DISK_READS, b"Write": DISK_WRITES}
    names = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"
    # Old kernels count each group for itself alone.
    ending = "_recursive" if (folder / f"{names[0]}_recursive").exists() else ""
    return [
        CgroupFile(
            path=folder / f"{name}{ending}",
            metrics=tuple(of.values()),
            understand=_blkio(of, sys),
            lane=Lane.MEDIUM,
        )
        for name, of in zip(names, served, strict=True)
    ]


def _pids(folder: Path, _sys: Path) -> list[CgroupFile]:
    return [
        CgroupFile(path=folder / "pids.current", metrics=(TASKS,), understand=_number(TASKS)),
        CgroupFile(path=folder / "pids.max", metrics=(TASKS_LIMIT,), understand=_limit(TASKS_LIMIT), lane=Lane.MEDIUM),
    ]


def _number(metric: str) -> Understand:
    return lambda text: {metric: int(text)}


def _limit(metric: str) -> Understand:
    def understand(text: bytes) -> Values:
        if text.strip() == b"max" or (limit := int(text)) >= _UNLIMITED:
            return {}
        return {metric: limit}

    return understand


def _keyed(metrics: Mapping[bytes, tuple[str, float]]) -> Understand:
    """Understand lines of a key and a number; each metric has the number divided by what follows it."""

    def understand(text: bytes) -> Values:
        words = text.split()
        numbers = dict(zip(words[::2], words[1::2], strict=True))
        return {
            metric: int(numbers[key]) / divisor if divisor != 1 else int(numbers[key])
            for key, (metric, divisor) in metrics.items()
            if key in numbers
        }

    return understand


def _pressure(resource: str) -> Understand:
    """Understand lines such as ``some avg10=0.00 avg60=0.00 avg300=0.00 total=52``; the total is in microseconds."""
    keys = {kind: series(PRESSURE, resource=resource, kind=kind.decode()) for kind in (b"some", b"full")}

    def understand(text: bytes) -> Values:
        lines = [line.split() for line in text.splitlines()]
        return {
            keys[words[0]]: int(words[-1].removeprefix(b"total=")) / 1e6
            for words in lines
            if words and words[0] in keys
        }

    return understand


def _io_stat(sys: Path) -> Understand:
    """Understand lines such as ``8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0``."""
    names = _DeviceNames(sys)

    def understand(text: bytes) -> Values:
        values: Values = {}
        for line in text.splitlines()[:MAX_DEVICES]:
            words = line.split()
            for word in words[1:]:
                key, _, number = word.partition(b"=")
                if key in _V2_OPERATIONS:
                    values[series(_V2_OPERATIONS[key], device=names.of(words[0]))] = int(number)
        return values

    return understand


def _blkio(metrics: Mapping[bytes, str], sys: Path) -> Understand:
    """Understand lines such as ``8:16 Read 1459200``; lines of other operations and the sum are left out."""
    names = _DeviceNames(sys)

    def understand(text: bytes) -> Values:
        lines = [line.split() for line in text.splitlines()]
        devices = list(dict.fromkeys(words[0] for words in lines if len(words) == 3))[:MAX_DEVICES]
        return {
            series(metrics[words[1]], device=names.of(words[0])): int(words[2])
            for words in lines
            if len(words) == 3 and words[1] in metrics and words[0] in devices
        }

    return understand


class _DeviceNames:
    """Turns a device's numbers into its name, once."""

    def __init__(self, sys: Path) -> None:
        self._folder = sys / "dev" / "block"
        self._names: dict[bytes, str] = {}

    def of(self, numbers: bytes) -> str:
        """Return the name such as ``sda`` for ``8:0``, or the numbers where the system does not tell."""
        if numbers not in self._names:
            text = numbers.decode(errors="replace")
            try:
                self._names[numbers] = os.path.basename(os.readlink(self._folder / text))  # noqa: PTH115, PTH119
            except (OSError, ValueError):
                self._names[numbers] = text
        return self._names[numbers]
