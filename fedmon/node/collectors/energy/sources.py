"""The energy counters of processors (powercap) and the power sensors of chips (hwmon) of a machine."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from fedmon.common.metrics.series import series
from fedmon.common.text import natural
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.energy.counters import IMPOSSIBLE_WATTS, Part, Source, SourceReader
from fedmon.node.collectors.files import entries_or_none, read_number, text_or
from fedmon.node.collectors.sensors import Sensor, find_sensors

RAPL = "rapl_energy_joules_total"
WATTS, JOULES = "hwmon_power_watts", "hwmon_energy_joules_total"
SYSTEM_METER = "power_meter"
"""The chip that measures the whole machine. Source: Linux Documentation/hwmon/acpi_power_meter.rst."""
NO_ZONES = f"{Why.NOT_FOUND.value}: the kernel offers no energy counter in class/powercap; virtual machines have none"

_PLATFORM = re.compile(r"psys(?:-\d+)?")
_OF_A_DEVICE = re.compile(
    r"amdgpu|radeon|nouveau|nvidia|i915|xe|nvme|drivetemp|mlx\d.*|iwlwifi.*|ucsi.*|BAT.*|AC.*|hid.*", re.IGNORECASE
)
_PERMISSION = (
    "only root may read it; give the node's user the right by a udev or tmpfiles rule (chmod g+r) or start the node"
    " with CAP_DAC_READ_SEARCH"
)


def rapl_collector(sys: Path, *, max_watts: float) -> SourceReader:
    """Return the collector of all zones: joules since the node's start, wraps taken out."""
    limits = {"max_watts": max_watts, "impossible_watts": IMPOSSIBLE_WATTS}
    return SourceReader("rapl", Lane.FAST, find_zones(sys), [RAPL], untold=NO_ZONES, hint=_PERMISSION, **limits)


def hwmon_collector(sys: Path, *, max_watts: float) -> SourceReader:
    """Return the collector of all sensors: every 10 s, since one behind a slow bus takes milliseconds to answer."""
    none = f"{Why.NOT_FOUND.value}: no chip in class/hwmon measures it"
    sensors = power_sources(sys / "class" / "hwmon")
    return SourceReader("hwmon_power", Lane.MEDIUM, sensors, [WATTS, JOULES], untold=none, max_watts=max_watts)


def find_zones(sys: Path) -> list[Source]:
    """Return every zone with an energy counter, of any name and number of sockets.

    Processors with two interfaces list their zones twice, as ``intel-rapl`` and as ``intel-rapl-mmio``: the second is
    left out if it is the same. Source: Linux Documentation/power/powercap/powercap.rst.
    """
    powercap = sys / "class" / "powercap"
    labels: dict[str, str] = {}  # folder to label
    owners: dict[str, str] = {}  # label to control type
    zones = []
    for name in sorted(entries_or_none(powercap), key=lambda name: ("mmio" in name, natural(name))):
        path = powercap / name
        if not (path / "energy_uj").exists():
            continue
        control, own, above = name.partition(":")[0], text_or(path / "name", name), name.rpartition(":")[0]
        label = f"{labels[above]}-{own}" if above in labels else own
        labels[name] = label
        if owners.get(label, control) != control:
            continue  # the same counter through another interface
        if label in owners:  # zones of one name are distinguished by the number of their folder
            label = f"{label}-{name.partition(':')[2].replace(':', '-')}"
        labels[name], owners[label] = label, control
        part = Part.PLATFORM if _PLATFORM.fullmatch(own) else Part.PACKAGE
        if above in labels or name.count(":") > 1:
            part = Part.DRAM if own.startswith("dram") else Part.INSIDE
        zones.append(Source(path / "energy_uj", label, series(RAPL, zone=label), part, _range_uj(path)))
    return zones


def _range_uj(zone: Path) -> int | None:
    try:
        return read_number(zone / "max_energy_range_uj") or None
    except CollectorUnavailableError:
        return None


def power_sources(hwmon: Path) -> list[Source]:
    """Return every power and energy sensor of every chip."""
    with contextlib.suppress(CollectorUnavailableError):
        return [_source(each) for each in find_sensors(hwmon) if each.kind in ("power", "energy")]
    return []


def _source(sensor: Sensor) -> Source:
    counts_energy = sensor.kind == "energy"
    key = series(JOULES if counts_energy else WATTS, chip=sensor.chip, sensor=sensor.label)
    name = f"{sensor.chip}/{sensor.label}"
    return Source(sensor.path, name, key, Part.CHIP, counts_energy=counts_energy, driver=sensor.driver)


def of_the_machine(sensors: list[Source], named: tuple[str, ...]) -> tuple[list[Source], str]:
    """Choose the sensors that together measure the whole machine, else return the reason.

    ``named`` is the owner's choice. Without it, it is the one meter of the system, or the only power sensor that does
    not belong to one device such as a GPU or a disk.
    """
    if named:
        chosen = {sensor.name: sensor for sensor in sensors if sensor.name in named}  # of two of one name the power
        missing = sorted(set(named) - chosen.keys())
        if missing:
            others = ", ".join(sensor.name for sensor in sensors[:8]) or "none"
            return [], f"sensor {missing[0]} of [energy] node_power_sensors not found; this machine has: {others}"
        return list(chosen.values()), ""
    power = [sensor for sensor in sensors if not sensor.counts_energy and not _OF_A_DEVICE.fullmatch(sensor.driver)]
    meters = [sensor for sensor in power if sensor.driver == SYSTEM_METER] or power
    if len(meters) == 1:
        return meters, ""
    if not meters:
        return [], "no power sensor measures the whole machine"
    names = ", ".join(sensor.name for sensor in meters[:8])
    return [], f"several power sensors ({names}); name those that add up to the machine: [energy] node_power_sensors"
