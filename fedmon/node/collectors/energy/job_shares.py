"""Which part of a machine's energy belongs to which job; arithmetic alone, in whole microjoules and nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedmon.node.collectors.base import Why

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
