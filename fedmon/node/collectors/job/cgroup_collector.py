"""Metrics of a job's cgroup as a whole: one table for each version.

Source: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{cpuacct,memory,blkio-controller,pids}.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.files import KernelFile, Reasons, Values, miss
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

MAX_DEVICES = 64
"""Devices beyond this number are left out, so that one sample always fits into a message."""

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


def _io_stat(names: DeviceNames) -> CgroupFile:
    """Return the file of lines such as ``8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0``."""
    metrics = {b"rbytes": DISK_READ, b"wbytes": DISK_WRITTEN, b"rios": DISK_READS, b"wios": DISK_WRITES}

    def parse(text: bytes) -> Values:
        return {
            series(metrics[key], device=names.of(device)): int(value)
            for device, *words in map(bytes.split, text.splitlines()[:MAX_DEVICES])
            for key, _, value in (word.partition(b"=") for word in words)
            if key in metrics
        }

    return CgroupFile("io.stat", tuple(metrics.values()), parse, _MEDIUM)


def _blkio(name: str, metrics: Mapping[bytes, str], names: DeviceNames) -> CgroupFile:
    """Return a file of lines such as ``8:16 Read 1459200``; other operations and the sum are left out."""

    def parse(text: bytes) -> Values:
        lines = [words for words in map(bytes.split, text.splitlines()) if len(words) == 3]
        devices = list(dict.fromkeys(words[0] for words in lines))[:MAX_DEVICES]
        return {
            series(metrics[kind], device=names.of(device)): int(value)
            for device, kind, value in lines
            if kind in metrics and device in devices
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


def _files(cgroup: JobCgroup, names: DeviceNames) -> Iterable[tuple[Path, CgroupFile]]:
    """Yield the files that may hold metrics of a cgroup, with their folders, preferred ones first."""
    if (folder := cgroup.folders.get(UNIFIED)) is not None:
        yield from ((folder, file) for file in (*_V2, _io_stat(names)))
    for controller, files in _V1.items():
        if (folder := cgroup.folders.get(controller)) is not None:
            yield from ((folder, file) for file in files)
    if (folder := cgroup.folders.get("blkio")) is not None:
        # Old kernels count each group for itself alone.
        ending = "_recursive" if (folder / "blkio.throttle.io_service_bytes_recursive").exists() else ""
        served = {b"Read": DISK_READ, b"Write": DISK_WRITTEN}
        yield folder, _blkio(f"blkio.throttle.io_service_bytes{ending}", served, names)
        yield folder, _blkio(f"blkio.throttle.io_serviced{ending}", {b"Read": DISK_READS, b"Write": DISK_WRITES}, names)


class DeviceNames:
    """Turns a device's numbers such as ``8:0`` into its name such as ``sda``, once."""

    def __init__(self, sys: Path) -> None:
        self._folder = sys / "dev" / "block"
        self._names: dict[bytes, str] = {}

    def of(self, numbers: bytes) -> str:
        """Return the name, or the numbers if it is unknown."""
        if numbers not in self._names:
            text = numbers.decode()
            try:
                self._names[numbers] = os.path.basename(os.readlink(self._folder / text))  # noqa: PTH115, PTH119
            except OSError:
                self._names[numbers] = text
        return self._names[numbers]


class CgroupSources:
    """The readable files of a cgroup, with the version behind each metric, and the reasons of missing ones."""

    def __init__(self, cgroup: JobCgroup, *, sys: Path) -> None:
        self.files: list[tuple[KernelFile, CgroupFile]] = []
        held: dict[str, Path] = {}
        reasons: dict[str, str] = {}
        for folder, file in _files(cgroup, DeviceNames(sys)):
            wanted = [metric for metric in file.metrics if held.get(metric, folder) == folder]
            source = KernelFile(folder / file.name)
            try:
                text = source.read()
                _parsed(source, file, text)
            except CollectorUnavailableError as error:
                reason = error.reason
            else:
                reason = "" if file.mark in text else f"{Why.UNSUPPORTED.value}: {source.path} does not count it"
            source.close()
            if wanted and not reason:
                self.files.append((source, file))
                held.update(dict.fromkeys(wanted, folder))
            for metric in wanted if reason else ():
                reasons.setdefault(metric, reason)
        unheld = f"{Why.UNSUPPORTED.value}: no controller of cgroup {cgroup.path} counts it"
        self.missing = {metric: reasons.get(metric, unheld) for metric in ONLY_CGROUP if metric not in held}
        unified = cgroup.folders.get(UNIFIED)
        self.methods = {metric: "cgroup-v2" if folder == unified else "cgroup-v1" for metric, folder in held.items()}


class CgroupCollector:
    """Reads the files of one lane of a job's cgroup; that of the fast lane also reports the missing metrics.

    ``is_over`` tells whether the job has ended.
    """

    def __init__(self, is_over: Callable[[], bool], sources: CgroupSources, *, lane: Lane) -> None:
        self.lane = lane
        self.name = "job-cgroup" if lane is _FAST else "job-cgroup-detail"
        self._is_over = is_over
        self._missing = sources.missing if lane is _FAST else {}
        self._sources = [(source, file) for source, file in sources.files if file.lane is lane]
        self._gave: dict[KernelFile, tuple[str, ...]] = {}

    def collect(self, _now: Instant) -> Reading:
        """Read every file; a series of one that cannot be read is None with a reason."""
        values: Values = {}
        reasons: Reasons = {}
        for source, file in () if self._is_over() else self._sources:
            try:
                found = _parsed(source, file, source.read())
            except CollectorUnavailableError as error:
                miss(values, reasons, self._gave.get(source, ()), error.reason)
            else:
                self._gave[source] = tuple(found)
                values.update(found)
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Report the counters of this cgroup."""
        measured = dict.fromkeys(metric for _, file in self._sources for metric in file.metrics)
        return {**measured, **self._missing}

    def close(self) -> None:
        """Close the files."""
        for source, _ in self._sources:
            source.close()


def _parsed(source: KernelFile, file: CgroupFile, text: bytes) -> Values:
    try:
        return file.parse(text)
    except (ValueError, IndexError) as error:
        raise CollectorUnavailableError(Why.FAILED, f"{source.path}: {error}"[:200]) from None
