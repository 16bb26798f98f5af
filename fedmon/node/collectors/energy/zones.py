"""Which energy counters the kernel's powercap framework offers, each under one name that does not change."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fedmon.node.collectors.energy.device_file import number_of, text_of

MAX_ZONES = 128
"""Zones beyond this number are left out, so that one sample always fits into a message."""

_DEPTH = 4
_PLATFORM = re.compile(r"psys(?:-\d+)?")


class Part(enum.Enum):
    """What a zone measures."""

    PLATFORM = "psys"
    PACKAGE = "package"
    DRAM = "dram"
    INSIDE = "inside"  # a part of its package, such as core and uncore


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """One counter: its folder, the label it is reported under, and the value in microjoules at which it wraps."""

    path: Path
    label: str
    part: Part
    range_uj: int | None


def find_zones(sys: Path) -> list[Zone]:
    """Return every zone with an energy counter, whatever it is called and however many sockets there are.

    Processors with two interfaces list their zones twice, as ``intel-rapl`` and as ``intel-rapl-mmio``: the second is
    left out where it says the same. Source: Linux Documentation/power/powercap/powercap.rst.
    """
    folders = dict(_folders(sys / "class" / "powercap", _DEPTH))
    labels: dict[str, str] = {}  # folder to label
    owners: dict[str, str] = {}  # label to control type
    zones = []
    for name in sorted(folders, key=_order):
        path = folders[name]
        if not (path / "energy_uj").exists():
            continue
        control, own, above = name.partition(":")[0], text_of(path / "name") or name, name.rpartition(":")[0]
        label = f"{labels[above]}-{own}" if above in labels else own
        labels[name] = label
        if owners.get(label, control) != control:
            continue  # the same counter through another interface
        labels[name] = label = _unique(label, name, owners)
        owners[label] = control
        zones.append(
            Zone(
                path=path,
                label=label,
                part=_part(own, is_inside=above in labels or name.count(":") > 1),
                range_uj=number_of(path / "max_energy_range_uj"),
            )
        )
    return zones[:MAX_ZONES]


def _folders(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Walk over zones; the kernel lists them all in one folder, and each below its parent again."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - the names alone
    except OSError:
        return
    for name in names:
        if depth == _DEPTH or ":" in name:
            yield name, folder / name
            if depth:
                yield from _folders(folder / name, depth - 1)


def _order(name: str) -> tuple[bool, str, list[tuple[int, str]]]:
    """Sort by interface, the memory-mapped ones last, and by number: 2 before 10."""
    control, *numbers = name.split(":")
    return "mmio" in control, control, [(int(part) if part.isdecimal() else 0, part) for part in numbers]


def _unique(label: str, name: str, taken: dict[str, str]) -> str:
    """Tell zones of one interface apart that have the same name, by the number of their folder."""
    if label not in taken:
        return label
    numbered = f"{label}-{name.partition(':')[2].replace(':', '-')}"
    return numbered if numbered not in taken else f"{label}-{name}"


def _part(own: str, *, is_inside: bool) -> Part:
    if is_inside:
        return Part.DRAM if own.startswith("dram") else Part.INSIDE
    return Part.PLATFORM if _PLATFORM.fullmatch(own) else Part.PACKAGE
