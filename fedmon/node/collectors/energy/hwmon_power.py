"""Power sensors of the machine's chips (hwmon), and the energy that follows from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.energy.counter import EnergyCounter
from fedmon.node.collectors.procfile import DeviceFile, text_of

WATTS = "hwmon_power_watts"
JOULES = "hwmon_energy_joules_total"
LOOK_AGAIN_S = 60.0
LONGEST_GAP_S = 600.0
"""Two readings of a power that lie further apart say nothing of what was drawn between them."""

_MAX_UW = 10**12  # a megawatt: what is above is garbage

MAX_SENSORS = 128
"""Sensors beyond this number are left out, so that one sample always fits into a message."""

SYSTEM_METER = "power_meter"
"""The chip that measures the whole machine. Source: Linux Documentation/hwmon/acpi_power_meter.rst."""
_SENSOR = re.compile(r"(power|energy)(\d+)_(input|average)")
_OF_A_DEVICE = re.compile(
    r"amdgpu|radeon|nouveau|nvidia|i915|xe|nvme|drivetemp|mlx\d.*|iwlwifi.*|ucsi.*|BAT.*|AC.*|hid.*", re.IGNORECASE
)


class Sensor(msgspec.Struct, frozen=True, kw_only=True):
    """One sensor: the file that holds microwatts or microjoules, and the labels under which it is reported."""

    path: Path
    chip: str
    name: str
    driver: str
    counts_energy: bool

    @property
    def full_name(self) -> str:
        """The text that names it in the settings."""
        return f"{self.chip}/{self.name}"


class SensorReading(NamedTuple):
    """What one sensor shows: microwatts (None for a counter of energy) and microjoules since the node's start."""

    sensor: Sensor
    power_uw: int | None
    total_uj: int | None
    reason: str | None  # why this reading was missed
    gap: str | None = None  # why the energy since the previous reading is not known


class HwmonReader:
    """Reads every sensor once for each instant; used by the sampler's thread alone."""

    def __init__(self, sys: Path, *, max_watts: float) -> None:
        self._sys, self._max_watts = sys, max_watts
        self._known: dict[tuple[str, bool], _Watched] = {}
        self._watched: list[_Watched] = []
        self._looked: float | None = None
        self._again = False
        self._read: tuple[Instant, list[SensorReading]] | None = None

    def read(self, now: Instant) -> list[SensorReading]:
        """Read all sensors; those that are gone are left out from the second reading on."""
        if self._read is None or self._read[0] != now:
            if self._again or self._looked is None or not 0 <= now.mono - self._looked < LOOK_AGAIN_S:
                self._look()
                self._looked = now.mono
            readings = [watched.read(now.mono) for watched in self._watched]
            self._again = any(reading.reason is not None and _is_gone(reading.reason) for reading in readings)
            self._read = now, readings
        return self._read[1]

    def sensors(self) -> list[Sensor]:
        """Return the sensors that there are now."""
        return find_sensors(self._sys)

    def probe(self) -> dict[Sensor, str | None]:
        """Say of each sensor that there is now whether it can be read, without counting anything."""
        return {sensor: _number(DeviceFile(sensor.path), sensor)[1] for sensor in self.sensors()}

    def _look(self) -> None:
        self._watched = []
        for sensor in self.sensors():
            key = sensor.full_name, sensor.counts_energy
            watched = self._known.get(key)
            if watched is None:
                watched = self._known[key] = _Watched(sensor, self._max_watts)
            elif watched.sensor != sensor:
                watched.move(sensor)
            self._watched.append(watched)


class HwmonPowerCollector:
    """Reports the power sensors and energy counters of every chip.

    Every 10 s, since a sensor behind a slow bus takes milliseconds to answer.
    """

    name = "hwmon_power"
    lane = Lane.MEDIUM

    def __init__(self, reader: HwmonReader) -> None:
        self._reader = reader

    def collect(self, now: Instant) -> Reading:
        """Read the sensors that there are."""
        values: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for sensor, power_uw, total_uj, reason, gap in self._reader.read(now):
            key, micro = (_series(sensor), total_uj if sensor.counts_energy else power_uw)
            problem = reason or (gap if sensor.counts_energy else None)
            values[key] = None if problem is not None or micro is None else micro / 1e6
            if problem is not None:
                reasons[key] = problem
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say of each sensor whether it can be read, or why there is none."""
        found = self._reader.probe()
        report: dict[str, str | None] = {}
        for metric, counts_energy in ((WATTS, False), (JOULES, True)):
            own = {sensor: reason for sensor, reason in found.items() if sensor.counts_energy is counts_energy}
            if not own:
                kind = "an energy counter" if counts_energy else "a power sensor"
                report[metric] = f"{Why.NOT_FOUND.value}: no chip in class/hwmon has {kind}"
                continue
            report[metric] = None if None in own.values() else next(iter(own.values()))
            report |= {_series(sensor): reason for sensor, reason in own.items()}
        return report


class _Watched:
    """One sensor, its open file, and the energy that it saw."""

    def __init__(self, sensor: Sensor, max_watts: float) -> None:
        self.sensor = sensor
        self._file = DeviceFile(sensor.path)
        self._counter = EnergyCounter(range_uj=None, max_watts=max_watts)
        self._total_uj = 0
        self._last: tuple[int, float] | None = None
        self._missed = False

    def move(self, sensor: Sensor) -> None:
        """Read the same sensor at another place from now on; what happened meanwhile is not known."""
        self.sensor, self._file = sensor, DeviceFile(sensor.path)
        self._counter.restart(f"{Why.FAILED.value}: {sensor.full_name} was away; its energy is not known")
        self._last, self._missed = None, True

    def read(self, mono: float) -> SensorReading:
        value, reason = _number(self._file, self.sensor)
        if value is None:
            self._last, self._missed = None, self._missed or self._last is not None
            if reason is not None and _is_gone(reason):
                self._counter.restart(f"{Why.FAILED.value}: {self.sensor.full_name} was away; its energy is not known")
            return SensorReading(self.sensor, None, None, reason)
        if self.sensor.counts_energy:
            gap = self._counter.add(value, mono)
            return SensorReading(self.sensor, None, None if gap else self._counter.total_uj, None, gap)
        gap = self._integrate(value, mono)
        return SensorReading(self.sensor, value, None if gap else self._total_uj, None, gap)

    def _integrate(self, power_uw: int, mono: float) -> str | None:
        """Add the trapezoid between two readings; return the reason where there is none."""
        last, self._last = self._last, (power_uw, mono)
        missed, self._missed = self._missed, False
        if last is None:
            return f"{Why.FAILED.value}: {self.sensor.full_name} could not be read before" if missed else None
        elapsed_s = mono - last[1]
        if not 0 <= elapsed_s <= LONGEST_GAP_S:
            return f"{Why.FAILED.value}: {elapsed_s:.0f} s lie between two readings of {self.sensor.full_name}"
        # A supply that feeds back or a battery that is charged shows less than nothing: no energy is given back here.
        self._total_uj += max(0, int((last[0] + power_uw) * elapsed_s / 2))
        return None


def _series(sensor: Sensor) -> str:
    return series(JOULES if sensor.counts_energy else WATTS, chip=sensor.chip, sensor=sensor.name)


def _number(file: DeviceFile, sensor: Sensor) -> tuple[int | None, str | None]:
    try:
        value = file.number()
    except CollectorUnavailableError as error:
        return None, error.reason
    if value < 0 if sensor.counts_energy else abs(value) > _MAX_UW:
        return None, f"{Why.FAILED.value}: {sensor.path}: {value} cannot be a reading"
    return value, None


def _is_gone(reason: str) -> bool:
    return reason.startswith(Why.NOT_FOUND.value) or reason.endswith("No such device")


def find_sensors(sys: Path) -> list[Sensor]:
    """Return every power and energy sensor of every chip.

    A power sensor that has both is read as ``powerN_input``, else as ``powerN_average``.
    Source: Linux Documentation/hwmon/sysfs-interface.rst, sections "Power" and "Energy".
    """
    chips = list(_chips(sys / "class" / "hwmon"))
    drivers = [driver for _, _, driver in chips]
    found: list[Sensor] = []
    taken: set[str] = set()
    for folder, place, driver in chips:
        chip = driver if drivers.count(driver) == 1 else _with_address(driver, folder)
        chip = chip if chip not in taken else f"{chip}-{folder.name}"
        taken.add(chip)
        found += _of_chip(place, chip, driver)
    return found[:MAX_SENSORS]


def of_the_machine(sensors: list[Sensor], named: tuple[str, ...]) -> tuple[list[Sensor], str | None]:
    """Choose the sensors that together measure the whole machine, else say why none can be chosen.

    ``named`` is what the owner says. Without it, it is the one meter of the system, or the only power sensor that does
    not belong to one device such as a GPU or a disk.
    """
    if named:
        chosen = [sensor for sensor in sensors if sensor.full_name in named]
        missing = sorted(set(named) - {sensor.full_name for sensor in chosen})
        return ([], f"sensor {missing[0]} of [energy] node_power_sensors is not there") if missing else (chosen, None)
    power = [sensor for sensor in sensors if not sensor.counts_energy and not _OF_A_DEVICE.fullmatch(sensor.driver)]
    meters = [sensor for sensor in power if sensor.driver == SYSTEM_METER] or power
    if len(meters) == 1:
        return meters, None
    if not meters:
        return [], "no power sensor measures the whole machine"
    names = ", ".join(sensor.full_name for sensor in meters[:8])
    return [], f"several power sensors ({names}); name those that add up to the machine: [energy] node_power_sensors"


def _chips(hwmon: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield each chip that has such sensors: its folder, the folder of its files, and the name of its driver."""
    try:
        names = os.listdir(hwmon)  # noqa: PTH208 - the names alone
    except OSError:
        return
    for folder in (hwmon / name for name in sorted(names, key=lambda name: (len(name), name))):
        # Older drivers keep their files in the device's folder, not in that of the chip.
        for place in (folder, folder / "device"):
            if _files(place):
                yield folder, place, text_of(place / "name") or text_of(folder / "name") or folder.name
                break


def _files(folder: Path) -> dict[tuple[str, int], str]:
    """Map kind and number of each sensor to the name of its file."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - the names alone
    except OSError:
        return {}
    matches = [match for name in names if (match := _SENSOR.fullmatch(name))]
    # "input" sorts after "average" and so replaces it.
    return {(match[1], int(match[2])): match[0] for match in matches}


def _of_chip(folder: Path, chip: str, driver: str) -> Iterator[Sensor]:
    files = _files(folder)
    labels = {key: text_of(folder / f"{key[0]}{key[1]}_label") for key in files}
    for key in sorted(files):
        label = labels[key]
        is_alone = list(labels.values()).count(label) == 1
        yield Sensor(
            path=folder / files[key],
            chip=chip,
            name=label if label and is_alone else f"{key[0]}{key[1]}",
            driver=driver,
            counts_energy=key[0] == "energy",
        )


def _with_address(driver: str, folder: Path) -> str:
    """Tell chips of one driver apart by the address of their device, which is the same after each start."""
    try:
        return f"{driver}-{(folder / 'device').readlink().name}"
    except OSError:
        return f"{driver}-{folder.name}"
