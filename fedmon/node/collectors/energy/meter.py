"""One meter for a node: its energy, the share of each job, and their emissions, read once for each instant."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.energy.carbon import chosen_factor
from fedmon.node.collectors.energy.counters import EnergyCounter, Part, Source
from fedmon.node.collectors.energy.sources import (
    NO_ZONES,
    hwmon_collector,
    of_the_machine,
    rapl_collector,
)
from fedmon.node.collectors.files import TICKS_PER_S, KernelFile

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
_MICRO = 1_000_000
_UJ_PER_KWH = 3_600_000_000_000
_FACTOR = "node_emissions_factor_info"


class Energy(NamedTuple):
    """Microjoules, or the reason why they are not known this time."""

    uj: int | None
    reason: str = ""


class Method(enum.StrEnum):
    """How the energy of a machine is found; the better ones first."""

    PLATFORM = "psys"  # the counter of the whole platform
    COMPONENTS = "components"  # packages, memory and GPUs added up
    SENSORS = "hwmon"  # power sensors, integrated over time
    GPUS = "gpus"  # GPUs alone, if nothing else can be read


_PARTS = {Method.PLATFORM: (Part.PLATFORM,), Method.COMPONENTS: (Part.PACKAGE, Part.DRAM)}


class JobShares:
    """Divides energy among jobs: that of the processors by CPU time, that of a GPU by the jobs' shares of it.

    Whole numbers are rounded down, so that all jobs together, ended ones included, never get more than was there. The
    rest belongs to the machine itself and to processes outside of any job.
    """

    def __init__(self) -> None:
        self._job_uj: dict[str, int] = {}
        self._used_ns: dict[str, int] = {}
        self._busy_ns = self._cpu_uj = 0
        self._gpu_uj: dict[str, int] = {}

    def settle(
        self,
        *,
        cpu_uj: int,
        gpu_uj: Mapping[str, int],
        busy_s: float,
        job_cpu_s: Mapping[str, float],
        gpu_shares: Mapping[str, Mapping[str, float | None]],
    ) -> None:
        """Divide the energy since the previous call; everything but ``gpu_shares`` counts up from some start.

        ``cpu_uj`` is shared by CPU time, ``gpu_uj`` of each GPU by ``gpu_shares``: job, GPU, share from 0 to 1. A job
        gets its CPU time divided by the busy time of the machine, or by the CPU time of all jobs if that is more. One
        that was not there at the previous call gets nothing yet. A GPU of which a share is unknown is divided later.
        """
        before, self._used_ns = self._used_ns, {name: round(seconds * _NS) for name, seconds in job_cpu_s.items()}
        grown = {name: max(0, ns - before[name]) for name, ns in self._used_ns.items() if name in before}
        busy_ns, self._busy_ns = round(busy_s * _NS) - self._busy_ns, round(busy_s * _NS)
        self._job_uj = dict.fromkeys(job_cpu_s, 0) | self._job_uj
        cpu_drawn, self._cpu_uj = cpu_uj - self._cpu_uj, cpu_uj
        whole_ns = max(busy_ns, sum(grown.values()))
        for name, ns in grown.items():
            self._job_uj[name] += cpu_drawn * ns // whole_ns if ns else 0
        for gpu, uj in gpu_uj.items():
            shares = {name: gpu_shares.get(name, {}).get(gpu, 0.0) for name in grown}
            if None in shares.values():
                continue
            drawn, self._gpu_uj[gpu] = uj - self._gpu_uj.get(gpu, 0), uj
            parts = {name: int(min(share or 0.0, 1.0) * _NS) for name, share in shares.items()}
            whole = max(_NS, sum(parts.values()))
            for name, part in parts.items():
                self._job_uj[name] += drawn * part // whole

    def of(self, name: str) -> Energy:
        """Return the energy of a job since it was seen first."""
        if name not in self._used_ns:
            return Energy(None, f"{Why.NOT_FOUND.value}: job {name} has no CPU time")
        return Energy(self._job_uj[name])

    def forget(self, name: str) -> None:
        """Drop the account of a job that has ended."""
        self._job_uj.pop(name, None)
        self._used_ns.pop(name, None)


class EnergyMeter:
    """Reads counters and sensors, and divides the machine's energy among jobs.

    ``job_cpu`` gives the CPU seconds of each job at a tick, which never go down, ``gpu_energy`` the joules of each GPU,
    None while they are unknown, ``gpu_shares`` the share, 0 to 1, that each job has of each GPU; while it is None the
    energy of that GPU waits. All are called from the sampler's thread and must not wait; ``gpu_shares`` may raise
    CollectorUnavailableError. Every method belongs to the sampler's thread.

    The ``method`` is chosen once, as soon as there is one, so that a series never changes its meaning; ``no_method`` is
    the reason if there is none. ``factor`` is the emission factor with region, name, gco2e_per_kwh, date, source, table
    and pue; ``no_factor`` is the reason if it is empty and emissions are not reported.
    """

    def __init__(
        self,
        roots: Roots,
        settings: EnergySettings,
        *,
        job_cpu: Callable[[Instant], Mapping[str, float]] = lambda _now: {},
        gpu_energy: Callable[[], Mapping[str, float] | None] = dict,
        gpu_shares: Callable[[], Mapping[str, Mapping[str, float | None]]] = dict,
    ) -> None:
        self.rapl = rapl_collector(roots.sys, max_watts=settings.max_zone_watts)
        self.hwmon = hwmon_collector(roots.sys, max_watts=settings.max_zone_watts)
        self._named_sensors = settings.node_power_sensors
        self._counted: list[Source] = []
        self._job_cpu, self._gpu_energy, self._gpu_shares = job_cpu, gpu_energy, gpu_shares
        self._stat = KernelFile(roots.proc / "stat", size_bytes=512)
        self._gpus: dict[str, EnergyCounter] = {}
        self._missing_gpus: frozenset[str] = frozenset()
        self._cpu_uj = 0
        self._shares = JobShares()
        self._node: tuple[Instant, Energy] | None = None
        self._settled: tuple[Instant, str] | None = None
        self.method, self.no_method = self._choose()
        self.micrograms_per_kwh: int | None = None
        self.no_factor: str | None = None
        self.factor: Mapping[str, str | float] = {}
        try:
            factor = chosen_factor(settings)
        except CollectorUnavailableError as error:
            self.no_factor = error.reason
            if settings.region is not None:
                logger.warning("no emissions are reported: %s", error.reason)
        else:
            self.micrograms_per_kwh = round(factor.gco2e_per_kwh * settings.pue * _MICRO)
            self.factor = {name: getattr(factor, name) for name in factor.__struct_fields__} | {"pue": settings.pue}

    @property
    def lane(self) -> Lane:
        """How often the machine's energy is read: counters each time, sensors behind a bus every 10 s."""
        return Lane.MEDIUM if self.method is Method.SENSORS else Lane.FAST

    def node(self, now: Instant) -> Energy:
        """Return the machine's energy since the node's start."""
        if self._node is None or self._node[0] != now:
            self._node = now, self._read(now)
        return self._node[1]

    def forget(self, job_id: str) -> None:
        """Drop a job that has ended."""
        self._shares.forget(job_id)

    def job(self, now: Instant, job_id: str) -> Energy:
        """Return a job's share of the machine's energy since the job was seen first."""
        if self._settled is None or self._settled[0] != now:
            self._settled = now, self._settle(now)
        return Energy(None, self._settled[1]) if self._settled[1] else self._shares.of(job_id)

    def _read(self, now: Instant) -> Energy:
        """Read all sources of the method; without one, look again when GPUs have come."""
        if self.method is None and self._gpu_energy():
            self.method, self.no_method = self._choose()
        if self.method is None:
            return Energy(None, self.no_method)
        reader = self.hwmon if self.method is Method.SENSORS else self.rapl
        self._cpu_uj, reason = reader.energy(now, self._counted)
        if self.method in (Method.COMPONENTS, Method.GPUS):
            reason = next(filter(None, [reason, *self._read_gpus(now)]), "")
        return Energy(None, reason) if reason else Energy(self._cpu_uj + sum(self._gpu_uj().values()))

    def _choose(self) -> tuple[Method | None, str]:
        """Return the best method that can be read now, or None and the reason; note the sources that count for it."""
        zones = self.rapl.readable()
        readable = {zone.part for zone, reason in zones.items() if reason is None}
        for method, parts in _PARTS.items():
            if parts[0] in readable:
                self._counted = [zone for zone in zones if zone.part in parts]
                return method, ""
        found = self.hwmon.readable()
        chosen, problem = of_the_machine(list(found), self._named_sensors)
        unreadable = next((reason for sensor in chosen if (reason := found[sensor]) is not None), "")
        if chosen and not unreadable:
            self._counted = chosen
            return Method.SENSORS, ""
        if self._gpu_energy():
            return Method.GPUS, ""
        refused = next((reason for reason in zones.values() if reason is not None), None)
        return None, refused or f"{NO_ZONES}; {unreadable or problem}"

    def _busy_s(self) -> float:
        """Return the seconds that all CPUs spent in user, nice, system, irq and softirq since the system started.

        Time stolen by a hypervisor is not this machine's work. Raises CollectorUnavailableError.
        Source: Linux Documentation/filesystems/proc.rst, 1.7.
        """
        user, nice, system, _, _, irq, softirq = map(int, self._stat.head().split(None, 8)[1:8])
        return (user + nice + system + irq + softirq) / TICKS_PER_S

    def _gpu_uj(self) -> dict[str, int]:
        return {gpu: counter.total_uj for gpu, counter in self._gpus.items()}

    def _read_gpus(self, now: Instant) -> list[str]:
        """Add the energy of each GPU; return the reasons of unknown ones, once for one that is no longer listed."""
        joules = self._gpu_energy()
        if joules is None:
            return [f"{Why.FAILED.value}: NVML does not answer"] if self._gpus else []
        problems: list[str] = []
        for gpu, value in joules.items():
            # The driver counts in 64 bits of millijoules, which do not wrap in a machine's life.
            counter = self._gpus.setdefault(gpu, EnergyCounter())
            problems.append(counter.add(round(value * _MICRO), now.mono))
        missing = frozenset(self._gpus.keys() - joules.keys())
        new = sorted(missing - self._missing_gpus)
        self._missing_gpus = missing
        return problems + [f"{Why.NOT_FOUND.value}: GPU {gpu} no longer gives energy" for gpu in new]

    def _settle(self, now: Instant) -> str:
        """Divide the energy since the last time that all was known; return the reason if that is not now."""
        energy = self.node(now)
        if energy.reason:
            return energy.reason
        gpu_uj = self._gpu_uj()
        try:
            busy_s, job_cpu_s = self._busy_s(), self._job_cpu(now)
            gpu_shares = self._gpu_shares() if gpu_uj else {}
        except CollectorUnavailableError as error:
            return error.reason
        self._shares.settle(
            cpu_uj=self._cpu_uj,
            gpu_uj=gpu_uj,
            busy_s=busy_s,
            job_cpu_s=job_cpu_s,
            gpu_shares=gpu_shares,
        )
        return ""


class EnergyCollector:
    """Reports the energy of the whole machine since the node's start, or of one job since it was seen first.

    ``emissions`` reports kilowatt-hours instead of joules, and with a factor grams; the machine's has the factor too.
    The label ``method`` of the machine's says how the energy was found. ``close`` ends a job's account.
    """

    def __init__(self, meter: EnergyMeter, job_id: str | None = None, *, emissions: bool = False) -> None:
        self._meter, self._job_id, self._emissions = meter, job_id, emissions
        of = "node" if job_id is None else "job"
        self.name = f"{of}_emissions" if emissions else f"{of}_energy"
        self._joules, self._kwh = f"{of}_energy_joules_total", f"{of}_energy_kilowatt_hours_total"
        self._grams = f"{of}_emissions_grams_total"

    @property
    def lane(self) -> Lane:
        """Return how often the meter can be read."""
        return Lane.MEDIUM if self._emissions else self._meter.lane

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        meter = self._meter
        is_job = self._job_id is not None
        energy = meter.node(now) if self._job_id is None else meter.job(now, self._job_id)
        if meter.method is None:
            return Reading({})
        units = {self._joules: (1, _MICRO)}
        if self._emissions:
            units = {self._kwh: (1, _UJ_PER_KWH)}
            if meter.micrograms_per_kwh is not None:
                units[self._grams] = (meter.micrograms_per_kwh, _UJ_PER_KWH * _MICRO)
        labels = {} if is_job else {"method": meter.method}
        values = {series(name, **labels): (energy.uj or 0) * times / per for name, (times, per) in units.items()}
        factor = {} if is_job or not self._emissions else meter.factor
        info = {series(_FACTOR, **{label: str(value) for label, value in factor.items()}): 1.0} if factor else {}
        if energy.uj is None:
            return Reading(dict.fromkeys(values) | info, dict.fromkeys(values, energy.reason))
        return Reading(values | info)

    def probe(self) -> dict[str, str | None]:
        """Report whether the energy can be found, and whether there is a factor."""
        meter = self._meter
        reason = meter.no_method or None
        if not self._emissions:
            return {self._joules: reason}
        report = {self._kwh: reason, self._grams: meter.no_factor or reason}
        return report if self._job_id is not None else {**report, _FACTOR: meter.no_factor or reason}

    def close(self) -> None:
        """Let the meter forget the job."""
        if self._job_id is not None:
            self._meter.forget(self._job_id)


def energy_collectors(meter: EnergyMeter) -> list[Collector]:
    """Return the collectors of the machine's energy."""
    whole, emissions = EnergyCollector(meter), EnergyCollector(meter, emissions=True)
    return [meter.rapl, meter.hwmon, whole, emissions]


def job_energy_collectors(meter: EnergyMeter, job_id: str) -> list[Collector]:
    """Return the collectors of one job's share, for the stream of that job."""
    return [EnergyCollector(meter, job_id), EnergyCollector(meter, job_id, emissions=True)]
