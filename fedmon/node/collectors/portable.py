"""The same host metrics through psutil, for systems without /proc such as macOS."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import psutil

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, series
from fedmon.node.collectors import activity, agent, cpu, disk, filesystem, frequency, load, memory, network, temperature
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Why, why
from fedmon.node.collectors.filesystem import Mounts, choose_mounts

Values = dict[str, float | None]


class PortableCollector:
    """One group of metrics that psutil reads with one or two calls.

    A metric that ``read`` does not give on this system is reported as unsupported.
    """

    def __init__(
        self, name: str, metrics: tuple[str, ...], read: Callable[[], Values], *, lane: Lane = Lane.FAST
    ) -> None:
        self._name, self._metrics, self._read, self._lane = name, metrics, read, lane

    @property
    def name(self) -> str:
        """Return the word under which this collector is reported."""
        return self._name

    @property
    def lane(self) -> Lane:
        """Return how often this group is read."""
        return self._lane

    def collect(self, _now: Instant) -> Reading:
        """Read the group once."""
        values = self._guarded()
        return Reading(values, {key: Why.FIRST_SAMPLE.value for key, value in values.items() if value is None})

    def probe(self) -> dict[str, str | None]:
        """Say which metrics psutil gives on this system."""
        try:
            found = set(map(metric_name, self._guarded()))
        except CollectorUnavailableError as error:
            return dict.fromkeys(self._metrics, error.reason)
        missing = f"{Why.UNSUPPORTED.value}: psutil does not tell on this system"
        return {metric: None if metric in found else missing for metric in self._metrics}

    def _guarded(self) -> Values:
        try:
            return self._read()
        except OSError as error:
            raise why(error) from None
        except psutil.AccessDenied as error:
            raise CollectorUnavailableError(Why.NO_PERMISSION, str(error)) from None
        except (psutil.Error, NotImplementedError, AttributeError) as error:
            raise CollectorUnavailableError(Why.UNSUPPORTED, f"psutil: {error}") from None


class PortableCpuCollector:
    """CPU time by mode, with the busy share between two ticks."""

    name = "cpu"
    lane = Lane.FAST

    def __init__(self) -> None:
        self._busy = cpu.CpuBusy()
        self._times = PortableCollector("cpu", (cpu.SECONDS, cpu.COUNT), _cpu)

    def collect(self, now: Instant) -> Reading:
        """Read the counters; the busy share is None at the first tick."""
        values = dict(self._times.collect(now).values)
        times = {key: value or 0.0 for key, value in values.items() if key != cpu.COUNT}
        idle = sum(times.get(series(cpu.SECONDS, mode=mode), 0.0) for mode in ("idle", "iowait"))
        total = sum(times.values())
        values[cpu.BUSY], reason = self._busy.between(total - idle, total)
        return Reading(values, {cpu.BUSY: reason} if reason else {})

    def probe(self) -> dict[str, str | None]:
        """Say whether psutil gives the counters."""
        report = self._times.probe()
        return {cpu.BUSY: report[cpu.SECONDS]} | report


def portable_collectors(*, counts: Callable[[], Mapping[str, float | None]] | None = None) -> list[Collector]:
    """Return one collector for each group of host metrics, and the agent's own."""
    process = psutil.Process()

    def own_cost() -> Values:
        values: Values = {agent.CPU: round(time.process_time(), 6), agent.RSS: process.memory_info().rss}
        if counts is not None:
            values.update(counts())
        return values

    return [
        PortableCpuCollector(),
        PortableCollector("memory", memory.METRICS, _memory),
        PortableCollector("load", load.LOADS, _load),
        filesystem.FilesystemCollector(read_mounts=_mounts),
        PortableCollector("disk", disk.METRICS, _disk),
        PortableCollector("network", network.METRICS, _network),
        PortableCollector("temperature", temperature.METRICS, _temperature, lane=Lane.MEDIUM),
        PortableCollector("frequency", frequency.METRICS, _frequency, lane=Lane.MEDIUM),
        PortableCollector("paging", tuple(activity.VMSTAT), _paging, lane=Lane.MEDIUM),
        PortableCollector("uptime", (load.UPTIME,), _uptime),
        PortableCollector("agent", (agent.CPU, agent.RSS), own_cost),
    ]


def _cpu() -> Values:
    times = psutil.cpu_times()
    values: Values = {
        series(cpu.SECONDS, mode=mode): getattr(times, mode) for mode in cpu.MODES if hasattr(times, mode)
    }
    values[cpu.COUNT] = psutil.cpu_count(logical=True)
    return values


def _memory() -> Values:
    main, swap = psutil.virtual_memory(), psutil.swap_memory()
    values: Values = {
        "host_memory_total_bytes": main.total,
        "host_memory_available_bytes": main.available,
        "host_memory_used_bytes": max(0, main.total - main.available),
        "host_memory_free_bytes": main.free,
        "host_swap_total_bytes": swap.total,
        "host_swap_used_bytes": swap.used,
    }
    for field in ("buffers", "cached", "shared", "slab"):
        metric = f"host_memory_{field}_bytes"
        if hasattr(main, field):
            values[metric] = getattr(main, field)
    return values


def _paging() -> Values:
    swap = psutil.swap_memory()
    return {"host_swap_in_bytes_total": swap.sin, "host_swap_out_bytes_total": swap.sout}


def _temperature() -> Values:
    """Return what psutil tells, which is nothing on systems where it has no such functions."""
    values: Values = {}
    for chip, sensors in psutil.sensors_temperatures().items():
        for number, sensor in enumerate(sensors, 1):
            values[series(temperature.TEMPERATURE, chip=chip, sensor=sensor.label or f"temp{number}")] = sensor.current
    return values


def _frequency() -> Values:
    each = [core.current * 1_000_000 for core in psutil.cpu_freq(percpu=True) if core.current > 0]
    if not each:
        raise CollectorUnavailableError(Why.UNSUPPORTED, "psutil tells no frequency on this system")
    return dict(zip(frequency.METRICS, (round(sum(each) / len(each)), round(min(each)), round(max(each))), strict=True))


def _load() -> Values:
    return dict(zip(load.LOADS, os.getloadavg(), strict=True))


def _uptime() -> Values:
    return {load.UPTIME: round(time.time() - psutil.boot_time(), 2)}


def _disk() -> Values:
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    disks = disk.choose_disks(tuple(name.encode() for name in counters))
    values: Values = {}
    for name, keys in disks.items():
        counted = counters[name.decode()]
        values[keys[0]] = counted.read_count
        values[keys[1]] = counted.read_bytes
        values[keys[2]] = counted.write_count
        values[keys[3]] = counted.write_bytes
        if hasattr(counted, "busy_time"):
            values[keys[4]] = counted.busy_time / 1000
    return values


def _network() -> Values:
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    values: Values = {}
    for name, keys in network.choose_interfaces(tuple(name.encode() for name in counters)).items():
        counted = counters[name.decode()]
        numbers = (
            *(counted.bytes_recv, counted.packets_recv, counted.errin, counted.dropin),
            *(counted.bytes_sent, counted.packets_sent, counted.errout, counted.dropout),
        )
        values.update(zip(keys, numbers, strict=True))
    return values


def _mounts() -> Mounts:
    partitions = psutil.disk_partitions(all=False)
    return choose_mounts({entry.mountpoint: (entry.device, entry.fstype) for entry in partitions})
