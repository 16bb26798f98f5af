"""The energy of the whole machine, by the best method that it has."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.node.collectors.base import CollectorUnavailableError, Why
from fedmon.node.collectors.energy.counter import EnergyCounter
from fedmon.node.collectors.energy.hwmon_power import HwmonReader, Sensor, of_the_machine
from fedmon.node.collectors.energy.rapl import LOOK_AGAIN_S, Part, RaplReader, no_zones

GpuEnergy = Callable[[], Mapping[str, float]]


class Method(enum.Enum):
    """How the energy of a machine is found; the better ones first."""

    PLATFORM = "psys"  # the counter of the whole platform
    COMPONENTS = "components"  # packages, memory and GPUs added up
    SENSORS = "hwmon"  # power sensors, integrated over time
    GPUS = "gpus"  # GPUs alone, where nothing else can be read


PARTS: Mapping[Method, tuple[Part, ...]] = {
    Method.PLATFORM: (Part.PLATFORM,),
    Method.COMPONENTS: (Part.PACKAGE, Part.DRAM),
}


class NodeEnergy(NamedTuple):
    """Microjoules since the node's start: of processors and the rest of the machine, and of each GPU that is added.

    ``reason`` says why what was drawn since the previous reading is not known; the numbers are then without it.
    """

    cpu_uj: int
    gpu_uj: Mapping[str, int]
    reason: str | None

    @property
    def total_uj(self) -> int:
        """All of it."""
        return self.cpu_uj + sum(self.gpu_uj.values())


class NodeTotal:
    """Adds up the machine's energy; used by the sampler's thread alone.

    The method is chosen once, when there is one, so that a series never changes what it means.
    """

    def __init__(
        self, rapl: RaplReader, hwmon: HwmonReader, *, sensors: tuple[str, ...], gpu_energy: GpuEnergy | None
    ) -> None:
        self._rapl, self._hwmon, self._gpu_energy = rapl, hwmon, gpu_energy
        self._named_sensors = sensors
        self._sensors: frozenset[str] = frozenset()
        self._gpus: dict[str, EnergyCounter] = {}
        self._missing_gpus: frozenset[str] = frozenset()
        self._sensor_uj: dict[str, int] = {}
        self._chosen: float | None = None
        self.method, self.no_method = self._choose()

    def read(self, now: Instant) -> NodeEnergy | None:
        """Return the energy so far, None where the machine has no method."""
        method = self.method or self._found(now.mono)
        if method is None:
            return None
        if method is Method.SENSORS:
            return self._of_sensors(now)
        parts = PARTS.get(method, ())
        reasons = [reading.reason for reading in self._rapl.read(now) if reading.zone.part in parts] if parts else []
        if method is not Method.PLATFORM:
            reasons.append(self._read_gpus(now))
        return NodeEnergy(
            self._rapl.total_uj(parts),
            {gpu: counter.total_uj for gpu, counter in self._gpus.items()},
            next((reason for reason in reasons if reason is not None), None),
        )

    def _found(self, mono: float) -> Method | None:
        """Look for a method again when it is time to, or when GPUs have come."""
        has_gpus = self._gpu_energy is not None and bool(self._gpu_joules(self._gpu_energy)[0])
        if has_gpus or self._chosen is None or not 0 <= mono - self._chosen < LOOK_AGAIN_S:
            self._chosen = mono
            self.method, self.no_method = self._choose()
        return self.method

    def _choose(self) -> tuple[Method | None, str]:
        """Return the best method that can be read now, or None and why there is none."""
        zones = self._rapl.probe()
        readable = {zone.part for zone, reason in zones.items() if reason is None}
        for method in (Method.PLATFORM, Method.COMPONENTS):
            if PARTS[method][0] in readable:
                return method, ""
        chosen, problem = self._machine_sensors()
        if chosen:
            self._sensors = frozenset(sensor.full_name for sensor in chosen)
            return Method.SENSORS, ""
        if self._gpu_energy is not None and self._gpu_joules(self._gpu_energy)[0]:
            return Method.GPUS, ""
        refused = next((reason for reason in zones.values() if reason is not None), None)
        return None, refused or f"{no_zones()}; {problem}"

    def _machine_sensors(self) -> tuple[list[Sensor], str | None]:
        found = self._hwmon.probe()
        chosen, problem = of_the_machine(list(found), self._named_sensors)
        unreadable = next((reason for sensor in chosen if (reason := found[sensor]) is not None), None)
        return ([], unreadable) if unreadable else (chosen, problem)

    def _of_sensors(self, now: Instant) -> NodeEnergy:
        found = {reading.sensor.full_name: reading for reading in self._hwmon.read(now)}
        reasons: list[str | None] = []
        for name in sorted(self._sensors):
            reading = found.get(name)
            if reading is None:
                reasons.append(f"{Why.NOT_FOUND.value}: power sensor {name} is not there any more")
                continue
            if reading.total_uj is not None:
                self._sensor_uj[name] = reading.total_uj
            reasons.append(reading.reason or reading.gap)
        return NodeEnergy(sum(self._sensor_uj.values()), {}, next((reason for reason in reasons if reason), None))

    def _read_gpus(self, now: Instant) -> str | None:
        """Add what each GPU counted; return the reason where one of them is not known.

        A GPU that is not named any more is missed once, and then gone.
        """
        if self._gpu_energy is None:
            return None
        joules, reason = self._gpu_joules(self._gpu_energy)
        if reason is not None:
            return reason if self._gpus else None
        problems = []
        for gpu, value in joules.items():
            if not math.isfinite(value) or value < 0:
                problems.append(f"{Why.FAILED.value}: GPU {gpu}: {value} is no energy")
                continue
            # The driver counts in 64 bits of millijoules, which do not wrap in a machine's life.
            counter = self._gpus.setdefault(gpu, EnergyCounter(range_uj=None, max_watts=math.inf))
            if (problem := counter.add(round(value * 1e6), now.mono)) is not None:
                problems.append(problem)
        missing = frozenset(self._gpus.keys() - joules.keys())
        problems += [
            f"{Why.NOT_FOUND.value}: GPU {gpu} gives no energy any more" for gpu in sorted(missing - self._missing_gpus)
        ]
        self._missing_gpus = missing
        return problems[0] if problems else None

    @staticmethod
    def _gpu_joules(gpu_energy: GpuEnergy) -> tuple[Mapping[str, float], str | None]:
        try:
            return gpu_energy(), None
        except CollectorUnavailableError as error:
            return {}, error.reason
