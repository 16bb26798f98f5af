"""One meter for a node: its energy, the share of each job, and their emissions, read once for each instant."""

from __future__ import annotations

import enum
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import series
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Reading, Roots, Why
from fedmon.node.collectors.energy.carbon import chosen_factor
from fedmon.node.collectors.energy.counters import LOOK_AGAIN_S, EnergyCounter, Part
from fedmon.node.collectors.energy.sources import (
    NO_ZONES,
    hwmon_collector,
    hwmon_reader,
    of_the_machine,
    rapl_collector,
    rapl_reader,
)
from fedmon.node.collectors.files import KernelFile

logger = logging.getLogger(__name__)

JobCpu = Callable[[], Mapping[str, float]]
GpuEnergy = Callable[[], Mapping[str, float]]
GpuShares = Callable[[], Mapping[str, Mapping[str, float | None]]]

_NS = 1_000_000_000
_MICRO = 1_000_000
_UJ_PER_KWH = 3_600_000_000_000


class Energy(NamedTuple):
    """Microjoules, or the reason why they are not known this time."""

    uj: int | None
    reason: str = ""


class Method(enum.Enum):
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
        self._jobs: dict[str, _Job] = {}
        self._busy_ns: int | None = None
        self._cpu_uj = 0
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
        gets its CPU time divided by the busy time of the machine, or by the CPU time of all jobs if that is more.
        """
        cpu_drawn, self._cpu_uj = max(0, cpu_uj - self._cpu_uj), max(cpu_uj, self._cpu_uj)
        gpu_drawn = {gpu: max(0, uj - self._gpu_uj.get(gpu, 0)) for gpu, uj in gpu_uj.items()}
        self._gpu_uj |= {gpu: max(uj, self._gpu_uj.get(gpu, 0)) for gpu, uj in gpu_uj.items()}
        busy_ns = round(busy_s * _NS)
        last_busy_ns, self._busy_ns = self._busy_ns, busy_ns
        for name, job in self._jobs.items():
            if name not in job_cpu_s and job.last_ns is not None:
                job.last_ns, job.reason = None, f"{Why.NOT_FOUND.value}: job {name} has no CPU time any more"
        used_ns = {name: self._jobs.setdefault(name, _Job()).used(seconds) for name, seconds in job_cpu_s.items()}
        if last_busy_ns is None:
            return
        if busy_ns < last_busy_ns:
            for job in self._jobs.values():
                job.reason = job.reason or f"{Why.FAILED.value}: the machine's CPU time went back"
            return
        whole_ns = max(busy_ns - last_busy_ns, sum(used_ns.values()))
        for name, ns in used_ns.items():
            if ns:
                self._jobs[name].total_uj += cpu_drawn * ns // whole_ns
        for gpu, drawn in gpu_drawn.items():
            shares = {name: gpu_shares.get(name, {}).get(gpu) or 0.0 for name in used_ns}
            parts = {name: int(min(share, 1.0) * _NS) for name, share in shares.items() if share > 0}
            whole = max(_NS, sum(parts.values()))
            for name, part in parts.items():
                self._jobs[name].total_uj += drawn * part // whole

    def of(self, name: str) -> Energy:
        """Return the energy of a job since it was seen first."""
        job = self._jobs.get(name)
        if job is None:
            return Energy(None, f"{Why.NOT_FOUND.value}: job {name} has no CPU time yet")
        return Energy(None, job.reason) if job.reason else Energy(job.total_uj)

    def keep(self, names: set[str]) -> None:
        """Forget every job that is neither named nor running."""
        self._jobs = {name: job for name, job in self._jobs.items() if job.last_ns is not None or name in names}


class _Job:
    """One job: its energy so far, and its CPU time at the previous call."""

    def __init__(self) -> None:
        self.total_uj = 0
        self.last_ns: int | None = None
        self.reason = ""
        self._is_known = False

    def used(self, cpu_s: float) -> int:
        """Return the nanoseconds since the previous call; 0, and a reason, if they are not known."""
        now_ns = round(cpu_s * _NS)
        last_ns, self.last_ns, self.reason = self.last_ns, now_ns, ""
        if last_ns is None:
            self.reason = f"{Why.FAILED.value}: no CPU time was read before" if self._is_known else ""
            self._is_known = True
            return 0
        if now_ns < last_ns:
            self.reason = f"{Why.FAILED.value}: the job's CPU time went back from {last_ns / _NS:g} to {cpu_s:g} s"
            return 0
        return now_ns - last_ns


class BusyCpuTime:
    """Reads the time that all CPUs spent in user, nice, system, irq and softirq.

    Time stolen by a hypervisor is not this machine's work. Source: Linux Documentation/filesystems/proc.rst, 1.7.
    """

    def __init__(self, proc: Path) -> None:
        self._stat = KernelFile(proc / "stat", size_bytes=512)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def __call__(self) -> float:
        """Return busy seconds since the system started. Raises CollectorUnavailableError."""
        try:
            user, nice, system, _, _, irq, softirq = map(int, self._stat.head().split(None, 8)[1:8])
        except ValueError:
            raise CollectorUnavailableError(Why.FAILED, f"{self._stat.path} has no times of all CPUs") from None
        return (user + nice + system + irq + softirq) / self._ticks_per_s


class EnergyMeter:
    """Reads counters and sensors, and divides the machine's energy among jobs.

    ``job_cpu`` gives the CPU seconds of each running job, ``busy_cpu`` those of the machine (default: /proc/stat),
    ``gpu_energy`` the joules of each GPU, ``gpu_shares`` the share, 0 to 1, that each job has of each GPU; while it is
    None the energy of that GPU waits. All are called from the sampler's thread, must not wait, and may raise
    CollectorUnavailableError. Every method but ``factor`` belongs to the sampler's thread.

    The ``method`` is chosen once, as soon as there is one, so that a series never changes its meaning; ``no_method`` is
    the reason if there is none. ``no_factor`` is the reason if emissions are not reported.
    """

    def __init__(
        self,
        roots: Roots,
        settings: EnergySettings,
        *,
        job_cpu: JobCpu | None = None,
        busy_cpu: Callable[[], float] | None = None,
        gpu_energy: GpuEnergy | None = None,
        gpu_shares: GpuShares | None = None,
    ) -> None:
        self.rapl = rapl_reader(roots.sys, max_watts=settings.max_zone_watts)
        self.hwmon = hwmon_reader(roots.sys, max_watts=settings.max_zone_watts)
        self._named_sensors, self._sensors = settings.node_power_sensors, tuple[str, ...]()
        self._job_cpu, self._gpu_energy, self._gpu_shares = job_cpu, gpu_energy, gpu_shares
        self._busy_cpu = busy_cpu or BusyCpuTime(roots.proc)
        self._gpus: dict[str, EnergyCounter] = {}
        self._missing_gpus: frozenset[str] = frozenset()
        self._sensor_uj: dict[str, int] = {}
        self._cpu_uj = 0
        self._shares = JobShares()
        self._watched: set[str] = set()
        self._node: tuple[Instant, Energy] | None = None
        self._settled: tuple[Instant, str] | None = None
        self._looked: float | None = None
        self._method, self.no_method = self._choose()
        self.micrograms_per_kwh: int | None = None
        self.no_factor: str | None = None
        self._factor: dict[str, str | float] = {}
        try:
            factor = chosen_factor(settings)
        except CollectorUnavailableError as error:
            self.no_factor = error.reason
            if settings.region is not None:
                logger.warning("no emissions are reported: %s", error.reason)
        else:
            self.micrograms_per_kwh = round(factor.gco2e_per_kwh * settings.pue * _MICRO)
            self._factor = {name: getattr(factor, name) for name in factor.__struct_fields__} | {"pue": settings.pue}

    @property
    def lane(self) -> Lane:
        """How often the machine's energy is read: counters each time, sensors behind a bus every 10 s."""
        return Lane.MEDIUM if self._method is Method.SENSORS else Lane.FAST

    @property
    def method(self) -> str | None:
        """The word for how the machine's energy is found; None if it cannot be."""
        return self._method.value if self._method else None

    def factor(self) -> dict[str, str | float]:
        """Return the emission factor: region, name, gco2e_per_kwh, date, source, table and pue; empty without one."""
        return dict(self._factor)

    def node(self, now: Instant) -> Energy:
        """Return the machine's energy since the node's start."""
        if self._node is None or self._node[0] != now:
            self._node = now, self._read(now)
        return self._node[1]

    def watch(self, job_id: str) -> None:
        """Keep the account of this job until ``forget``, also while no CPU time of it is known."""
        self._watched.add(job_id)

    def forget(self, job_id: str) -> None:
        """Drop a job that has ended."""
        self._watched.discard(job_id)

    def job(self, now: Instant, job_id: str) -> Energy:
        """Return a job's share of the machine's energy since the job was seen first."""
        if self._settled is None or self._settled[0] != now:
            self._settled = now, self._settle(now)
        return Energy(None, self._settled[1]) if self._settled[1] else self._shares.of(job_id)

    def no_shares(self) -> str | None:
        """Return the reason why jobs get no energy; None if they do."""
        if self._method is None:
            return self.no_method
        if self._job_cpu is None:
            return f"{Why.UNSUPPORTED.value}: this node watches no jobs"
        try:
            self._busy_cpu()
        except CollectorUnavailableError as error:
            return error.reason
        return None

    @property
    def has_shares(self) -> bool:
        """Whether jobs can get energy on this machine."""
        return self._method is not None and self._job_cpu is not None

    def _read(self, now: Instant) -> Energy:
        """Read all sources of the method; without one, look again every minute or when GPUs have come."""
        is_due = self._looked is None or not 0 <= now.mono - self._looked < LOOK_AGAIN_S
        if self._method is None and (is_due or self._has_gpus()):
            self._looked = now.mono
            self._method, self.no_method = self._choose()
        if self._method is None:
            return Energy(None, self.no_method)
        gpu_reasons: list[str] = []
        if self._method is Method.SENSORS:
            reasons = self._read_sensors(now)
        else:
            parts = _PARTS.get(self._method, ())
            reasons = [each.reason or each.gap for each in self.rapl.read(now) if each.source.part in parts]
            self._cpu_uj = self.rapl.total_uj(parts)
            gpu_reasons = [] if self._method is Method.PLATFORM else self._read_gpus(now)
        reason = next(filter(None, (*reasons, *gpu_reasons)), "")
        return Energy(None, reason) if reason else Energy(self._cpu_uj + sum(self._gpu_uj().values()))

    def _choose(self) -> tuple[Method | None, str]:
        """Return the best method that can be read now, or None and the reason."""
        zones = self.rapl.probe()
        readable = {zone.part for zone, reason in zones.items() if reason is None}
        for method, parts in _PARTS.items():
            if parts[0] in readable:
                return method, ""
        found = self.hwmon.probe()
        chosen, problem = of_the_machine(list(found), self._named_sensors)
        unreadable = next((reason for sensor in chosen if (reason := found[sensor]) is not None), "")
        if chosen and not unreadable:
            self._sensors = tuple(sorted(sensor.name for sensor in chosen))
            return Method.SENSORS, ""
        if self._has_gpus():
            return Method.GPUS, ""
        refused = next((reason for reason in zones.values() if reason is not None), None)
        return None, refused or f"{NO_ZONES}; {unreadable or problem}"

    def _has_gpus(self) -> bool:
        try:
            return self._gpu_energy is not None and bool(self._gpu_energy())
        except CollectorUnavailableError:
            return False

    def _gpu_uj(self) -> dict[str, int]:
        return {gpu: counter.total_uj for gpu, counter in self._gpus.items()}

    def _read_sensors(self, now: Instant) -> list[str]:
        found = {reading.source.name: reading for reading in self.hwmon.read(now)}
        reasons = []
        for name in self._sensors:
            reading = found.get(name)
            if reading is None:
                reasons.append(f"{Why.NOT_FOUND.value}: power sensor {name} is no longer there")
                continue
            if reading.total_uj is not None:
                self._sensor_uj[name] = reading.total_uj
            reasons.append(reading.reason or reading.gap)
        self._cpu_uj = sum(self._sensor_uj.values())
        return reasons

    def _read_gpus(self, now: Instant) -> list[str]:
        """Add the energy of each GPU; return the reasons of unknown ones, once for one that is no longer listed."""
        if self._gpu_energy is None:
            return []
        try:
            joules = self._gpu_energy()
        except CollectorUnavailableError as error:
            return [error.reason] if self._gpus else []
        problems = []
        for gpu, value in joules.items():
            # The driver counts in 64 bits of millijoules, which do not wrap in a machine's life.
            counter = self._gpus.setdefault(gpu, EnergyCounter(range_uj=None, max_watts=math.inf))
            problems.append(counter.add(round(value * _MICRO), now.mono))
        missing = frozenset(self._gpus.keys() - joules.keys())
        new = sorted(missing - self._missing_gpus)
        self._missing_gpus = missing
        return problems + [f"{Why.NOT_FOUND.value}: GPU {gpu} gives no energy any more" for gpu in new]

    def _settle(self, now: Instant) -> str:
        """Divide the energy since the last time that all was known; return the reason if that is not now."""
        energy = self.node(now)
        if energy.reason or self._job_cpu is None:
            return energy.reason or self.no_shares() or ""
        gpu_uj = {} if self._method is Method.PLATFORM else self._gpu_uj()
        try:
            busy_s, job_cpu_s = self._busy_cpu(), self._job_cpu()
            gpu_shares = self._gpu_shares() if self._gpu_shares is not None and gpu_uj else {}
        except CollectorUnavailableError as error:
            return error.reason
        unknown = {gpu for shares in gpu_shares.values() for gpu, share in shares.items() if share is None}
        self._shares.settle(
            cpu_uj=self._cpu_uj,
            gpu_uj={gpu: uj for gpu, uj in gpu_uj.items() if gpu not in unknown},
            busy_s=busy_s,
            job_cpu_s=job_cpu_s,
            gpu_shares=gpu_shares,
        )
        self._shares.keep(self._watched)
        return ""


class EnergyCollector:
    """Reports the energy of the whole machine since the node's start, or of one job since it was seen first.

    ``emissions`` reports kilowatt-hours, and grams if there is a factor, instead of joules. The label ``method`` of the
    machine's says how the energy was found. ``close`` ends a job's account.
    """

    def __init__(self, meter: EnergyMeter, job_id: str | None = None, *, emissions: bool = False) -> None:
        self._meter, self._job_id, self._emissions = meter, job_id, emissions
        of = "node" if job_id is None else "job"
        self.name = f"{of}_emissions" if emissions else f"{of}_energy"
        self._joules, self._kwh = f"{of}_energy_joules_total", f"{of}_energy_kilowatt_hours_total"
        self._grams = f"{of}_emissions_grams_total"
        if job_id is not None:
            meter.watch(job_id)

    @property
    def lane(self) -> Lane:
        """Return how often the meter can be read."""
        return Lane.MEDIUM if self._emissions else self._meter.lane

    def collect(self, now: Instant) -> Reading:
        """Read the meter."""
        meter = self._meter
        is_job = self._job_id is not None
        energy = meter.node(now) if self._job_id is None else meter.job(now, self._job_id)
        if meter.method is None or (is_job and not meter.has_shares):
            return Reading({})
        units = {self._joules: (1, _MICRO, 20)}
        if self._emissions:
            units = {self._kwh: (1, _UJ_PER_KWH, 40)}
            if meter.micrograms_per_kwh is not None:
                units[self._grams] = (meter.micrograms_per_kwh, _UJ_PER_KWH * _MICRO, 32)
        uj = energy.uj or 0
        convert = rounded_down if is_job else lambda numerator, denominator, _bits: numerator / denominator
        labels = {} if is_job else {"method": meter.method}
        values = {series(name, **labels): convert(uj * times, per, bits) for name, (times, per, bits) in units.items()}
        if energy.uj is None:
            return Reading(dict.fromkeys(values), dict.fromkeys(values, energy.reason))
        return Reading(values)

    def probe(self) -> dict[str, str | None]:
        """Report whether the energy can be found, and whether there is a factor."""
        meter = self._meter
        reason = meter.no_shares() if self._job_id is not None else meter.no_method or None
        if not self._emissions:
            return {self._joules: reason}
        report = {self._kwh: reason, self._grams: meter.no_factor or reason}
        return report if self._job_id is not None else {**report, "node_emissions_factor_info": meter.no_factor}

    def close(self) -> None:
        """Let the meter forget the job."""
        if self._job_id is not None:
            self._meter.forget(self._job_id)


def rounded_down(numerator: int, denominator: int, bits: int) -> float:
    """Return a quotient rounded down to 2**-bits; such numbers add up without error, never to more than the whole."""
    return ((numerator << bits) // denominator) / (1 << bits)


def energy_collectors(meter: EnergyMeter) -> list[Collector]:
    """Return the collectors of the machine's energy."""
    whole, emissions = EnergyCollector(meter), EnergyCollector(meter, emissions=True)
    return [rapl_collector(meter.rapl), hwmon_collector(meter.hwmon), whole, emissions]


def job_energy_collectors(meter: EnergyMeter, job_id: str) -> list[Collector]:
    """Return the collectors of one job's share, for the stream of that job."""
    return [EnergyCollector(meter, job_id), EnergyCollector(meter, job_id, emissions=True)]
