"""The energy counters of processors (RAPL), through the kernel's powercap framework."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.energy.counter import IMPOSSIBLE_WATTS, EnergyCounter
from fedmon.node.collectors.procfile import DeviceFile, number_of, text_of

MAX_ZONES = 128
"""Zones beyond this number are left out, so that one sample always fits into a message."""
METRIC = "rapl_energy_joules_total"
LOOK_AGAIN_S = 60.0
"""How often zones are looked for that were not there before, in seconds; at once after one went away."""

_PERMISSION = (
    "only root may read it; give the node's user the right by a udev or tmpfiles rule (chmod g+r) or start the node"
    " with CAP_DAC_READ_SEARCH"
)
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


class ZoneReading(NamedTuple):
    """What one zone has counted since the node's start in microjoules, or why that is not known this time."""

    zone: Zone
    total_uj: int | None
    reason: str | None


class RaplReader:
    """Reads every zone once for each instant; used by the sampler's thread alone."""

    def __init__(self, sys: Path, *, max_watts: float) -> None:
        self._sys, self._max_watts = sys, max_watts
        self._watched: list[_Watched] = []
        self._counters: dict[str, tuple[Part, EnergyCounter]] = {}
        self._looked: float | None = None
        self._again = False
        self._read: tuple[Instant, list[ZoneReading]] | None = None

    def read(self, now: Instant) -> list[ZoneReading]:
        """Read all zones; those that are gone are left out from the second reading on."""
        if self._read is None or self._read[0] != now:
            if self._again or self._looked is None or not 0 <= now.mono - self._looked < LOOK_AGAIN_S:
                self._look()
                self._looked, self._again = now.mono, False
            readings = [watched.read(now.mono) for watched in self._watched]
            self._again = any(watched.is_gone for watched in self._watched)
            self._read = now, readings
        return self._read[1]

    def total_uj(self, parts: Collection[Part]) -> int:
        """Return what these parts have counted so far, zones that are gone included."""
        return sum(counter.total_uj for part, counter in self._counters.values() if part in parts)

    def probe(self) -> dict[Zone, str | None]:
        """Say of each zone that there is now whether it can be read, without counting anything."""
        return {zone: _number(DeviceFile(zone.path / "energy_uj"), zone)[1] for zone in find_zones(self._sys)}

    def _look(self) -> None:
        known = {watched.zone: watched for watched in self._watched}
        self._watched = [known.get(zone) or self._watch(zone) for zone in find_zones(self._sys)]

    def _watch(self, zone: Zone) -> _Watched:
        _, counter = self._counters.setdefault(
            zone.label,
            (
                zone.part,
                EnergyCounter(range_uj=None, max_watts=self._max_watts, impossible_watts=IMPOSSIBLE_WATTS),
            ),
        )
        counter.range_uj = zone.range_uj
        counter.restart(f"{Why.FAILED.value}: zone {zone.label} was away; the energy meanwhile is not known")
        return _Watched(zone, counter)


class RaplCollector:
    """Reports every zone: joules since the node's start, with wraps of the counter taken out."""

    name = "rapl"
    lane = Lane.FAST

    def __init__(self, reader: RaplReader) -> None:
        self._reader = reader
        self._series: dict[str, str] = {}

    def collect(self, now: Instant) -> Reading:
        """Read the zones that are there."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for zone, total_uj, reason in self._reader.read(now):
            key = self._series.get(zone.label) or self._series.setdefault(zone.label, series(METRIC, zone=zone.label))
            values[key] = None if total_uj is None else total_uj / 1e6
            if reason is not None:
                reasons[key] = reason
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say of each zone whether it can be read, or why there is none."""
        found = self._reader.probe()
        if not found:
            return {METRIC: no_zones()}
        return {METRIC: None if None in found.values() else next(iter(found.values()))} | {
            series(METRIC, zone=zone.label): reason for zone, reason in found.items()
        }


def no_zones() -> str:
    """Return the reason of a machine without any zone."""
    return f"{Why.NOT_FOUND.value}: the kernel offers no energy counter in class/powercap; virtual machines have none"


class _Watched:
    """One zone and its open file."""

    def __init__(self, zone: Zone, counter: EnergyCounter) -> None:
        self.zone, self.is_gone = zone, False
        self._counter, self._file = counter, DeviceFile(zone.path / "energy_uj")

    def read(self, mono: float) -> ZoneReading:
        raw_uj, reason = _number(self._file, self.zone)
        self.is_gone = raw_uj is None and reason is not None and _is_device_gone(reason)
        if self.is_gone:
            self._counter.restart(f"{Why.FAILED.value}: zone {self.zone.label} was away; its energy is not known")
        if raw_uj is not None:
            reason = self._counter.add(raw_uj, mono)
        return ZoneReading(self.zone, None if reason is not None else self._counter.total_uj, reason)


def _number(file: DeviceFile, zone: Zone) -> tuple[int | None, str | None]:
    """Return what a counter shows in microjoules, or the reason why that is nothing to count with."""
    try:
        raw_uj = file.number()
    except CollectorUnavailableError as error:
        if error.reason.startswith(Why.NO_PERMISSION.value):
            return None, f"{error.reason}: {_PERMISSION}"
        return None, error.reason
    if raw_uj < 0 or (zone.range_uj is not None and raw_uj > zone.range_uj):
        return None, f"{Why.FAILED.value}: {zone.path}/energy_uj: {raw_uj} is outside of the counter's range"
    return raw_uj, None


def _is_device_gone(reason: str) -> bool:
    return reason.startswith(Why.NOT_FOUND.value) or reason.endswith("No such device")


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
