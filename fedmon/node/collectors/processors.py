"""Sockets, cores, threads, model and caches of the CPUs."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedmon.node.collectors.base import CollectorUnavailableError, Roots, Why
from fedmon.node.collectors.files import (
    LONGEST_TEXT,
    KernelFile,
    entries_or_none,
    read_number,
    read_text,
    text_or,
)

_ON_A_VM = (
    "guessed from the CPU's features; this is a virtual machine, which may hide some of them, so the guess may be "
    "an older one than the processor is"
)
_GUESSED = "guessed from the CPU's features"
_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_VENDOR_KEYS = ("vendor_id", "CPU implementer")
_MODEL_KEYS = ("model name", "cpu", "Model", "uarch")


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Caches of one kind: ``kind`` is Data, Instruction or Unified, ``count`` how many the machine has of them."""

    level: int
    kind: str
    size_bytes: int | None
    count: int


def describe_processors(roots: Roots, reasons: dict[str, str], notes: dict[str, str]) -> dict[str, Any]:
    """Describe the CPUs by ``cpuinfo`` and by the topology under ``/sys/devices/system/cpu``."""
    cpus = roots.sys / "devices" / "system" / "cpu"
    try:
        blocks = cpuinfo(roots.proc / "cpuinfo")
        unknown = f"{Why.UNSUPPORTED.value}: {roots.proc / 'cpuinfo'} does not tell"
    except CollectorUnavailableError as error:
        blocks, unknown = [], error.reason
    first = blocks[0] if blocks else {}
    found: dict[str, Any] = {
        "vendor": _first(first, _VENDOR_KEYS),
        "model": _first(first, _MODEL_KEYS),
        "architecture": _architecture(roots, first),
    }
    reasons.update({field: unknown for field, value in found.items() if value is None})
    found["microarchitecture"] = microarchitecture(first, found["architecture"], reasons, notes)
    names = entries_or_none(cpus, r"cpu\d+")
    places: set[tuple[object, ...]] = {place for name in names if (place := _place(cpus / name / "topology"))}
    if not places:
        told = (block for block in blocks if {"physical id", "core id"} <= block.keys())
        places = {(block["physical id"], block["core id"]) for block in told}
    untold = f"{Why.NOT_FOUND.value}: {cpus}/cpu*"
    for field, value, where in (
        ("threads", len(names) or len(blocks), ""),
        ("cores", len(places), "/topology"),
        ("sockets", len({place[0] for place in places}), "/topology"),
        ("caches", _caches(cpus, names), "/cache"),
    ):
        found[field] = value or None
        if not value:
            reasons[field] = untold + where
    return found


def cpuinfo(path: Path) -> list[dict[str, str]]:
    """Return the blocks of ``cpuinfo``, one for each CPU that is on. Raises CollectorUnavailableError."""
    text = KernelFile(path, size_bytes=65_536).read().decode(errors="replace")
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in text.split("\n\n")
    ]
    return [block for block in blocks if "processor" in block]


def microarchitecture(
    block: Mapping[str, str], architecture: str | None, reasons: dict[str, str], notes: dict[str, str]
) -> str | None:
    """Return the newest micro-architecture whose features the first CPU of ``cpuinfo`` has; its name is archspec's.

    None where none is known, with a reason; what to think of the guess goes into the notes.
    """
    if architecture not in ("x86_64", "aarch64"):
        reasons["microarchitecture"] = f"{Why.UNSUPPORTED.value}: no names are known for {architecture or 'this'} CPUs"
        return None
    features = set(block.get("flags" if architecture == "x86_64" else "Features", "").split())
    if not features:
        reasons["microarchitecture"] = f"{Why.NOT_FOUND.value}: cpuinfo does not tell the CPU's features"
        return None
    # archspec takes 30 ms and 3 MB to load, and only this needs it; its tables are files of their own.
    try:
        from archspec.cpu import TARGETS
        from archspec.cpu.schema import TARGETS_JSON

        root = TARGETS[architecture]
    except (ImportError, OSError, KeyError) as error:
        reasons["microarchitecture"] = f"{Why.FAILED.value}: archspec cannot be used: {error}"
        return None
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
    # A maker's name is right only where the CPU can do all that the newest level without a maker's name can.
    level = max((target for target in fitting if target.vendor == "generic"), key=_newness, default=root)
    makers = [target for target in fitting if target.vendor != "generic" and (target > level or part)]
    notes["microarchitecture"] = _ON_A_VM if "hypervisor" in features else _GUESSED
    return str(max(makers or [level], key=_newness).name)


def _newness(target: Any) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)


def _first(block: dict[str, str], keys: tuple[str, ...]) -> str | None:
    return next((block[key][:LONGEST_TEXT] for key in keys if block.get(key)), None)


def _architecture(roots: Roots, block: dict[str, str]) -> str | None:
    if not roots.simulated:
        return platform.machine()
    if " lm " in f" {block.get('flags', '')} ":
        return "x86_64"
    return "aarch64" if "CPU implementer" in block else None


def _place(topology: Path) -> tuple[int, ...]:
    """Return socket and core of a CPU; empty where the kernel does not tell, as of one that is off."""
    try:
        return read_number(topology / "physical_package_id"), read_number(topology / "core_id")
    except CollectorUnavailableError:
        return ()


def _caches(cpus: Path, names: list[str]) -> list[Cache]:
    """Count the caches, each of which all CPUs that share it list."""
    seen: set[tuple[int, str, int | None, str]] = set()
    for name in names:
        folder = cpus / name / "cache"
        for index in entries_or_none(folder, r"index\d+"):
            cache = folder / index
            match = _SIZE.fullmatch(text_or(cache / "size"))
            size = int(match[1]) * _UNITS[match[2]] if match else None
            try:
                level, kind = read_number(cache / "level"), read_text(cache / "type")
            except CollectorUnavailableError:
                continue
            seen.add((level, kind, size, text_or(cache / "shared_cpu_list", name)))
    counted = Counter((level, kind, size) for level, kind, size, _ in seen)
    return [
        Cache(level=level, kind=kind, size_bytes=size, count=count)
        for (level, kind, size), count in sorted(counted.items(), key=lambda each: (each[0][0], each[0][1]))
    ]
