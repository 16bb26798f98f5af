"""The hardware and system of the machine: one document, made once."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.files import (
    PROBE,
    KernelFile,
    entries,
    entries_or_none,
    read_number,
    read_text,
    text_or,
)
from fedmon.node.collectors.infiniband import find_ports
from fedmon.node.collectors.kernel import SECTOR_BYTES, choose_disks, choose_interfaces, memory_collector

_ValueT = TypeVar("_ValueT")

INFO = "host_hardware_info"
INFO_LABELS = (
    *("simulated", "vendor", "model", "microarchitecture", "sockets", "cores", "threads", "kernel"),
    "virtualisation",
)
_ON_A_VM = (
    "guessed from the CPU's features; this is a virtual machine, which may hide some of them, so the guess may be "
    "an older one than the processor is"
)
_GUESSED = "guessed from the CPU's features"
_VENDOR_KEYS = ("vendor_id", "CPU implementer")
_FEATURES = {"x86_64": "flags", "aarch64": "Features"}
_MODEL_KEYS = ("model name", "cpu", "Model", "uarch")


@functools.lru_cache(maxsize=1)
def hardware(roots: Roots = THIS_MACHINE) -> Mapping[str, Any]:
    """Describe the machine with its files under ``roots`` as a document, made once, since that takes milliseconds.

    Unknown fields are None; ``reasons`` says why, by the field's name, or by a name such as ``disks.sda.size_bytes``.
    ``notes`` holds cautions. ``simulated`` is true if the files are not those of this process's machine. ``threads``
    counts all CPUs of the kernel, online or not.
    """
    reasons: dict[str, str] = {}
    notes: dict[str, str] = {}
    blocks = _read(lambda: _cpuinfo(roots.proc / "cpuinfo"), "virtualisation", reasons)
    found: dict[str, Any] = {"simulated": roots.simulated} | _processors(roots, blocks or [], reasons, notes)
    _memory(roots, found, reasons)
    found["disks"] = _devices(roots.sys / "block", choose_disks, _disk, "disks", reasons)
    interfaces = roots.sys / "class" / "net"
    leaving = functools.partial(choose_interfaces, folder=interfaces)
    found["network"] = _devices(interfaces, leaving, _interface, "network", reasons)
    found["infiniband"] = _adapters(roots.sys / "class" / "infiniband", reasons)
    _system(roots, found, reasons)
    found["virtualisation"] = None if blocks is None else _virtualisation(blocks, reasons)
    return {**found, "reasons": reasons, "notes": notes}


class HardwareCollector:
    """Reports the description as the labels of one series with the value 1; an empty label is unknown."""

    name = "hardware"
    lane = Lane.SLOW

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def collect(self, _now: Instant) -> Reading:
        """Report the description."""
        found = hardware(self._roots)
        return Reading({series(INFO, **{label: _label(found[label]) for label in INFO_LABELS}): 1})

    def probe(self) -> dict[str, str | None]:
        """Report that the description is always available."""
        return {INFO: None}


def _label(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _memory(roots: Roots, found: dict[str, Any], reasons: dict[str, str]) -> None:
    """Describe memory and swap, and the NUMA nodes."""
    collector = memory_collector(roots.proc)
    report = collector.probe()
    values = collector.collect(PROBE).values if None in report.values() else {}
    for field, metric in (("memory_bytes", "host_memory_total_bytes"), ("swap_bytes", "host_swap_total_bytes")):
        found[field] = values.get(metric)
        if found[field] is None:
            reasons[field] = report[metric] or Why.FAILED.value
    folder = roots.sys / "devices" / "system" / "node"
    nodes = _read(lambda: entries(folder, r"node\d+"), "numa", reasons)
    found["numa"] = None if nodes is None else [int(name[4:]) for name in nodes]


def _devices(
    folder: Path,
    choose: Callable[[tuple[bytes, ...]], Iterable[bytes]],
    one: Callable[[Path, dict[str, str]], dict[str, Any]],
    field: str,
    reasons: dict[str, str],
) -> list[dict[str, Any]] | None:
    """Describe the devices of a folder that their collector reports."""
    names = _read(functools.partial(entries, folder), field, reasons)
    if names is None:
        return None
    chosen = choose(tuple(name.encode(errors="surrogateescape") for name in names))
    return [one(folder / name.decode(errors="replace"), reasons) for name in chosen]


def _disk(folder: Path, reasons: dict[str, str]) -> dict[str, Any]:
    where = f"disks.{folder.name}.size_bytes"
    size_bytes = _read(lambda: read_number(folder / "size") * SECTOR_BYTES, where, reasons)
    return {"device": folder.name, "size_bytes": size_bytes}


def _interface(folder: Path, reasons: dict[str, str]) -> dict[str, Any]:
    def speed() -> int:
        megabits = read_number(folder / "speed")
        if megabits <= 0:  # the kernel's way to say that there is no link
            raise CollectorUnavailableError(Why.UNSUPPORTED, f"{folder / 'speed'} knows no speed")
        return megabits * 125_000

    where = f"network.{folder.name}.speed_bytes_per_second"
    return {"interface": folder.name, "speed_bytes_per_second": _read(speed, where, reasons)}


def _adapters(folder: Path, reasons: dict[str, str]) -> list[dict[str, Any]] | None:
    """Return the RDMA adapters; None if they cannot be listed."""
    try:
        ports = find_ports(folder)
    except CollectorUnavailableError as error:
        if error.is_lack:
            return []
        reasons["infiniband"] = error.reason
        return None
    return [
        {"device": device, "rates": [port.rate for port in ports if port.device == device]}
        for device in dict.fromkeys(port.device for port in ports)
    ]


def _system(roots: Roots, found: dict[str, Any], reasons: dict[str, str]) -> None:
    """Describe the system that runs on the machine."""
    found["kernel"] = _read(lambda: read_text(roots.proc / "sys" / "kernel" / "osrelease"), "kernel", reasons)
    # A UUID of this boot. Source: Linux Documentation/admin-guide/sysctl/kernel, section "random".
    boot_id = roots.proc / "sys" / "kernel" / "random" / "boot_id"
    found["boot_id"] = _read(lambda: read_text(boot_id), "boot_id", reasons)
    found["os"] = None
    if roots.simulated:
        reasons["os"] = f"{Why.UNSUPPORTED.value}: a simulated tree does not name its distribution"
    else:
        try:
            found["os"] = platform.freedesktop_os_release().get("PRETTY_NAME")
        except OSError:
            found["os"] = platform.platform(terse=True)


def _virtualisation(blocks: list[dict[str, str]], reasons: dict[str, str]) -> str | None:
    """Return ``virtual machine``, ``none`` on bare metal, None if that is unknown."""
    flags = blocks[0].get("flags") if blocks else None
    if flags is None:
        reasons["virtualisation"] = f"{Why.UNSUPPORTED.value}: this kind of CPU does not report it"
        return None
    return "virtual machine" if "hypervisor" in flags.split() else "none"


def _read(read: Callable[[], _ValueT], field: str, reasons: dict[str, str]) -> _ValueT | None:
    try:
        return read()
    except CollectorUnavailableError as error:
        reasons[field] = error.reason
        return None


def _processors(
    roots: Roots, blocks: list[dict[str, str]], reasons: dict[str, str], notes: dict[str, str]
) -> dict[str, Any]:
    """Describe the CPUs by the blocks of ``cpuinfo`` and by the topology under ``/sys/devices/system/cpu``."""
    cpus = roots.sys / "devices" / "system" / "cpu"
    untold = f"{Why.UNSUPPORTED.value}: {roots.proc / 'cpuinfo'} does not name it"
    unknown = reasons.get("virtualisation", untold)  # the reason if it cannot be read
    first = blocks[0] if blocks else {}
    found: dict[str, Any] = {
        "vendor": _first(first, _VENDOR_KEYS),
        "model": _first(first, _MODEL_KEYS),
        "architecture": _architecture(roots, first),
    }
    reasons.update({field: unknown for field, value in found.items() if value is None})
    found["microarchitecture"] = _microarchitecture(first, found["architecture"], reasons, notes)
    names = entries_or_none(cpus, r"cpu\d+")
    places = {
        tuple(text_or(cpus / name / "topology" / file) for file in ("physical_package_id", "core_id")) for name in names
    } - {("", "")}  # of CPUs that are off
    absent = f"{Why.NOT_FOUND.value}: {cpus}/cpu*"
    for field, value, where in (
        ("threads", len(names) or len(blocks), ""),
        ("cores", len(places), "/topology"),
        ("sockets", len({place[0] for place in places}), "/topology"),
    ):
        found[field] = value or None
        if not value:
            reasons[field] = absent + where
    return found


def _cpuinfo(path: Path) -> list[dict[str, str]]:
    """Return the blocks of ``cpuinfo``, one for each online CPU. Raises CollectorUnavailableError."""
    text = KernelFile(path, size_bytes=65_536).read().decode(errors="replace")
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in text.split("\n\n")
    ]
    return [block for block in blocks if "processor" in block]


def _microarchitecture(
    block: Mapping[str, str], architecture: str | None, reasons: dict[str, str], notes: dict[str, str]
) -> str | None:
    """Return archspec's name of the newest micro-architecture whose features the first CPU of ``cpuinfo`` has.

    None with a reason if none is known; the notes say that it is a guess.
    """
    features = set(block.get(_FEATURES.get(architecture or "", ""), "").split())
    if architecture is None or not features:
        named = " or ".join(_FEATURES)
        reasons["microarchitecture"] = f"{Why.UNSUPPORTED.value}: cpuinfo lists no features of a CPU of {named}"
        return None
    # archspec takes 30 ms and 3 MB to load.
    from archspec.cpu import TARGETS
    from archspec.cpu.schema import TARGETS_JSON

    root = TARGETS[architecture]
    vendor = block.get("vendor_id", "generic")
    if architecture == "aarch64":
        vendor = TARGETS_JSON["conversions"]["arm_vendors"].get(block.get("CPU implementer", ""), "generic")
    elif "pni" in features:
        features.add("sse3")  # Linux calls it by its older name
    fitting = [
        target
        for target in TARGETS.values()
        if (target == root or root in target.ancestors)
        and target.vendor in (vendor, "generic")
        and target.features <= features
    ]
    part = block.get("CPU part", "")
    fitting = [target for target in fitting if part and target.cpu_part == part] or fitting or [root]
    # A maker's name is right only if the CPU has all features of the newest level without a maker's name.
    level = max((target for target in fitting if target.vendor == "generic"), key=_newness, default=root)
    makers = [target for target in fitting if target.vendor != "generic" and (target > level or part)]
    notes["microarchitecture"] = _ON_A_VM if "hypervisor" in features else _GUESSED
    return str(max(makers or [level], key=_newness).name)


def _newness(target: Any) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)


def _first(block: dict[str, str], keys: tuple[str, ...]) -> str | None:
    return next((block[key] for key in keys if block.get(key)), None)


def _architecture(roots: Roots, block: dict[str, str]) -> str | None:
    if not roots.simulated:
        return platform.machine()
    if " lm " in f" {block.get('flags', '')} ":
        return "x86_64"
    return "aarch64" if "CPU implementer" in block else None
