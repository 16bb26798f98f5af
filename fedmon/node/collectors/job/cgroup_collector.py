"""Metrics of a job's cgroup as a whole: one table for each version.

Source: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{cpuacct,memory,blkio-controller,pids}.rst.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.files import Reasons, Values, miss, read_bytes
from fedmon.node.collectors.job.cgroup import UNIFIED, JobCgroup

CHARGED, PEAK, LIMIT = "job_memory_charged_bytes", "job_memory_peak_bytes", "job_memory_limit_bytes"
SWAP, ANON, CACHE = "job_memory_swap_bytes", "job_memory_anon_bytes", "job_memory_cache_bytes"
OOM_KILLS, LIMIT_HITS = "job_memory_oom_kills_total", "job_memory_limit_hits_total"
THROTTLED_S, THROTTLED_PERIODS = "job_cpu_throttled_seconds_total", "job_cpu_throttled_periods_total"
DISK_READ, DISK_WRITTEN = "job_disk_read_bytes_total", "job_disk_written_bytes_total"
DISK_READS, DISK_WRITES = "job_disk_reads_total", "job_disk_writes_total"
TASKS, TASKS_LIMIT, PRESSURE = "job_tasks", "job_tasks_limit", "job_pressure_seconds_total"
ONLY_CGROUP = (
    *(CHARGED, LIMIT, ANON, CACHE, OOM_KILLS, LIMIT_HITS, THROTTLED_S, THROTTLED_PERIODS),
    *(DISK_READ, DISK_WRITTEN, DISK_READS, DISK_WRITES, TASKS, TASKS_LIMIT, PRESSURE),
)
"""Metrics of a cgroup alone; peak and swap come from the processes otherwise."""

_UNLIMITED = 2**60
"""Version 1 writes the largest possible number of pages if there is no limit."""
_FAST, _MEDIUM = Lane.FAST, Lane.MEDIUM

Parse = Callable[[bytes], Values]


class CgroupFile(NamedTuple):
    """One file and its metrics; a text without ``mark`` belongs to a kernel that does not count them."""

    name: str
    metrics: tuple[str, ...]
    parse: Parse
    lane: Lane = _FAST
    mark: bytes = b""


def number(name: str, metric: str) -> CgroupFile:
    """Return a file with one number."""
    return CgroupFile(name, (metric,), lambda text: {metric: int(text)})


def limit(name: str, metric: str) -> CgroupFile:
    """Return a file with a limit; without a limit it gives nothing."""

    def parse(text: bytes) -> Values:
        value = _UNLIMITED if text.strip() == b"max" else int(text)
        return {} if value >= _UNLIMITED else {metric: value}

    return CgroupFile(name, (metric,), parse, _MEDIUM)


def keyed(name: str, table: Mapping[str, tuple[bytes, float]], lane: Lane = _FAST, mark: bytes = b"") -> CgroupFile:
    """Return a file with lines of a key and a number; the table maps a metric to its key and a divisor."""

    def parse(text: bytes) -> Values:
        words = text.split()
        numbers = dict(zip(words[::2], words[1::2], strict=True))
        return {
            metric: int(numbers[key]) / divisor if divisor != 1 else int(numbers[key])
            for metric, (key, divisor) in table.items()
            if key in numbers
        }

    return CgroupFile(name, tuple(table), parse, lane, mark)


def _pressure(resource: str) -> CgroupFile:
    """Return a file of lines such as ``some avg10=0.00 avg60=0.00 avg300=0.00 total=52``; the total is in us."""
    keys = {kind: series(PRESSURE, resource=resource, kind=kind.decode()) for kind in (b"some", b"full")}

    def parse(text: bytes) -> Values:
        lines = (line.split() for line in text.splitlines())
        return {keys[words[0]]: int(words[-1].removeprefix(b"total=")) / 1e6 for words in lines}

    return CgroupFile(f"{resource}.pressure", (PRESSURE,), parse)


def _io_stat(devices: Path) -> CgroupFile:
    """Return the file of lines such as ``8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0``."""
    metrics = {b"rbytes": DISK_READ, b"wbytes": DISK_WRITTEN, b"rios": DISK_READS, b"wios": DISK_WRITES}

    def parse(text: bytes) -> Values:
        return {
            series(metrics[key], device=_device(devices, device)): int(value)
            for device, *words in map(bytes.split, text.splitlines())
            for key, _, value in (word.partition(b"=") for word in words)
            if key in metrics
        }

    return CgroupFile("io.stat", tuple(metrics.values()), parse, _MEDIUM)


def _blkio(name: str, metrics: Mapping[bytes, str], devices: Path) -> CgroupFile:
    """Return a file of lines such as ``8:16 Read 1459200``; other operations and the sum are left out."""

    def parse(text: bytes) -> Values:
        lines = [words for words in map(bytes.split, text.splitlines()) if len(words) == 3]
        return {
            series(metrics[kind], device=_device(devices, device)): int(value)
            for device, kind, value in lines
            if kind in metrics
        }

    return CgroupFile(name, tuple(metrics.values()), parse, _MEDIUM)


_PIDS = (number("pids.current", TASKS), limit("pids.max", TASKS_LIMIT))
_V2 = (
    number("memory.current", CHARGED),
    number("memory.peak", PEAK),
    limit("memory.max", LIMIT),
    number("memory.swap.current", SWAP),
    keyed("memory.events", {OOM_KILLS: (b"oom_kill", 1), LIMIT_HITS: (b"max", 1)}),
    # The kernel gathers this and io.stat from all CPUs.
    keyed("memory.stat", {ANON: (b"anon", 1), CACHE: (b"file", 1)}, _MEDIUM),
    keyed(
        "cpu.stat",
        {THROTTLED_S: (b"throttled_usec", 1e6), THROTTLED_PERIODS: (b"nr_throttled", 1)},
        mark=b"throttled_usec",
    ),
    *_PIDS,
    *map(_pressure, ("cpu", "memory", "io")),
)
_V1: Mapping[str, tuple[CgroupFile, ...]] = {
    "memory": (
        number("memory.usage_in_bytes", CHARGED),
        number("memory.max_usage_in_bytes", PEAK),
        limit("memory.limit_in_bytes", LIMIT),
        number("memory.failcnt", LIMIT_HITS),
        keyed("memory.oom_control", {OOM_KILLS: (b"oom_kill", 1)}, mark=b"oom_kill "),
        keyed("memory.stat", {ANON: (b"total_rss", 1), CACHE: (b"total_cache", 1), SWAP: (b"total_swap", 1)}, _MEDIUM),
    ),
    "cpu": (
        keyed(
            "cpu.stat",
            {THROTTLED_S: (b"throttled_time", 1e9), THROTTLED_PERIODS: (b"nr_throttled", 1)},
            mark=b"throttled_time",
        ),
    ),
    "pids": _PIDS,
}


def _files(cgroup: JobCgroup, devices: Path) -> Iterable[tuple[Path, CgroupFile]]:
    """Yield the files that may hold metrics of a cgroup, with their folders; a controller is in one hierarchy."""
    if (folder := cgroup.folders.get(UNIFIED)) is not None:
        yield from ((folder, file) for file in (*_V2, _io_stat(devices)))
    for controller, files in _V1.items():
        if (folder := cgroup.folders.get(controller)) is not None:
            yield from ((folder, file) for file in files)
    if (folder := cgroup.folders.get("blkio")) is not None:
        served = {b"Read": DISK_READ, b"Write": DISK_WRITTEN}
        yield folder, _blkio("blkio.throttle.io_service_bytes_recursive", served, devices)
        count = {b"Read": DISK_READS, b"Write": DISK_WRITES}
        yield folder, _blkio("blkio.throttle.io_serviced_recursive", count, devices)


@functools.lru_cache(maxsize=1024)
def _device(devices: Path, numbers: bytes) -> str:
    """Return the name, such as ``sda``, of a device with numbers such as ``8:0``; the numbers if it is unknown."""
    try:
        return (devices / numbers.decode()).readlink().name
    except OSError:
        return numbers.decode()


def cgroup_collectors(
    cgroup: JobCgroup, *, sys: Path, is_over: Callable[[], bool]
) -> tuple[list[CgroupCollector], dict[str, str]]:
    """Return the collectors of a cgroup's readable files, and the version that each of their metrics comes from.

    ``is_over`` tells whether the job has ended.
    """
    readable: list[tuple[Path, CgroupFile]] = []
    methods: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for folder, file in _files(cgroup, sys / "dev" / "block"):
        path = folder / file.name
        try:
            reason = "" if file.mark in read_bytes(path) else f"{Why.UNSUPPORTED.value}: {path} does not count it"
        except CollectorUnavailableError as error:
            reason = error.reason
        if reason:
            reasons = dict.fromkeys(file.metrics, reason) | reasons
        else:
            readable.append((path, file))
            version = "cgroup-v2" if folder == cgroup.folders.get(UNIFIED) else "cgroup-v1"
            methods |= dict.fromkeys(file.metrics, version)
    unheld = f"{Why.UNSUPPORTED.value}: no controller of cgroup {cgroup.path} counts it"
    missing = {metric: reasons.get(metric, unheld) for metric in ONLY_CGROUP if metric not in methods}
    fast, medium = ([each for each in readable if each[1].lane is lane] for lane in (_FAST, _MEDIUM))
    collectors = [
        CgroupCollector("job-cgroup", _FAST, fast, missing, is_over=is_over),
        CgroupCollector("job-cgroup-detail", _MEDIUM, medium, {}, is_over=is_over),
    ]
    return collectors, methods


class CgroupCollector:
    """Reads the files of one lane of a job's cgroup; ``missing`` has the reasons of metrics that it does not count.

    No file stays open: 64 jobs have more of them than a process may open.
    """

    def __init__(
        self,
        name: str,
        lane: Lane,
        files: Sequence[tuple[Path, CgroupFile]],
        missing: Mapping[str, str],
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self.name, self.lane = name, lane
        self._files, self._missing, self._is_over = files, missing, is_over
        self._gave: dict[Path, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read every file; a series of one that cannot be read is None with a reason."""
        values: Values = {}
        reasons: Reasons = {}
        for path, file in () if self._is_over() else self._files:
            try:
                found = file.parse(read_bytes(path))
            except CollectorUnavailableError as error:
                miss(values, reasons, self._gave.get(path, ()), error.reason)
            else:
                self._gave[path] = tuple(found)
                values.update(found)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the counters of this cgroup."""
        return {**dict.fromkeys(metric for _, file in self._files for metric in file.metrics), **self._missing}
