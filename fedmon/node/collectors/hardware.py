"""What the machine is made of: one document, made once."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.files import entries, read_number, read_text, text_or
from fedmon.node.collectors.infiniband import Ports
from fedmon.node.collectors.kernel import SECTOR_BYTES, NumaCollector, choose_disks, choose_interfaces, memory_collector
from fedmon.node.collectors.processors import Cache, cpuinfo, describe_processors

_ValueT = TypeVar("_ValueT")
_NOW = Instant(t=0.0, mono=0.0)

INFO = "host_hardware_info"
INFO_LABELS = (
    *("simulated", "vendor", "model", "microarchitecture", "sockets", "cores", "threads", "kernel"),
    "virtualisation",
)
_HYPERVISORS = {
    "amazon ec2": "amazon",
    "bochs": "bochs",
    "google": "google",
    "innotek": "virtualbox",
    "kvm": "kvm",
    "microsoft": "hyper-v",
    "openstack": "kvm",
    "parallels": "parallels",
    "qemu": "qemu",
    "virtualbox": "virtualbox",
    "vmware": "vmware",
    "xen": "xen",
}


class MemoryNode(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node: its number, the list of its CPUs such as ``0-15``, and its memory."""

    node: int
    cpus: str | None
    memory_bytes: int | None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One whole disk."""

    device: str
    model: str | None
    size_bytes: int | None
    rotational: bool | None


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface that leaves the machine; its speed is known while it has a link."""

    interface: str
    driver: str | None
    speed_bytes_per_second: int | None


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """One InfiniBand or other RDMA adapter, and the rates of its ports such as ``100 Gb/sec (4X EDR)``."""

    device: str
    model: str | None
    link_layers: list[str]
    rates: list[str]


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is made of.

    ``threads`` are the CPUs that the kernel has, whether on or off. What is unknown is None; ``reasons`` says why,
    by the field's name, or by a name such as ``disks.sda.model``. ``notes`` says what to be careful with.
    ``simulated`` is set when the description is not of the machine that this process runs on.
    """

    simulated: bool
    vendor: str | None
    model: str | None
    architecture: str | None
    microarchitecture: str | None
    sockets: int | None
    cores: int | None
    threads: int | None
    caches: list[Cache] | None
    memory_bytes: int | None
    swap_bytes: int | None
    numa: list[MemoryNode] | None
    disks: list[Disk] | None
    network: list[Interface] | None
    infiniband: list[Adapter] | None
    gpus: list[dict[str, Any]] | None
    os: str | None
    kernel: str | None
    python: str
    virtualisation: str | None
    reasons: dict[str, str]
    notes: dict[str, str]


def describe(roots: Roots, *, gpus: Sequence[Mapping[str, Any]] | None = None) -> Hardware:
    """Describe the machine whose files lie under ``roots``; takes milliseconds, so do it once.

    ``gpus`` describes each GPU; None when nothing looked for them. Raises nothing: what is unknown is None and named
    in ``reasons``.
    """
    reasons: dict[str, str] = {}
    notes: dict[str, str] = {}
    found: dict[str, Any] = describe_processors(roots, reasons, notes)
    _memory(roots, found, reasons)
    found["disks"] = _devices(roots.sys / "block", choose_disks, _disk, "disks", reasons)
    found["network"] = _devices(roots.sys / "class" / "net", choose_interfaces, _interface, "network", reasons)
    found["infiniband"] = _adapters(roots.sys / "class" / "infiniband", reasons)
    _system(roots, found, reasons)
    if gpus is None:
        reasons["gpus"] = "not found: nobody looked for GPUs"
    return Hardware(**found, gpus=None if gpus is None else [dict(gpu) for gpu in gpus], reasons=reasons, notes=notes)


def hardware(roots: Roots = THIS_MACHINE, *, gpus: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Describe a machine as a document that a message can carry."""
    document: dict[str, Any] = msgspec.to_builtins(describe(roots, gpus=gpus))
    return document


class HardwareCollector:
    """Gives the description as the labels of one series, whose value is 1; an empty label is unknown."""

    name = "hardware"
    lane = Lane.SLOW

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._key = ""

    def collect(self, _now: Instant) -> Reading:
        """Give the description that was made at the first reading."""
        if not self._key:
            found = describe(self._roots)
            self._key = series(INFO, **{label: _label(getattr(found, label)) for label in INFO_LABELS})
        return Reading({self._key: 1})

    def probe(self) -> dict[str, str | None]:
        """Say that there is always a description."""
        return {INFO: None}


def _label(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _memory(roots: Roots, found: dict[str, Any], reasons: dict[str, str]) -> None:
    """Describe memory and swap, and the NUMA nodes."""
    collector = memory_collector(roots.proc)
    report = collector.probe()
    values = collector.collect(_NOW).values if None in report.values() else {}
    for field, metric in (("memory_bytes", "host_memory_total_bytes"), ("swap_bytes", "host_swap_total_bytes")):
        found[field] = values.get(metric)
        if found[field] is None:
            reasons[field] = report[metric] or Why.FAILED.value
    folder = roots.sys / "devices" / "system" / "node"
    nodes = _told(lambda: entries(folder, r"node\d+"), "numa", reasons)
    found["numa"] = nodes
    if nodes is not None:
        memory = NumaCollector(sys=roots.sys).collect(_NOW).values
        found["numa"] = [
            MemoryNode(
                node=int(name[4:]),
                cpus=_told(functools.partial(read_text, folder / name / "cpulist"), f"numa.{name}.cpus", reasons),
                memory_bytes=memory.get(series("host_numa_memory_total_bytes", node=name[4:])),  # type: ignore[arg-type] # whole
            )
            for name in nodes
        ]


def _devices(
    folder: Path,
    choose: Callable[[tuple[bytes, ...]], Iterable[bytes]],
    one: Callable[[Path, dict[str, str]], _ValueT],
    field: str,
    reasons: dict[str, str],
) -> list[_ValueT] | None:
    """Describe the devices of a folder that are reported, by the rules of their collector."""
    names = _told(functools.partial(entries, folder), field, reasons)
    if names is None:
        return None
    chosen = choose(tuple(name.encode(errors="surrogateescape") for name in names))
    return [one(folder / name.decode(errors="replace"), reasons) for name in chosen]


def _disk(folder: Path, reasons: dict[str, str]) -> Disk:
    where = f"disks.{folder.name}"
    rotational = _told(lambda: read_number(folder / "queue" / "rotational"), f"{where}.rotational", reasons)
    return Disk(
        device=folder.name,
        model=_told(lambda: read_text(folder / "device" / "model"), f"{where}.model", reasons),
        size_bytes=_told(lambda: read_number(folder / "size") * SECTOR_BYTES, f"{where}.size_bytes", reasons),
        rotational=None if rotational is None else rotational != 0,
    )


def _interface(folder: Path, reasons: dict[str, str]) -> Interface:
    def speed() -> int:
        megabits = read_number(folder / "speed")
        if megabits <= 0:  # the kernel's way to say that there is no link
            raise CollectorUnavailableError(Why.UNSUPPORTED, f"{folder / 'speed'} knows no speed")
        return megabits * 125_000

    driver = folder / "device" / "driver"
    return Interface(
        interface=folder.name,
        driver=driver.resolve().name if driver.exists() else None,
        speed_bytes_per_second=_told(speed, f"network.{folder.name}.speed_bytes_per_second", reasons),
    )


def _adapters(folder: Path, reasons: dict[str, str]) -> list[Adapter] | None:
    """Return the RDMA adapters: an empty list where there is none, None where they cannot be listed."""
    try:
        ports = Ports(folder).look(_NOW)
    except CollectorUnavailableError as error:
        if error.is_lack:
            return []
        reasons["infiniband"] = error.reason
        return None
    return [
        Adapter(
            device=device,
            model=text_or(folder / device / "hca_type") or None,
            link_layers=sorted({port.link_layer for port in ports if port.device == device and port.link_layer}),
            rates=[port.rate for port in ports if port.device == device],
        )
        for device in dict.fromkeys(port.device for port in ports)
    ]


def _system(roots: Roots, found: dict[str, Any], reasons: dict[str, str]) -> None:
    """Describe the system that runs on the machine; Python is always ours."""
    found["simulated"] = roots.simulated
    found["python"] = f"{platform.python_implementation()} {platform.python_version()}"
    found["kernel"] = _told(lambda: read_text(roots.proc / "sys" / "kernel" / "osrelease"), "kernel", reasons)
    found["os"] = None
    if roots.simulated:
        reasons["os"] = f"{Why.UNSUPPORTED.value}: trees that stand in for a machine do not tell its distribution"
    else:
        try:
            found["os"] = platform.freedesktop_os_release().get("PRETTY_NAME")
        except OSError:
            found["os"] = platform.platform(terse=True)
    found["virtualisation"] = _virtualisation(roots, reasons)


def _virtualisation(roots: Roots, reasons: dict[str, str]) -> str | None:
    """Return the hypervisor of this virtual machine, ``none`` on bare metal, None where that is unknown."""
    try:
        blocks = cpuinfo(roots.proc / "cpuinfo")
    except CollectorUnavailableError as error:
        reasons["virtualisation"] = error.reason
        return None
    flags = blocks[0].get("flags") if blocks else None
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    for name in ("class/dmi/id/sys_vendor", "class/dmi/id/product_name", "class/dmi/id/bios_vendor", "hypervisor/type"):
        told = text_or(roots.sys / name).lower()
        for word, hypervisor in _HYPERVISORS.items():
            if word in told:
                return hypervisor
    if flags is None:
        reasons["virtualisation"] = f"{Why.UNSUPPORTED.value}: this kind of CPU does not tell"
        return None
    return "unknown hypervisor"


def _told(read: Callable[[], _ValueT], field: str, reasons: dict[str, str]) -> _ValueT | None:
    try:
        return read()
    except CollectorUnavailableError as error:
        reasons[field] = error.reason
        return None
