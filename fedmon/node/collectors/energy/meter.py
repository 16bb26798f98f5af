"""One meter for a node: its energy, the share of each job, and what they emit, read once for each instant."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedmon.common.metrics.sample import Instant
from fedmon.common.settings.values import EnergySettings
from fedmon.node.collectors.base import CollectorUnavailableError, Lane, Roots, Why
from fedmon.node.collectors.energy.carbon import chosen_factor
from fedmon.node.collectors.energy.hwmon_power import HwmonReader
from fedmon.node.collectors.energy.node_total import GpuEnergy, Method, NodeEnergy, NodeTotal
from fedmon.node.collectors.energy.rapl import RaplReader
from fedmon.node.collectors.files import KernelFile

_NS = 1_000_000_000


class JobShares:
    """Hands out energy to jobs: that of the processors by CPU time, that of a GPU by the jobs' shares of it.

    Whole numbers are rounded down, so that all jobs together, ended ones included, never get more than was there. What
    nobody gets is that of the machine itself and of processes outside of any job.
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
        gpu_shares: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Hand out what was drawn since the previous call; everything but ``gpu_shares`` counts up from some start.

        ``cpu_uj`` is shared by CPU time, ``gpu_uj`` of each GPU by ``gpu_shares``: job, GPU, share from 0 to 1. A job
        gets its CPU time divided by the busy time of the machine, or by the CPU time of all jobs where that is more.
        """
        cpu_drawn, self._cpu_uj = max(0, cpu_uj - self._cpu_uj), max(cpu_uj, self._cpu_uj)
        gpu_drawn = {gpu: max(0, uj - self._gpu_uj.get(gpu, 0)) for gpu, uj in gpu_uj.items()}
        self._gpu_uj |= {gpu: max(uj, self._gpu_uj.get(gpu, 0)) for gpu, uj in gpu_uj.items()}
        busy_ns = round(busy_s * _NS)
        last_busy_ns, self._busy_ns = self._busy_ns, busy_ns
        used_ns = self._used(job_cpu_s)
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
            self._hand_out_gpu(drawn, {name: gpu_shares.get(name, {}).get(gpu, 0.0) for name in used_ns})

    def total_uj(self, name: str) -> tuple[int | None, str | None]:
        """Return what a job has got since it was seen first, or the reason why that is not known this time."""
        job = self._jobs.get(name)
        if job is None:
            return None, f"{Why.NOT_FOUND.value}: job {name} has no CPU time yet"
        return (None, job.reason) if job.reason else (job.total_uj, None)

    def keep(self, names: set[str]) -> None:
        """Forget every job that is neither named nor running."""
        for name in [name for name, job in self._jobs.items() if job.last_ns is None and name not in names]:
            del self._jobs[name]

    def _used(self, job_cpu_s: Mapping[str, float]) -> dict[str, int]:
        """Return the CPU time of each job since the previous call; 0, and a reason, where that is not known."""
        for name, job in self._jobs.items():
            if name not in job_cpu_s and job.last_ns is not None:
                job.last_ns, job.reason = None, f"{Why.NOT_FOUND.value}: job {name} has no CPU time any more"
        return {name: self._jobs.setdefault(name, _Job()).used(seconds) for name, seconds in job_cpu_s.items()}

    def _hand_out_gpu(self, drawn: int, shares: Mapping[str, float]) -> None:
        parts = {name: int(min(share, 1.0) * _NS) for name, share in shares.items() if share > 0}
        whole = max(_NS, sum(parts.values()))
        for name, part in parts.items():
            self._jobs[name].total_uj += drawn * part // whole


class _Job:
    """One job: its energy so far, and its CPU time at the previous call."""

    def __init__(self) -> None:
        self.total_uj = 0
        self.last_ns: int | None = None
        self.reason: str | None = None
        self._is_known = False

    def used(self, cpu_s: float) -> int:
        if not math.isfinite(cpu_s) or cpu_s < 0:
            self.last_ns, self.reason = None, f"{Why.FAILED.value}: {cpu_s} is no CPU time"
            return 0
        now_ns = round(cpu_s * _NS)
        last_ns, self.last_ns = self.last_ns, now_ns
        if last_ns is None:
            self.reason = f"{Why.FAILED.value}: no CPU time was read before" if self._is_known else None
            self._is_known = True
            return 0
        if now_ns < last_ns:
            self.reason = f"{Why.FAILED.value}: the job's CPU time went back from {last_ns / _NS:g} to {cpu_s:g} s"
            return 0
        self.reason = None
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
        fields = self._stat.head().partition(b"\n")[0].split()
        try:
            if fields[0] != b"cpu":
                raise ValueError
            user, nice, system, _, _, irq, softirq = map(int, fields[1:8])
        except (ValueError, IndexError):
            raise CollectorUnavailableError(Why.FAILED, "the first line of stat is not that of all CPUs") from None
        return (user + nice + system + irq + softirq) / self._ticks_per_s


JobCpu = Callable[[], Mapping[str, float]]
GpuShares = Callable[[], Mapping[str, Mapping[str, float | None]]]

logger = logging.getLogger(__name__)

_UJ_PER_KWH = 3_600_000_000_000
_MICRO = 1_000_000


class Energy(NamedTuple):
    """Microjoules, or the reason why they are not known this time."""

    uj: int | None
    reason: str | None


class EnergyMeter:
    """Reads counters and sensors, and hands the machine's energy out to jobs.

    ``job_cpu`` gives the CPU seconds of each job that runs, ``busy_cpu`` those of the machine (from /proc/stat when
    absent), ``gpu_energy`` the joules of each GPU, ``gpu_shares`` the share from 0 to 1 that each job has of each GPU:
    where it is None the energy of that GPU waits until it is known.
    All are called from the sampler's thread, must not wait, and may raise CollectorUnavailableError. Every method but
    ``factor`` belongs to the sampler's thread.
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
        self.rapl = RaplReader(roots.sys, max_watts=settings.max_zone_watts)
        self.hwmon = HwmonReader(roots.sys, max_watts=settings.max_zone_watts)
        self.total = NodeTotal(self.rapl, self.hwmon, sensors=settings.node_power_sensors, gpu_energy=gpu_energy)
        self._job_cpu, self._gpu_shares = job_cpu, gpu_shares
        self._busy_cpu = busy_cpu or BusyCpuTime(roots.proc)
        self._shares = JobShares()
        self._watched: set[str] = set()
        self._read_at: Instant | None = None
        self._node: NodeEnergy | None = None
        self._settled_at: Instant | None = None
        self._unsettled: str | None = None
        self._pue = settings.pue
        self._micrograms_per_kwh: int | None = None
        self.no_factor: str | None = None
        self._factor: dict[str, str | float] = {}
        try:
            factor = chosen_factor(settings)
        except CollectorUnavailableError as error:
            self.no_factor = error.reason
            if settings.region is not None:
                logger.warning("no emissions are reported: %s", error.reason)
        else:
            self._micrograms_per_kwh = round(factor.gco2e_per_kwh * self._pue * _MICRO)
            self._factor = {name: getattr(factor, name) for name in factor.__struct_fields__} | {"pue": self._pue}

    @property
    def lane(self) -> Lane:
        """How often the machine's energy is read: counters each time, sensors behind a bus every 10 s."""
        return Lane.MEDIUM if self.total.method is Method.SENSORS else Lane.FAST

    @property
    def method(self) -> str | None:
        """The word for how the machine's energy is found, None where it cannot be."""
        return self.total.method.value if self.total.method else None

    @property
    def no_method(self) -> str:
        """Why the machine's energy cannot be found; a reason."""
        return self.total.no_method

    def factor(self) -> dict[str, str | float]:
        """Return the emission factor: region, name, gco2e_per_kwh, date, source, table and pue; empty without one."""
        return dict(self._factor)

    def node(self, now: Instant) -> Energy:
        """Return the machine's energy since the node's start."""
        if self._read_at != now:
            self._node, self._read_at = self.total.read(now), now
        if self._node is None:
            return Energy(None, self.total.no_method)
        return Energy(None, self._node.reason) if self._node.reason else Energy(self._node.total_uj, None)

    def watch(self, job_id: str) -> None:
        """Keep what this job got until ``forget``, also while no CPU time of it is known."""
        self._watched.add(job_id)

    def forget(self, job_id: str) -> None:
        """Let go of a job that has ended."""
        self._watched.discard(job_id)

    def job(self, now: Instant, job_id: str) -> Energy:
        """Return a job's share of the machine's energy since the job was seen first."""
        if self._settled_at != now:
            self._unsettled, self._settled_at = self._settle(now), now
        return Energy(None, self._unsettled) if self._unsettled else Energy(*self._shares.total_uj(job_id))

    @property
    def no_shares_ever(self) -> bool:
        """Whether jobs get no energy on this machine at all, so that nothing is missed at a single reading."""
        return self.total.method is None or self._job_cpu is None

    def no_shares(self) -> str | None:
        """Return the reason why jobs get no energy; None where they do."""
        if self.total.method is None:
            return self.total.no_method
        if self._job_cpu is None:
            return "unsupported: this node watches no jobs"
        try:
            self._busy_cpu()
        except CollectorUnavailableError as error:
            return error.reason
        return None

    def grams(self, uj: int) -> float | None:
        """Return what an energy emits, in grams of CO2 equivalent; None without a factor."""
        return None if self._micrograms_per_kwh is None else uj * self._micrograms_per_kwh / (_UJ_PER_KWH * _MICRO)

    def grams_of_a_job(self, uj: int) -> float | None:
        """Return the same, rounded down so that the sum over jobs is not above what the machine emitted."""
        if self._micrograms_per_kwh is None:
            return None
        return _down(uj * self._micrograms_per_kwh, _UJ_PER_KWH * _MICRO, bits=32)

    def _settle(self, now: Instant) -> str | None:
        """Hand out what was drawn since the last time that all was known; return the reason why that is not now."""
        energy = self.node(now)
        if energy.reason is not None or self._node is None or self._job_cpu is None:
            return energy.reason or self.no_shares()
        try:
            busy_s, job_cpu_s = self._busy_cpu(), self._job_cpu()
            gpu_shares = self._gpu_shares() if self._gpu_shares is not None and self._node.gpu_uj else {}
        except CollectorUnavailableError as error:
            return error.reason
        unknown = {gpu for shares in gpu_shares.values() for gpu, share in shares.items() if share is None}
        self._shares.settle(
            cpu_uj=self._node.cpu_uj,
            gpu_uj={gpu: uj for gpu, uj in self._node.gpu_uj.items() if gpu not in unknown},
            busy_s=busy_s,
            job_cpu_s=job_cpu_s,
            gpu_shares={
                job: {gpu: share for gpu, share in shares.items() if share is not None}
                for job, shares in gpu_shares.items()
            },
        )
        self._shares.keep(self._watched)
        return None


def joules(uj: int) -> float:
    """Return microjoules as joules."""
    return uj / _MICRO


def kilowatt_hours(uj: int) -> float:
    """Return microjoules as kilowatt-hours."""
    return uj / _UJ_PER_KWH


def joules_of_a_job(uj: int) -> float:
    """Return joules, rounded down to 2**-20 J: such numbers add up without error, so never to more than the whole."""
    return _down(uj, _MICRO, bits=20)


def kilowatt_hours_of_a_job(uj: int) -> float:
    """Return kilowatt-hours, rounded down to 2**-40 kWh (3 uJ) for the same reason."""
    return _down(uj, _UJ_PER_KWH, bits=40)


def _down(numerator: int, denominator: int, *, bits: int) -> float:
    return ((numerator << bits) // denominator) / (1 << bits)
