"""The collectors of a node, by its settings, and a survey of their metrics on this machine."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.metrics.metric import Metric, Scope
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name
from fedmon.common.settings.values import NodeSettings
from fedmon.node.collectors.agent import CollectorTimes
from fedmon.node.collectors.base import Collector, CollectorUnavailableError, Lane, Roots, Why
from fedmon.node.collectors.energy import EnergyMeter, energy_collectors, job_energy_collectors
from fedmon.node.collectors.hardware import hardware
from fedmon.node.collectors.host import host_collectors
from fedmon.node.collectors.nvml import JobGpuCollector, NvmlSession, gpu_shares, nvml_collectors, open_session
from fedmon.node.measure.sampler import StreamReader

if TYPE_CHECKING:
    from fedmon.node.perf.source import PerfSource

NO_GPU_IN_A_TREE = CollectorUnavailableError(Why.UNSUPPORTED, "a simulated tree has no GPUs")
PROBED_WITHIN_S = 20.0
"""The longest wait for perf's trials, and for a slow start of NVML."""

_PACE = ("enabled", "interval_s", "min_interval_s", "cost_budget_ratio")
_EVERY = {Lane.FAST: "each sample", Lane.MEDIUM: "10 s", Lane.SLOW: "60 s"}
_NO_PERF_IN_A_TREE = f"{Why.UNSUPPORTED.value}: a simulated tree has no events"
_PERF_IS_OFF = f"{Why.UNSUPPORTED.value}: switched off in the settings, [perf] enabled"

Counts = Callable[[], Mapping[str, float | None]]


class Instruments:
    """Makes the collectors of the stream ``host``, then of each job; belongs to one thread at a time.

    ``counts`` gives the ``agent_`` metrics of each tick, ``times`` those of single collectors. ``job_cpu`` gives the
    CPU seconds of each job at a tick and ``job_pids`` its processes; both are called from the sampler's thread.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        counts: Counts,
        times: Counts,
        job_cpu: Callable[[Instant], Mapping[str, float]],
        job_pids: Callable[[], Mapping[str, Collection[int]]],
    ) -> None:
        self._counts, self._times = counts, times
        self._job_cpu, self._job_pids = job_cpu, job_pids
        self._nvml: NvmlSession | None = None
        self._meter: EnergyMeter
        self._perf: PerfSource | None = None
        self._settings = settings

    @property
    def _roots(self) -> Roots:
        return roots_of(self._settings)

    @property
    def has_gpus(self) -> bool:
        """Whether the energy of jobs may have a part of GPUs."""
        return self._nvml is not None and self._nvml.absent is None

    def follow(self, settings: NodeSettings) -> bool:
        """Take other settings; return whether collectors made before are out of date."""
        before, self._settings = self._settings, settings
        if roots_of(before) != roots_of(settings):
            self._nvml = None
        # New collectors count from 0 again, so a change of the pace alone makes none.
        metrics = msgspec.structs.replace(before.metrics, **{name: getattr(settings.metrics, name) for name in _PACE})
        sections = ("energy", "perf", "plugins")
        return metrics != settings.metrics or any(getattr(before, name) != getattr(settings, name) for name in sections)

    def host(self) -> list[Collector]:
        """Return the collectors of the machine as a whole."""
        # GPUs first: the collectors that follow use their energy and processes.
        collectors: list[Collector] = [*nvml_collectors(self._gpus())]
        collectors += host_collectors(roots=self._roots, per_core=self._settings.metrics.per_core, counts=self._counts)
        self._meter = EnergyMeter(
            self._roots,
            self._settings.energy,
            job_cpu=self._job_cpu,
            gpu_energy=self._gpus().gpu_energy,
            gpu_shares=lambda: gpu_shares(self._gpus(), self._job_pids()),
        )
        collectors += energy_collectors(self._meter)
        self._perf = None
        if self._settings.perf.enabled and not self._roots.simulated:
            from fedmon.node.perf.collector import PerfCollector
            from fedmon.node.perf.source import PerfSource

            self._perf = PerfSource(self._settings.perf, roots=self._roots)
            collectors.append(PerfCollector(self._perf))
        if self._settings.metrics.plugins:
            from fedmon.node.collectors.plugins import plugin_collectors

            names, tables = self._settings.metrics.plugins, self._settings.plugins
            collectors += plugin_collectors(names, roots=self._roots, settings=tables)
        collectors.append(CollectorTimes(self._times))
        return collectors

    def job(self, job_id: str, *, cgroup: str = "") -> list[Collector]:
        """Return the collectors of a job beside its processes: energy, GPUs and, if counted, events.

        ``cgroup`` is perf's name of the job's own cgroup, or empty.
        """
        collectors = job_energy_collectors(self._meter, job_id)
        collectors.append(JobGpuCollector(self._gpus(), job_id=job_id, jobs=self._job_pids))
        if self._perf is not None:
            from fedmon.node.perf.collector import PerfJobCollector

            collectors.append(
                PerfJobCollector(self._perf, job=job_id, pids=lambda: self._job_pids().get(job_id, ()), cgroup=cgroup)
            )
        return collectors

    def hardware(self) -> dict[str, Any]:
        """Return the machine's hardware."""
        gpus = self._gpus().hardware()
        return {**hardware(self._roots), "gpus": gpus, "emission_factor": self._meter.factor or None}

    def _gpus(self) -> NvmlSession:
        if self._nvml is None:
            # A simulated machine has neither the GPUs nor the events of this one.
            self._nvml = NvmlSession(None, absent=NO_GPU_IN_A_TREE) if self._roots.simulated else open_session()
        return self._nvml


def roots_of(settings: NodeSettings) -> Roots:
    """Return the folders of this machine's files, or of a simulated machine's."""
    metrics = settings.metrics
    return Roots(proc=metrics.proc_root, sys=metrics.sys_root, cgroup=metrics.cgroup_root)


class MetricFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its source, its present number of series, and the reason why it is not measured, or None.

    ``missing`` maps single series that are not measured to the reason.
    """

    name: str
    source: str
    series: int
    reason: str | None
    missing: dict[str, str]


class MetricGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one collector, and how often it is read."""

    name: str
    every: str
    metrics: list[MetricFinding]


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics and the hardware of a machine; ``simulated`` if a tree of files stands in for it."""

    simulated: bool
    groups: list[MetricGroup]
    hardware: dict[str, Any]


def survey(settings: NodeSettings) -> Survey:
    """Probe every collector of the machine, and read it once; takes a second or two."""
    # Loaded here, because a running node does not need it.
    from fedmon.common.metrics.table import METRICS

    instruments = Instruments(settings, counts=dict, times=dict, job_cpu=lambda _now: {}, job_pids=dict)
    is_simulated = roots_of(settings).simulated
    with contextlib.ExitStack() as ending:
        collectors = [one for one in instruments.host() if not isinstance(one, CollectorTimes)]
        for collector in collectors:
            ending.callback(getattr(collector, "close", lambda: None))
        groups = [_group(collector, METRICS) for collector in collectors]
        if is_simulated:
            groups.append(_without_perf(_NO_PERF_IN_A_TREE, METRICS))
        elif not settings.perf.enabled:
            groups.append(_without_perf(_PERF_IS_OFF, METRICS))
        # In the order of the table.
        order = {name: number for number, name in enumerate(METRICS)}
        groups.sort(
            key=lambda group: min((order.get(each.name, len(order)) for each in group.metrics), default=len(order))
        )
        return Survey(simulated=is_simulated, groups=groups, hardware=instruments.hardware())


def by_source(findings: Iterable[MetricFinding]) -> Iterable[tuple[str, list[MetricFinding]]]:
    """Group findings by source, or by reason if they are not measured."""
    together: dict[str, list[MetricFinding]] = {}
    for finding in findings:
        together.setdefault(finding.reason or finding.source, []).append(finding)
    return together.items()


def _without_perf(reason: str, table: Mapping[str, Metric]) -> MetricGroup:
    """Return the group of perf if a node would not start it."""
    rows = [metric for metric in table.values() if metric.scope is Scope.PERF]
    return MetricGroup(
        name="perf", every=_EVERY[Lane.FAST], metrics=[_finding(r.name, {r.name: reason}, 0, r) for r in rows]
    )


def _group(collector: Collector, table: Mapping[str, Metric]) -> MetricGroup:
    report, values = _asked(collector)
    series = Counter(metric_name(key) for key, value in values.items() if value is not None)
    table = getattr(collector, "declared", table)  # a plug-in declares its own metrics
    return MetricGroup(
        name=collector.name,
        every=_EVERY[collector.lane],
        metrics=[
            _finding(name, report, series[name], table.get(name)) for name in dict.fromkeys(map(metric_name, report))
        ],
    )


def _asked(collector: Collector) -> tuple[Mapping[str, str | None], Mapping[str, float | None]]:
    """Return a collector's report and reading, as a node asks for them; its failure is in the report."""
    getattr(collector, "wait_probed", lambda _: None)(PROBED_WITHIN_S)
    reader = StreamReader([collector])
    reader.probe()
    values = reader.read(Instant(t=time.time(), mono=time.monotonic())).values
    return reader.capabilities(), values


def _finding(name: str, report: Mapping[str, str | None], series: int, row: Metric | None) -> MetricFinding:
    missing = {key: why for key, why in report.items() if why is not None and key != name and metric_name(key) == name}
    # A plug-in may report single series alone.
    reason = report.get(name) if name in report or series else next(iter(missing.values()), None)
    return MetricFinding(name=name, source=row.source if row else "", series=series, reason=reason, missing=missing)
