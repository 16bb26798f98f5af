"""The same host metrics through psutil, for systems without /proc such as macOS."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable

import psutil

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors import agent, cpu, kernel, sensors
from fedmon.node.collectors.base import THIS_MACHINE, Collector, CollectorUnavailableError, Lane, Why, why
from fedmon.node.collectors.files import Reasons, SourceCollector, Values, awaited
from fedmon.node.collectors.filesystem import FilesystemCollector, Mounts, choose_mounts


class PortableCollector(SourceCollector):
    """One group of metrics that psutil reads with one or two calls; this system may lack some of them."""

    def __init__(
        self, name: str, metrics: Iterable[str], read: Callable[[], Values], *, lane: Lane = Lane.FAST
    ) -> None:
        missing = f"{Why.UNSUPPORTED.value}: psutil does not give it on this system"
        super().__init__(name, lane, metrics, where="psutil", untold=missing)
        self._group = read

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        try:
            values = self._group()
        except OSError as error:
            raise why(error) from None
        except psutil.AccessDenied as error:
            raise CollectorUnavailableError(Why.NO_PERMISSION, str(error)) from None
        except (psutil.Error, NotImplementedError, AttributeError) as error:
            raise CollectorUnavailableError(Why.UNSUPPORTED, f"psutil: {error}") from None
        return values, awaited(values)


def portable_collectors(*, counts: agent.Counts = dict) -> list[Collector]:
    """Return one collector for each group of host metrics, and the agent's own."""
    process, busy, medium = psutil.Process(), cpu.CpuBusy(), Lane.MEDIUM

    def cpu_times() -> Values:
        times = psutil.cpu_times()
        modes = {mode: getattr(times, mode) for mode in cpu.MODES if hasattr(times, mode)}
        total, idle = sum(modes.values()), times.idle + getattr(times, "iowait", 0.0)
        return {
            cpu.BUSY: busy.between(total - idle, total)[0],
            **{series(cpu.SECONDS, mode=mode): seconds for mode, seconds in modes.items()},
            cpu.COUNT: psutil.cpu_count(logical=True),
        }

    return [
        PortableCollector("cpu", (cpu.BUSY, cpu.SECONDS, cpu.COUNT), cpu_times),
        PortableCollector("memory", kernel.MEMORY_METRICS, _memory),
        PortableCollector("load", kernel.LOADS, lambda: dict(zip(kernel.LOADS, os.getloadavg(), strict=True))),
        FilesystemCollector(read_mounts=_mounts),
        PortableCollector("disk", kernel.DISK, _disk),
        PortableCollector("network", kernel.NETWORK, _network),
        PortableCollector("temperature", sensors.SENSOR_METRICS, _temperature, lane=medium),
        PortableCollector("frequency", cpu.FREQUENCIES, _frequency, lane=medium),
        PortableCollector("paging", kernel.PAGING, _paging, lane=medium),
        PortableCollector(
            "uptime", (kernel.UPTIME,), lambda: {kernel.UPTIME: round(time.time() - psutil.boot_time(), 2)}
        ),
        PortableCollector(
            "agent", (agent.CPU, agent.RSS), lambda: agent.own_cost(process.memory_info().rss) | dict(counts())
        ),
    ]


def _memory() -> Values:
    main, swap = psutil.virtual_memory(), psutil.swap_memory()
    values: Values = {
        "host_memory_used_bytes": max(0, main.total - main.available),
        "host_swap_total_bytes": swap.total,
        "host_swap_used_bytes": swap.used,
    }
    fields = ("total", "available", "free", "buffers", "cached", "shared", "slab")
    return values | {f"host_memory_{field}_bytes": getattr(main, field) for field in fields if hasattr(main, field)}


def _paging() -> Values:
    swap = psutil.swap_memory()
    return {"host_swap_in_bytes_total": swap.sin, "host_swap_out_bytes_total": swap.sout}


def _temperature() -> Values:
    return {
        series(sensors.TEMPERATURE, chip=chip, sensor=sensor.label or f"temp{number}"): sensor.current
        for chip, found in psutil.sensors_temperatures().items()
        for number, sensor in enumerate(found, 1)
    }


def _frequency() -> Values:
    each = [core.current * 1_000_000 for core in psutil.cpu_freq(percpu=True) if core.current > 0]
    numbers = map(round, (sum(each) / len(each), min(each), max(each)) if each else ())
    return dict(zip(cpu.FREQUENCIES, numbers, strict=False))


def _disk() -> Values:
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    values: Values = {}
    for name, keys in kernel.choose_disks(tuple(name.encode() for name in counters)).items():
        found = counters[name.decode()]
        busy_s = [found.busy_time / 1000] if hasattr(found, "busy_time") else []
        numbers = (found.read_count, found.read_bytes, found.write_count, found.write_bytes, *busy_s)
        values.update(zip(keys, numbers, strict=False))
    return values


@functools.lru_cache(maxsize=1)
def _interfaces(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Choose interfaces, anew only if names come or go: that looks for files of each."""
    return kernel.choose_interfaces(names, THIS_MACHINE.sys / "class" / "net")


def _network() -> Values:
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    values: Values = {}
    for name, keys in _interfaces(tuple(name.encode() for name in counters)).items():
        found = counters[name.decode()]
        numbers = (
            *(found.bytes_recv, found.packets_recv, found.errin, found.dropin),
            *(found.bytes_sent, found.packets_sent, found.errout, found.dropout),
        )
        values.update(zip(keys, numbers, strict=True))
    return values


def _mounts() -> Mounts:
    # Without `all`, psutil reads a list that a /proc with processes alone (subset=pid) lacks.
    return choose_mounts({part.mountpoint: (part.device, part.fstype) for part in psutil.disk_partitions(all=True)})
