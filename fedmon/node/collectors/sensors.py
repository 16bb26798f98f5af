"""Temperatures and fans: every sensor of every hwmon chip, else the thermal zones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, series
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

_PER_UNIT = {TEMPERATURE: 1000, FAN: 60}
_POSSIBLE = {TEMPERATURE: (-100.0, 250.0), FAN: (0.0, 10_000.0)}


class Sensor(NamedTuple):
    """One sensor of a chip; ``fault`` is the file that holds 1 while it is broken, if the chip has one."""

    chip: str
    label: str
    path: Path
    fault: Path | None = None


def chip_labels(folder: Path) -> dict[str, str]:
    """Map each chip's folder to its label; those of one name, as of two sockets, are distinguished by their device.

    Raises CollectorUnavailableError if the chips cannot be listed.
    """
    names = {entry: text_or(folder / entry / "name", entry) for entry in entries(folder)}
    taken, labels = Counter(names.values()), dict[str, str]()
    for entry, name in names.items():
        device = folder / entry / "device"
        label = name if taken[name] == 1 else f"{name}-{device.resolve().name if device.exists() else entry}"
        labels[entry] = label if label not in labels.values() else f"{label}-{entry}"
    return labels


def _sensors_of(folder: Path, chip: str, kind: str) -> list[Sensor]:
    """Return the sensors of a chip with a file such as ``temp1_input``, for the kind ``temp``."""
    names = entries_or_none(folder, rf"{kind}\d+_(input|fault)")
    found = [name.removesuffix("_input") for name in names if name.endswith("_input")]
    labels = {sensor: text_or(folder / f"{sensor}_label", sensor) for sensor in found}
    taken = Counter(labels.values())
    return [
        Sensor(
            chip,
            label if taken[label] == 1 or label == sensor else f"{label} {sensor}",
            folder / f"{sensor}_input",
            folder / f"{sensor}_fault" if f"{sensor}_fault" in names else None,
        )
        for sensor, label in labels.items()
    ]


class TemperatureCollector(SourceCollector):
    """Reads ``tempN_input`` (millidegree Celsius) and ``fanN_input`` (turns a minute) of all chips.

    If no chip has a temperature, ``temp`` of each thermal zone is read; zones repeat chips. Sources:
    Linux Documentation/hwmon/sysfs-interface.rst and Documentation/driver-api/thermal/sysfs-api.rst.
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
            note(values, reasons, key, _value, sensor, metric_name(key))
        return values, reasons

    def _listed(self) -> dict[str, Sensor]:
        """Return the sensors by series. Raises CollectorUnavailableError if there is nothing to list."""
        zones = [
            Sensor(text_or(self._zones / name / "type", name), name, self._zones / name / "temp")
            for name in entries_or_none(self._zones, r"thermal_zone\d+")
        ]
        try:
            chips = chip_labels(self._chips)
        except CollectorUnavailableError:
            if not zones:
                raise
            chips = {}
        # A chip's link may lead to another chip when this one is gone.
        folders = {(self._chips / entry).resolve(): chip for entry, chip in chips.items()}
        temperatures, fans = (
            [sensor for folder, chip in folders.items() for sensor in _sensors_of(folder, chip, kind)]
            for kind in ("temp", "fan")
        )
        found = [(TEMPERATURE, sensor) for sensor in temperatures or zones] + [(FAN, sensor) for sensor in fans]
        return {series(metric, chip=sensor.chip, sensor=sensor.label): sensor for metric, sensor in found}


def _value(sensor: Sensor, metric: str) -> float:
    if sensor.fault is not None and read_number(sensor.fault) != 0:
        raise CollectorUnavailableError(Why.FAILED, f"{sensor.fault} says that the sensor is broken")
    value = round(read_number(sensor.path) / _PER_UNIT[metric], 3)
    low, high = _POSSIBLE[metric]
    if not low <= value <= high:  # a sensor without its probe shows its greatest or least number
        raise CollectorUnavailableError(Why.FAILED, f"{sensor.path}: {value:g} is impossible")
    return value
