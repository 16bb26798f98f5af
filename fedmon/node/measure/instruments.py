"""Which collectors a node has, made from its settings; what several of them share is made once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.settings import NodeSettings
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.agent import CollectorTimes
from fedmon.node.collectors.base import Collector, Roots, Why
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors, job_energy_collectors
from fedmon.node.collectors.nvml import JobGpuCollector, NvmlSession, gpu_shares, nvml_collectors, open_session
from fedmon.node.collectors.nvml.library import AbsentError

if TYPE_CHECKING:
    from fedmon.node.perf.source import PerfSource

logger = logging.getLogger(__name__)

NO_GPU_IN_A_TREE = AbsentError(Why.UNSUPPORTED, "a tree that stands in for a machine has no GPUs")

_PACE = ("enabled", "interval_s", "min_interval_s", "cost_budget_ratio")

Counts = Callable[[], Mapping[str, float | None]]


class Instruments:
    """Makes the collectors of the stream ``host`` and of each job; belongs to one thread at a time.

    ``counts`` gives the ``agent_`` metrics of each tick, ``times`` those of single collectors. ``job_cpu`` gives the
    CPU seconds of each job and ``job_pids`` its processes; both are called from the sampler's thread. perf is started
    ``perf_after_s`` after what it counts was there.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        counts: Counts,
        times: Counts,
        job_cpu: Callable[[], Mapping[str, float]],
        job_pids: Callable[[], Mapping[str, Collection[int]]],
        perf_after_s: float = 0.0,
    ) -> None:
        self._counts, self._times = counts, times
        self._job_cpu, self._job_pids = job_cpu, job_pids
        self._nvml: NvmlSession | None = None
        self._meter: EnergyMeter | None = None
        self._perf: PerfSource | None = None
        self._perf_after_s = perf_after_s
        self._hardware: dict[str, Any] | None = None
        self._settings = settings

    def follow(self, settings: NodeSettings) -> bool:
        """Take other settings; tells whether collectors that were made before are out of date."""
        before, self._settings = self._settings, settings
        # Collectors that are made anew count from 0 again, which no change of the pace is worth.
        metrics = msgspec.structs.replace(before.metrics, **{name: getattr(settings.metrics, name) for name in _PACE})
        sections = ("energy", "perf", "plugins")
        return metrics != settings.metrics or any(getattr(before, name) != getattr(settings, name) for name in sections)

    @property
    def roots(self) -> Roots:
        """Where the files of this machine lie, or of the one that stands in for it."""
        metrics = self._settings.metrics
        return Roots(proc=metrics.proc_root, sys=metrics.sys_root, cgroup=metrics.cgroup_root)

    def host(self) -> list[Collector]:
        """Return the collectors of the machine as a whole."""
        # GPUs first: their energy and processes of a tick are used by those that follow.
        collectors: list[Collector] = [*nvml_collectors(self._gpus())]
        collectors += host_collectors(roots=self.roots, per_core=self._settings.metrics.per_core, counts=self._counts)
        energy, self._meter = energy_collectors(
            self.roots,
            self._settings.energy,
            job_cpu=self._job_cpu,
            gpu_energy=self._gpus().gpu_energy,
            gpu_shares=lambda: gpu_shares(self._gpus(), self._job_pids()),
        )
        collectors += energy
        self._perf = self._perf_source()
        if self._perf is not None:
            from fedmon.node.collectors.perf import PerfCollector

            collectors.append(PerfCollector(self._perf))
        if self._settings.metrics.plugins:
            from fedmon.node.collectors.plugins import plugin_collectors

            names, tables = self._settings.metrics.plugins, self._settings.plugins
            collectors += plugin_collectors(names, roots=self.roots, settings=tables)
        collectors.append(CollectorTimes(self._times))
        return collectors

    def job(self, job_id: str, *, cgroup: Path | None = None) -> list[Collector]:
        """Return what is measured of a job beside its processes: energy, GPUs, and events where they are counted."""
        collectors: list[Collector] = []
        if self._meter is not None:
            collectors += job_energy_collectors(self._meter, job_id)
        if self._gpus().absent is None:
            collectors.append(JobGpuCollector(self._gpus(), job_id=job_id, jobs=self._job_pids))
        if self._perf is not None:
            from fedmon.node.collectors.perf import PerfJobCollector

            collectors.append(
                PerfJobCollector(self._perf, job=job_id, pids=lambda: self._job_pids().get(job_id, ()), cgroup=cgroup)
            )
        return collectors

    def hardware(self) -> dict[str, Any]:
        """Return what the machine is made of; found out once, which takes milliseconds."""
        if self._hardware is None:
            from fedmon.node.collectors.hardware import hardware

            self._hardware = hardware(self.roots, gpus=())
        gpus = self._gpus().hardware()
        factor = self._meter.factor() if self._meter is not None else {}
        return {**self._hardware, "gpus": gpus, "emission_factor": factor or None}

    def _gpus(self) -> NvmlSession:
        if self._nvml is None:
            # A machine that a tree stands in for does not have the GPUs, nor the events, of this one.
            self._nvml = NvmlSession(None, absent=NO_GPU_IN_A_TREE) if self.roots.simulated else open_session()
        return self._nvml

    def _perf_source(self) -> PerfSource | None:
        if self.roots.simulated or not self._settings.perf.enabled:
            return None
        from fedmon.node.perf.source import PerfSource

        return PerfSource(self._settings.perf, roots=self.roots, begin_after_s=self._perf_after_s)
