"""Temperatures and fans: every sensor of every hwmon chip, else the thermal zones."""

from __future__ import annotations

import math
from pathlib import Path

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name, series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.chips import Chips, Sensor
from fedmon.node.collectors.listing import Reasons, Values, miss
from fedmon.node.collectors.sysfs import entries, garbled, read_number, read_text

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
