"""Memory, load, activity, pressure, disks, network and NUMA nodes: one table per kernel file."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.files import (
    PAGE_BYTES,
    FileCollector,
    KernelFile,
    KeyedFile,
    Reasons,
    RowFile,
    SourceCollector,
    Values,
    entries,
    entries_or_none,
    miss,
    read_bytes,
    text_or,
)

_KIB = 1024
SECTOR_BYTES = 512
"""The kernel's unit of disk counters, for any sector size of the disk."""

MAX_DEVICES = 64
"""Disks and interfaces beyond this number are left out: a storage network or containers can bring thousands."""

_SWAP_FREE = "swap free"
MEMORY = {
    "host_memory_total_bytes": (b"MemTotal:", _KIB),
    "host_memory_free_bytes": (b"MemFree:", _KIB),
    "host_memory_available_bytes": (b"MemAvailable:", _KIB),
    "host_memory_buffers_bytes": (b"Buffers:", _KIB),
    "host_memory_cached_bytes": (b"Cached:", _KIB),
    "host_swap_total_bytes": (b"SwapTotal:", _KIB),
    _SWAP_FREE: (b"SwapFree:", _KIB),
    "host_memory_dirty_bytes": (b"Dirty:", _KIB),
    "host_memory_shared_bytes": (b"Shmem:", _KIB),
    "host_memory_slab_bytes": (b"Slab:", _KIB),
}
MEMORY_METRICS = (
    *(metric for metric in MEMORY if metric != _SWAP_FREE),
    "host_memory_used_bytes",
    "host_swap_used_bytes",
)
ACTIVITY = {
    "host_interrupts_total": (b"intr ", 1),
    "host_context_switches_total": (b"ctxt ", 1),
    "host_processes_started_total": (b"processes ", 1),
    "host_processes_running": (b"procs_running ", 1),
    "host_processes_blocked": (b"procs_blocked ", 1),
}
PAGING = {
    "host_swap_in_bytes_total": (b"pswpin ", PAGE_BYTES),
    "host_swap_out_bytes_total": (b"pswpout ", PAGE_BYTES),
    "host_page_faults_total": (b"pgfault ", 1),
    "host_page_faults_major_total": (b"pgmajfault ", 1),
    "host_oom_kills_total": (b"oom_kill ", 1),
}
LOADS = ("host_load1", "host_load5", "host_load15")
UPTIME = "host_uptime_seconds"

# Source: Linux Documentation/admin-guide/iostats.rst; the first three columns are numbers and name of the device.
_DISK_COLUMNS = ((3, 1, 1), (5, SECTOR_BYTES, 1), (7, 1, 1), (9, SECTOR_BYTES, 1), (12, 1, 1000))
DISK = (
    *("host_disk_reads_total", "host_disk_read_bytes_total", "host_disk_writes_total", "host_disk_written_bytes_total"),
    "host_disk_busy_seconds_total",
)
_NOT_A_DISK = re.compile(rb"(?:loop|z?ram|fd|sr)\d+(?:p\d+)?")
_ON_DISKS = re.compile(rb"(?:dm-|md|bcache|drbd|zd)\d+")
_PARTITION = re.compile(rb"((?:[hsv]|xv)d[a-z]+)\d+|((?:nvme\d+n|mmcblk|nbd|md|bcache|drbd|zd)\d+)p\d+")

_NETWORK_COLUMNS = tuple((column, 1, 1) for column in (1, 2, 3, 4, 9, 10, 11, 12))
NETWORK = tuple(
    f"host_network_{way}_{what}_total"
    for way in ("receive", "transmit")
    for what in ("bytes", "packets", "errors", "dropped")
)
_ETHERNET, _INFINIBAND = "1", "32"
"""Kinds of interfaces in sysfs. Source: Linux include/uapi/linux/if_arp.h."""
_ON_OTHERS = ("bridge", "lower_", "tun_flags")
# By its files in sysfs the end of a container looks like the way out of one; other systems have no sysfs.
_VIRTUAL = re.compile(
    rb"(?:bond|team|(?:fw|vir|vm)?br|cali|cilium|cni|docker|dummy|flannel|fwln|fwpr|ifb|kube-|lx[cd]|podman|tailscale|tap"
    rb"|u?tun|veth|(?:mac|ip)?vlan|vnet|vxlan|wg|zt).*|(?!ib).+\.\d+|(?:sit|gre|gretap|erspan|ip6tnl|ip6gre|ip6?_vti)\d+"
)

PRESSURE = ("host_pressure_seconds_total", "host_pressure_ratio")
NUMA_MEMORY = {
    "host_numa_memory_total_bytes": "MemTotal",
    "host_numa_memory_free_bytes": "MemFree",
    "host_numa_memory_used_bytes": "MemUsed",
    "host_numa_memory_cached_bytes": "FilePages",
}
NUMA_PAGES = {
    "host_numa_hits_total": "numa_hit",
    "host_numa_misses_total": "numa_miss",
    "host_numa_foreign_total": "numa_foreign",
    "host_numa_interleave_hits_total": "interleave_hit",
    "host_numa_local_total": "local_node",
    "host_numa_other_total": "other_node",
}


def proc_collectors(proc: Path, sys: Path) -> list[FileCollector]:
    """Return the collectors of single files of /proc; disks are those without partitions, loop, RAM or optical devices.

    Interfaces are chosen by ``sys``, see `choose_interfaces`.
    """
    fast, medium, threads = Lane.FAST, Lane.MEDIUM, ("host_threads", "host_threads_runnable")
    disks = RowFile(choose_disks, _DISK_COLUMNS, name=2)
    leaving = functools.partial(choose_interfaces, folder=sys / "class" / "net")
    interfaces = RowFile(leaving, _NETWORK_COLUMNS, name=0, header=2)
    no_disk = f"{Why.NOT_FOUND.value}: no disk is listed"
    no_interface = f"{Why.NOT_FOUND.value}: no interface that leaves this host is listed"
    return [
        memory_collector(proc),
        FileCollector("load", fast, proc / "loadavg", _load, (*LOADS, *threads), size_bytes=128),
        FileCollector("disk", fast, proc / "diskstats", disks, DISK, is_long=True, untold=no_disk),
        FileCollector("network", fast, proc / "net" / "dev", interfaces, NETWORK, is_long=True, untold=no_interface),
        FileCollector("activity", medium, proc / "stat", KeyedFile(ACTIVITY), ACTIVITY, is_long=True),
        FileCollector("paging", medium, proc / "vmstat", KeyedFile(PAGING), PAGING, is_long=True),
        FileCollector("uptime", fast, proc / "uptime", _uptime, [UPTIME], size_bytes=128),
    ]


def memory_collector(proc: Path) -> FileCollector:
    """Return the collector of ``meminfo``."""
    read = KeyedFile(MEMORY)

    def parse(text: bytes) -> Values:
        values = read(text)
        for used, whole, rest in (
            ("host_memory_used_bytes", "host_memory_total_bytes", "host_memory_available_bytes"),
            ("host_swap_used_bytes", "host_swap_total_bytes", _SWAP_FREE),
        ):
            total, free = values.get(whole), values.get(rest)
            if total is not None and free is not None:
                values[used] = total - free
        values.pop(_SWAP_FREE, None)
        return values

    return FileCollector("memory", Lane.FAST, proc / "meminfo", parse, MEMORY_METRICS)


def choose_disks(names: tuple[bytes, ...]) -> dict[bytes, tuple[str, ...]]:
    """Map each disk that is reported to its series; a name such as ``xvda1`` is a partition if ``xvda`` exists."""

    def is_whole(name: bytes) -> bool:
        match = _PARTITION.fullmatch(name)
        return not _NOT_A_DISK.fullmatch(name) and (match is None or (match[1] or match[2]) not in names)

    whole = list(filter(is_whole, names))
    return _series_of([name for name in whole if not _ON_DISKS.fullmatch(name)] or whole, DISK, "device")


def choose_interfaces(names: tuple[bytes, ...], folder: Path) -> dict[bytes, tuple[str, ...]]:
    """Map each interface that is reported to its series; ``folder`` is ``/sys/class/net``.

    Interfaces with a device, such as a network card, are reported. If none has one, as in a container, or without
    ``folder``, these are all but loopback, and but bridges, VLANs, tunnels and the like unless there are no others.
    Source: Linux Documentation/ABI/testing/sysfs-class-net.
    """
    layers = {name: _layer(name, folder / os.fsdecode(name)) for name in names if name.rstrip(b"0123456789") != b"lo"}
    lowest = min(layers.values(), default=0)
    return _series_of([name for name, layer in layers.items() if layer == lowest], NETWORK, "interface")


def _layer(name: bytes, own: Path) -> int:
    """Return 0 for an interface with a device, 1 for a plain one, 2 for a part of another one, 3 for one on others."""
    # A virtual function below the interface of a hypervisor is counted there.
    if entries_or_none(own / "device") and not entries_or_none(own / "master/device"):
        return 0
    if _VIRTUAL.fullmatch(name):  # there may be hundreds
        return 3
    files = entries_or_none(own)
    if any(file.startswith(_ON_OTHERS) for file in files):  # a bond has the kind of its members
        return 3
    kind = text_or(own / "type", _ETHERNET)
    if kind == _INFINIBAND:  # a partition counts apart
        return 0
    return 3 if kind != _ETHERNET else 1 + ("master" in files)


class PressureCollector(SourceCollector):
    """Reads ``pressure/cpu``, ``memory`` and ``io``.

    Source: Linux Documentation/accounting/psi.rst. Kernels before 5.13 have no line ``full`` for the CPU.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._keys = {
            KernelFile(proc / "pressure" / resource, size_bytes=512): {
                stalled.encode(): tuple(series(metric, resource=resource, stalled=stalled) for metric in PRESSURE)
                for stalled in ("some", "full")
            }
            for resource in ("cpu", "memory", "io")
        }
        super().__init__("pressure", Lane.FAST, PRESSURE, where=proc / "pressure", files=self._keys)

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for file, keys in self._keys.items():
            try:
                text = file.head()
            except CollectorUnavailableError as error:
                if error.is_lack:  # a kernel has all of them or none
                    raise
                miss(values, reasons, (key for pair in keys.values() for key in pair), error.reason)
                continue
            for line in text.splitlines():
                kind, last_10_s, _, _, total = line.split()
                seconds, ratio = keys[kind]
                values[seconds] = int(total[6:]) / 1_000_000
                # The kernel rounds, and the value may be a little above 100 %.
                values[ratio] = min(round(float(last_10_s[6:]) / 100, 4), 1.0)
        return values, reasons


class NumaCollector(SourceCollector):
    """Reads ``meminfo`` and ``numastat`` of each NUMA node. Source: Linux Documentation/admin-guide/numastat.rst."""

    def __init__(self, *, sys: Path = Path("/sys")) -> None:
        self._nodes = sys / "devices" / "system" / "node"
        super().__init__("numa", Lane.MEDIUM, (*NUMA_MEMORY, *NUMA_PAGES), where=self._nodes)

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        values: Values = {}
        reasons: Reasons = {}
        for name in entries(self._nodes, r"node\d+"):
            for metrics, file, factor in ((NUMA_MEMORY, "meminfo", _KIB), (NUMA_PAGES, "numastat", 1)):
                keys = {series(metric, node=name[4:]): word for metric, word in metrics.items()}
                try:
                    text = read_bytes(self._nodes / name / file).decode()
                except CollectorUnavailableError as error:
                    miss(values, reasons, keys, error.reason)
                    continue
                found = dict(re.findall(r"(\w+):? +(\d+)", text))
                values.update({key: int(found[word]) * factor for key, word in keys.items() if word in found})
        return values, reasons


def _load(text: bytes) -> Values:
    one, five, fifteen, threads, _ = text.split()
    runnable, _, existing = threads.partition(b"/")
    return {
        **dict(zip(LOADS, (float(one), float(five), float(fifteen)), strict=True)),
        "host_threads": int(existing),
        "host_threads_runnable": int(runnable),
    }


def _uptime(text: bytes) -> Values:
    return {UPTIME: float(text.split()[0])}


def _series_of(names: Iterable[bytes], metrics: tuple[str, ...], label: str) -> dict[bytes, tuple[str, ...]]:
    return {
        name: tuple(series(metric, **{label: name.decode(errors="replace")}) for metric in metrics)
        for name in list(names)[:MAX_DEVICES]
    }
