"""Temperatures and fans: every sensor of every hwmon chip, else the thermal zones."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.sysfs import entries, garbled, read_number, read_text


class Sensor(NamedTuple):
    """One sensor of a chip; ``fault`` is the file that holds 1 while it is broken, where the chip has one."""

    chip: str
    label: str
    path: Path
    fault: Path | None


class Chips:
    """Lists the sensors of one kind of all chips.

    A chip is called by its name; chips of one name, such as those of two sockets, are told apart by their device. A
    chip keeps what it was called as long as it is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._called: dict[tuple[str, str], str] = {}

    def folders(self) -> list[str]:
        """Return the names of the chips' folders; none where they cannot be listed."""
        try:
            return entries(self.folder)
        except CollectorUnavailableError:
            return []

    def sensors(self, kind: str) -> list[Sensor]:
        """Return the sensors that have a file such as ``temp1_input``, for the kind ``temp``.

        Raises CollectorUnavailableError when the chips cannot be listed.
        """
        return [
            sensor
            for entry, chip in self._names().items()
            for sensor in _sensors_of(self.folder / entry, chip, kind) or _sensors_of(self._device(entry), chip, kind)
        ]

    def _names(self) -> dict[str, str]:
        """Map each chip's folder to what it is called."""
        names = {entry: _text(self.folder / entry / "name") or entry for entry in entries(self.folder)}
        self._called = {key: called for key, called in self._called.items() if names.get(key[0]) == key[1]}
        taken = Counter([*names.values(), *self._called.values()])
        for entry, name in names.items():
            if (entry, name) not in self._called:
                device = self._device(entry)
                behind = device.resolve().name if device.exists() else entry
                called = name if taken[name] == 1 else f"{name}-{behind}"
                self._called[entry, name] = called if called not in self._called.values() else f"{called}-{entry}"
        return {entry: self._called[entry, name] for entry, name in names.items()}

    def _device(self, entry: str) -> Path:
        """Return the folder of the chip's device, in which old drivers have their sensors."""
        return self.folder / entry / "device"


def _sensors_of(folder: Path, chip: str, kind: str) -> list[Sensor]:
    try:
        names = entries(folder, rf"{kind}\d+_(input|fault)")
    except CollectorUnavailableError:
        return []  # a chip that was pulled out meanwhile, or one without a device
    found = [name.removesuffix("_input") for name in names if name.endswith("_input")]
    labels = {sensor: _text(folder / f"{sensor}_label") or sensor for sensor in found}
    taken = Counter(labels.values())
    return [
        Sensor(
            chip=chip,
            label=label if taken[label] == 1 or label == sensor else f"{label} {sensor}",
            path=folder / f"{sensor}_input",
            fault=folder / f"{sensor}_fault" if f"{sensor}_fault" in names else None,
        )
        for sensor, label in labels.items()
    ]


def _text(path: Path) -> str:
    """Return a file's text; nothing where it cannot be read, since a name has a substitute."""
    try:
        return read_text(path)
    except CollectorUnavailableError:
        return ""


TEMPERATURE = "host_temperature_celsius"
FAN = "host_fan_rotation_hertz"
METRICS = (TEMPERATURE, FAN)
LOOK_AGAIN_S = 60.0
"""How long another label may go unnoticed; chips that come or go are noticed at once."""
MAX_SENSORS = 256
"""Sensors beyond this number are left out, so that one sample always fits into a message."""

_PER_UNIT = {TEMPERATURE: 1000, FAN: 60}
_POSSIBLE = {TEMPERATURE: (-273.15, 1000.0), FAN: (0.0, 10_000.0)}


class TemperatureCollector:
    """Reads ``tempN_input`` (millidegree Celsius) and ``fanN_input`` (turns a minute) of all chips.

    Where no chip has a temperature, ``temp`` of each thermal zone stands in; zones repeat what chips tell. Sources:
    Linux Documentation/hwmon/sysfs-interface.rst and Documentation/driver-api/thermal/sysfs-api.rst.
    """

    name = "temperature"
    lane = Lane.MEDIUM

    def __init__(self, *, sys: Path = Path("/sys")) -> None:
        self._chips, self._zones = Chips(sys / "class" / "hwmon"), sys / "class" / "thermal"
        self._found: dict[str, Sensor] = {}
        self._looked_at: list[str] = []
        self._look_again = -math.inf

    def collect(self, now: Instant) -> Reading:
        """Read each sensor that is there now; one that is gone is told once."""
        before = self._found
        chips = self._chips.folders()
        if chips != self._looked_at or now.mono >= self._look_again:
            # Names and labels are many more files than temperatures, and stay as they are.
            self._found, _ = self._sensors()
            self._looked_at, self._look_again = chips, now.mono + LOOK_AGAIN_S
        values, reasons = _read(self._found)
        if any(reason.startswith(Why.NOT_FOUND.value) for reason in reasons.values()):
            self._look_again = -math.inf
        for key, sensor in before.items():
            if key not in self._found:
                miss(values, reasons, (key,), f"{Why.NOT_FOUND.value}: {sensor.path}")
        return Reading(values, reasons)

    def probe(self) -> dict[str, str | None]:
        """Say of each metric whether there is a sensor, and which sensors refuse."""
        found, lacking = self._sensors()
        values, reasons = _read(found)
        report: dict[str, str | None] = {}
        for metric in METRICS:
            keys = [key for key in values if metric_name(key) == metric]
            if any(values[key] is not None for key in keys):
                report[metric] = None
                report.update({key: reasons[key] for key in keys if key in reasons})
            else:
                report[metric] = reasons[keys[0]] if keys else lacking[metric]
        return report

    def _sensors(self) -> tuple[dict[str, Sensor], dict[str, str]]:
        """Return the sensors by series, and for each metric the reason why it would have none."""
        found: dict[str, Sensor] = {}
        lacking: dict[str, str] = {}
        for metric, kind in ((TEMPERATURE, "temp"), (FAN, "fan")):
            try:
                sensors = self._chips.sensors(kind)
                lacking[metric] = f"{Why.NOT_FOUND.value}: no chip in {self._chips.folder} has one"
            except CollectorUnavailableError as error:
                sensors = []
                lacking[metric] = error.reason
            if metric == TEMPERATURE:
                sensors = sensors or self._zone_sensors()
            found.update({series(metric, chip=each.chip, sensor=each.label): each for each in sensors})
        return dict(list(found.items())[:MAX_SENSORS]), lacking

    def _zone_sensors(self) -> list[Sensor]:
        try:
            names = entries(self._zones, r"thermal_zone\d+")
        except CollectorUnavailableError:
            return []
        return [
            Sensor(chip=_type_of(self._zones / name), label=name, path=self._zones / name / "temp", fault=None)
            for name in names
        ]


def _read(sensors: dict[str, Sensor]) -> tuple[Values, Reasons]:
    values: Values = {}
    reasons: Reasons = {}
    for key, sensor in sensors.items():
        try:
            values[key] = _value(sensor, metric_name(key))
        except CollectorUnavailableError as error:
            miss(values, reasons, (key,), error.reason)
    return values, reasons


def _value(sensor: Sensor, metric: str) -> float:
    if sensor.fault is not None and read_number(sensor.fault) != 0:
        raise CollectorUnavailableError(Why.FAILED, f"{sensor.fault} says that the sensor is broken")
    number = read_number(sensor.path)
    value = round(number / _PER_UNIT[metric], 3)
    low, high = _POSSIBLE[metric]
    if not low <= value <= high:
        raise garbled(sensor.path, str(number).encode())
    return value


def _type_of(zone: Path) -> str:
    try:
        return read_text(zone / "type") or zone.name
    except CollectorUnavailableError:
        return zone.name
