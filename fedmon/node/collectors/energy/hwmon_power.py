"""Power sensors of the machine's chips (hwmon), and the energy that follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Reading, Why
from fedmon.node.collectors.energy.chips import Sensor, find_sensors
from fedmon.node.collectors.energy.counter import EnergyCounter
from fedmon.node.collectors.energy.device_file import DeviceFile

WATTS = "hwmon_power_watts"
JOULES = "hwmon_energy_joules_total"
LOOK_AGAIN_S = 60.0
LONGEST_GAP_S = 600.0
"""Two readings of a power that lie further apart say nothing of what was drawn between them."""

_MAX_UW = 10**12  # a megawatt: what is above is garbage


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
