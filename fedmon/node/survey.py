"""What this machine measures and what not, group by group: found out at once, without a running node."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fedmon.common.metrics.metric import Metric, Scope
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS
from fedmon.common.settings.energy import EnergySettings
from fedmon.common.settings.perf import PerfSettings
from fedmon.common.settings.values import MetricsSettings
from fedmon.node.collectors import host_collectors
from fedmon.node.collectors.base import Collector, Lane, Reading, Roots, Why
from fedmon.node.collectors.hardware import hardware
from fedmon.node.collectors.plugin_guard import GuardedCollector
from fedmon.node.collectors.plugins import plugin_collectors

PERF_WITHIN_S = 20.0
_EVERY = {Lane.FAST: "each sample", Lane.MEDIUM: "10 s", Lane.SLOW: "60 s"}
_STANDS_IN = f"{Why.UNSUPPORTED.value}: a tree that stands in for a machine has none"
_OFF = f"{Why.UNSUPPORTED.value}: switched off in the settings, [perf] enabled"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: where it comes from, how many series it has now, and why it is not measured, None when it is.

    ``missing`` maps single series that are not measured to the reason.
    """

    name: str
    source: str
    series: int
    reason: str | None
    missing: dict[str, str]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What one collector measures, and how often."""

    name: str
    every: str
    metrics: list[Finding]


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine measures and what it is made of; ``simulated`` when a tree of files stands in for it."""

    simulated: bool
    groups: list[Group]
    hardware: dict[str, Any]


def survey(
    metrics: MetricsSettings,
    energy: EnergySettings,
    perf: PerfSettings,
    roots: Roots,
    *,
    plugins: Mapping[str, Mapping[str, Any]] | None = None,
) -> Survey:
    """Ask every collector of the machine what it can measure, and read it once; takes a second or two.

    ``plugins`` maps the name of a plug-in to its own settings; which are loaded ``metrics`` says.
    """
    with contextlib.ExitStack() as ending:
        collectors = host_collectors(roots=roots, per_core=metrics.per_core)
        collectors += _energy(roots, energy)
        gpu_collectors, session = _gpus(roots)
        collectors += gpu_collectors
        collectors += _perf(roots, perf)
        collectors += plugin_collectors(metrics.plugins, roots=roots, settings=plugins or {})
        for collector in collectors:
            ending.callback(getattr(collector, "close", lambda: None))
        groups = [_group(collector) for collector in collectors]
        found = hardware(roots, gpus=None if roots.simulated else session.hardware())
        if found["gpus"] is None:
            found["reasons"]["gpus"] = _STANDS_IN
    return Survey(simulated=roots.simulated, groups=groups, hardware=found)


def _energy(roots: Roots, settings: EnergySettings) -> list[Collector]:
    from fedmon.node.collectors.energy import energy_collectors

    collectors, _ = energy_collectors(roots, settings)
    return collectors


def _gpus(roots: Roots) -> tuple[list[Collector], Any]:
    from fedmon.node.collectors.nvml import nvml_collectors, open_session

    session = open_session()
    if roots.simulated:
        return [_Absent("gpu", Scope.GPU, _STANDS_IN)], session
    return nvml_collectors(session), session


def _perf(roots: Roots, settings: PerfSettings) -> list[Collector]:
    from fedmon.node.collectors.perf import PerfCollector
    from fedmon.node.perf_events.source import PerfSource

    if roots.simulated or not settings.enabled:
        return [_Absent("perf", Scope.PERF, _STANDS_IN if roots.simulated else _OFF)]
    collector = PerfCollector(PerfSource(settings, roots=roots))
    collector.wait_probed(PERF_WITHIN_S)
    return [collector]


class _Absent:
    """Stands for a group that is not asked at all."""

    lane = Lane.FAST

    def __init__(self, name: str, scope: Scope, reason: str) -> None:
        self.name, self._scope, self._reason = name, scope, reason

    def collect(self, _now: Instant) -> Reading:
        return Reading({})

    def probe(self) -> dict[str, str | None]:
        return {metric.name: self._reason for metric in METRICS.values() if metric.scope is self._scope}


def _group(collector: Collector) -> Group:
    report, values = _asked(collector)
    series = Counter(metric_name(key) for key, value in values.items() if value is not None)
    names = dict.fromkeys(map(metric_name, report))
    table = METRICS if not isinstance(collector, GuardedCollector) else collector.declared
    return Group(
        name=collector.name,
        every=_EVERY[collector.lane],
        metrics=[_finding(name, report, series[name], table.get(name)) for name in names],
    )


def _asked(collector: Collector) -> tuple[dict[str, str | None], dict[str, float | None]]:
    """Return what a collector says of itself, and what it reads; whatever is wrong with one, the others are asked."""
    try:
        report = dict(collector.probe())
    except Exception as error:  # noqa: BLE001 - the report names it
        return {collector.name: f"{Why.FAILED.value}: {type(error).__name__}: {error}"}, {}
    with contextlib.suppress(Exception):
        return report, dict(collector.collect(_now()).values)
    return report, {}


def _now() -> Instant:
    import time

    return Instant(t=time.time(), mono=time.monotonic())


def _finding(name: str, report: dict[str, str | None], series: int, row: Metric | None) -> Finding:
    missing = {key: why for key, why in report.items() if why is not None and key != name and metric_name(key) == name}
    reason = report.get(name)
    if name not in report and series == 0 and missing:
        reason = next(iter(missing.values()))
    return Finding(name=name, source=row.source if row else "", series=series, reason=reason, missing=missing)


def by_source(findings: Iterable[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """Yield the findings together that share one source, or one reason."""
    together: dict[str, list[Finding]] = {}
    for finding in findings:
        together.setdefault(finding.reason or finding.source, []).append(finding)
    yield from together.items()
