"""Memory, disks, network interfaces and RDMA adapters of a machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Roots, Why
from fedmon.node.collectors.disk import SECTOR_BYTES, choose_disks
from fedmon.node.collectors.hardware.description import Adapter, Disk, Interface, MemoryNode
from fedmon.node.collectors.memory import SWAP_TOTAL, TOTAL, MemoryCollector
from fedmon.node.collectors.network import choose_interfaces
from fedmon.node.collectors.numa import MEMORY, NumaCollector
from fedmon.node.collectors.ports import Ports
from fedmon.node.collectors.sysfs import entries, read_count, read_text

_Value = TypeVar("_Value")
_MEGABIT_BYTES = 125_000


def swap_and_memory(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Tell how much memory and swap there is."""
    collector = MemoryCollector(proc=roots.proc)
    fields = {"memory_bytes": TOTAL, "swap_bytes": SWAP_TOTAL}
    report = collector.probe()
    measured = any(report[metric] is None for metric in fields.values())
    values = collector.collect(Instant(t=0.0, mono=0.0)).values if measured else {}
    for field, metric in fields.items():
        found[field] = values.get(metric)
        if found[field] is None:
            reasons[field] = report[metric] or f"{Why.FAILED.value}: it could not be read twice"


def memory_nodes(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Name the NUMA nodes, their CPUs and their memory."""
    folder = roots.sys / "devices" / "system" / "node"
    names = _listed(folder, r"node\d+", "numa", found, reasons)
    if names is None:
        return
    total = next(iter(MEMORY))
    values = NumaCollector(sys=roots.sys).collect(Instant(t=0.0, mono=0.0)).values
    found["numa"] = [
        MemoryNode(
            node=int(name[4:]),
            cpus=_or_reason(functools.partial(read_text, folder / name / "cpulist"), f"numa.{name}.cpus", reasons),
            memory_bytes=values.get(f'{total}{{node="{name[4:]}"}}'),  # type: ignore[arg-type] # a whole number
        )
        for name in names
    ]


def disks(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Name the whole disks, by the rules of DiskCollector."""
    names = _listed(roots.sys / "block", "", "disks", found, reasons)
    if names is not None:
        chosen = choose_disks(tuple(name.encode(errors="surrogateescape") for name in names))
        found["disks"] = [_disk(roots.sys / "block", name.decode(errors="replace"), reasons) for name in chosen]


def interfaces(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Name the network interfaces that leave the machine."""
    folder = roots.sys / "class" / "net"
    names = _listed(folder, "", "network", found, reasons)
    if names is None:
        return
    chosen = choose_interfaces(tuple(name.encode(errors="surrogateescape") for name in names))
    found["network"] = [_interface(folder / name.decode(errors="replace"), reasons) for name in chosen]


def adapters(roots: Roots, found: dict[str, Any], reasons: dict[str, str], _notes: dict[str, str]) -> None:
    """Name the InfiniBand and other RDMA adapters; an empty list where there is none."""
    folder = roots.sys / "class" / "infiniband"
    try:
        ports = Ports(folder).look()
    except CollectorUnavailableError as error:
        found["infiniband"] = [] if error.is_lack else None
        if not error.is_lack:
            reasons["infiniband"] = error.reason
        return
    found["infiniband"] = [
        Adapter(
            device=device,
            model=_or_none(functools.partial(read_text, folder / device / "hca_type")),
            link_layers=sorted({port.link_layer for port in ports if port.device == device and port.link_layer}),
            rates=[port.rate_text for port in ports if port.device == device],
        )
        for device in dict.fromkeys(port.device for port in ports)
    ]


def _disk(folder: Path, name: str, reasons: dict[str, str]) -> Disk:
    def told(field: str, read: Callable[[], _Value]) -> _Value | None:
        return _or_reason(read, f"disks.{name}.{field}", reasons)

    disk = folder / name
    return Disk(
        device=name,
        model=told("model", lambda: read_text(disk / "device" / "model")),
        size_bytes=told("size_bytes", lambda: read_count(disk / "size") * SECTOR_BYTES),
        rotational=told("rotational", lambda: read_count(disk / "queue" / "rotational") != 0),
    )


def _interface(folder: Path, reasons: dict[str, str]) -> Interface:
    def speed() -> int:
        megabits = int(read_text(folder / "speed"))
        if megabits <= 0:  # the kernel's way to say that there is no link
            raise CollectorUnavailableError(Why.UNSUPPORTED, f"{folder / 'speed'} knows no speed")
        return megabits * _MEGABIT_BYTES

    driver = folder / "device" / "driver"
    return Interface(
        interface=folder.name,
        driver=driver.resolve().name if driver.exists() else None,
        speed_bytes_per_second=_or_reason(speed, f"network.{folder.name}.speed_bytes_per_second", reasons),
    )


def _listed(folder: Path, pattern: str, field: str, found: dict[str, Any], reasons: dict[str, str]) -> list[str] | None:
    """Return the names in a folder; where it cannot be read, note the field as unknown and return None."""
    try:
        return entries(folder, pattern)
    except CollectorUnavailableError as error:
        found[field], reasons[field] = None, error.reason
        return None


def _or_reason(read: Callable[[], _Value], field: str, reasons: dict[str, str]) -> _Value | None:
    try:
        return read()
    except CollectorUnavailableError as error:
        reasons[field] = error.reason
    except ValueError as error:
        reasons[field] = f"{Why.FAILED.value}: {error}"
    return None


def _or_none(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except CollectorUnavailableError:
        return None
