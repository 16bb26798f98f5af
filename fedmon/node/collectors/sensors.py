"""Sensors of hwmon chips, and the temperatures and fans among them; else the temperatures of thermal zones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Why
from fedmon.node.collectors.files import (
    Reasons,
    SourceCollector,
    Values,
    entries,
    entries_or_none,
    note,
    read_number,
    text_or,
)

TEMPERATURE, FAN = "host_temperature_celsius", "host_fan_rotation_hertz"
SENSOR_METRICS = (TEMPERATURE, FAN)

_METRICS = {"temp": TEMPERATURE, "fan": FAN}
_PER_UNIT = {"temp": 1000, "fan": 60}
_POSSIBLE = {"temp": (-100.0, 250.0), "fan": (0.0, 10_000.0)}
_FILE = re.compile(r"((temp|fan|power|energy)\d+)_(?:average|input)")


class Sensor(NamedTuple):
    """One sensor of a chip; ``kind`` is the beginning of its files: temp, fan, power or energy.

    ``driver`` is that of the chip, and ``fault`` the file that holds 1 while it is broken, if the chip has one.
    """

    chip: str
    label: str
    kind: str
    path: Path
    driver: str = ""
    fault: Path | None = None


def find_sensors(hwmon: Path) -> list[Sensor]:
    """Return every sensor of every chip; one of power that has both is read as ``powerN_input``, else as ``_average``.

    Chips of one name, as of two sockets, are distinguished by their device, and sensors of one label by their number.
    Raises CollectorUnavailableError if the chips cannot be listed.
    Source: Linux Documentation/hwmon/sysfs-interface.rst.
    """
    chips = {entry: _files_of((hwmon / entry).resolve()) for entry in entries(hwmon)}
    drivers = {entry: text_or(files["name"], entry) if "name" in files else entry for entry, files in chips.items()}
    taken, labels = Counter(drivers.values()), dict[str, str]()
    for entry, driver in drivers.items():
        device = hwmon / entry / "device"
        label = driver if taken[driver] == 1 else f"{driver}-{device.resolve().name if device.exists() else entry}"
        labels[entry] = label if label not in labels.values() else f"{label}-{entry}"
    return [sensor for entry, files in chips.items() for sensor in _sensors_of(files, labels[entry], drivers[entry])]


def _files_of(chip: Path) -> dict[str, Path]:
    """Return the files of a chip's resolved folder: its link may lead to another chip when this one is gone."""
    # The meter of the system and old drivers keep them in the device's folder.
    return {name: folder / name for folder in (chip / "device", chip) for name in entries_or_none(folder)}


def _sensors_of(files: dict[str, Path], chip: str, driver: str) -> Iterator[Sensor]:
    # "input" sorts after "average" and so replaces it.
    found = {match[1]: (match[2], path) for name, path in files.items() if (match := _FILE.fullmatch(name))}
    labels = {sensor: text_or(path.with_name(f"{sensor}_label"), sensor) for sensor, (_, path) in found.items()}
    taken = Counter((kind, labels[sensor]) for sensor, (kind, _) in found.items())
    for sensor, (kind, path) in found.items():
        label = labels[sensor]
        own = label if taken[kind, label] == 1 or label == sensor else f"{label} {sensor}"
        yield Sensor(chip, own, kind, path, driver, files.get(f"{sensor}_fault"))


class TemperatureCollector(SourceCollector):
    """Reads ``tempN_input`` (millidegree Celsius) and ``fanN_input`` (turns a minute) of all chips.

    If no chip has a temperature, ``temp`` of each thermal zone is read; zones repeat chips.
    Source: Linux Documentation/driver-api/thermal/sysfs-api.rst.
    """

    def __init__(self, *, sys: Path = Path("/sys")) -> None:
        self._chips, self._zones = sys / "class" / "hwmon", sys / "class" / "thermal"
        none = f"{Why.NOT_FOUND.value}: no chip in {self._chips} has one"
        super().__init__("temperature", Lane.MEDIUM, SENSOR_METRICS, where=self._chips, untold=none)
        self._sensors: dict[str, Sensor] = {}

    def _read(self, _now: Instant) -> tuple[Values, Reasons]:
        # Names and labels are many more files than temperatures, and stay as they are.
        self._sensors = self._sensors or self._listed()
        values: Values = {}
        reasons: Reasons = {}
        for key, sensor in self._sensors.items():
            note(values, reasons, key, _value, sensor)
        return values, reasons

    def _listed(self) -> dict[str, Sensor]:
        """Return the sensors by series. Raises CollectorUnavailableError if there is nothing to list."""
        zones = [
            Sensor(text_or(self._zones / name / "type", name), name, "temp", self._zones / name / "temp")
            for name in entries_or_none(self._zones, r"thermal_zone\d+")
        ]
        try:
            found = find_sensors(self._chips)
        except CollectorUnavailableError:
            if not zones:
                raise
            found = []
        if any(sensor.kind == "temp" for sensor in found):
            zones = []
        return {
            series(_METRICS[sensor.kind], chip=sensor.chip, sensor=sensor.label): sensor
            for sensor in (*zones, *found)
            if sensor.kind in _METRICS
        }


def _value(sensor: Sensor) -> float:
    if sensor.fault is not None and read_number(sensor.fault) != 0:
        raise CollectorUnavailableError(Why.FAILED, f"{sensor.fault} says that the sensor is broken")
    value = round(read_number(sensor.path) / _PER_UNIT[sensor.kind], 3)
    low, high = _POSSIBLE[sensor.kind]
    if not low <= value <= high:  # a sensor without its probe shows its greatest or least number
        raise CollectorUnavailableError(Why.FAILED, f"{sensor.path}: {value:g} is impossible")
    return value
