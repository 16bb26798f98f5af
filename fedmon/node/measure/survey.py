"""What this machine measures and what not, group by group: found out at once, without a running node."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fedmon.common.metrics.metric import Metric, Scope
from fedmon.common.metrics.sample import Instant
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS
from fedmon.common.settings import NodeSettings
from fedmon.node.collectors.agent import CollectorTimes
from fedmon.node.collectors.base import Collector, Lane, Reading, Roots, Why
from fedmon.node.collectors.plugin_guard import GuardedCollector
from fedmon.node.measure.instruments import Instruments

PERF_WITHIN_S = 20.0
_EVERY = {Lane.FAST: "each sample", Lane.MEDIUM: "10 s", Lane.SLOW: "60 s"}
_NO_PERF_IN_A_TREE = f"{Why.UNSUPPORTED.value}: a tree that stands in for a machine has no events"
_PERF_IS_OFF = f"{Why.UNSUPPORTED.value}: switched off in the settings, [perf] enabled"


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


def survey(settings: NodeSettings) -> Survey:
    """Ask every collector of the machine what it can measure, and read it once; takes a second or two."""
    instruments = Instruments(settings, counts=dict, times=dict, job_cpu=dict, job_pids=dict)
    with contextlib.ExitStack() as ending:
        collectors = [one for one in instruments.host() if not isinstance(one, CollectorTimes)]
        for collector in collectors:
            ending.callback(getattr(collector, "close", lambda: None))
        groups = [_group(collector) for collector in (*collectors, *_without_perf(settings, instruments.roots))]
        groups.sort(key=_place)
        return Survey(simulated=instruments.roots.simulated, groups=groups, hardware=instruments.hardware())


def _place(group: Group) -> int:
    """Return where the table has the first metric of a group, so that people read the groups in that order."""
    names = list(METRICS)
    return min((names.index(each.name) for each in group.metrics if each.name in METRICS), default=len(names))


def _without_perf(settings: NodeSettings, roots: Roots) -> list[Collector]:
    """Return what stands for perf where a node would not start it."""
    if roots.simulated:
        return [_Absent("perf", Scope.PERF, _NO_PERF_IN_A_TREE)]
    return [] if settings.perf.enabled else [_Absent("perf", Scope.PERF, _PERF_IS_OFF)]


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
    wait_probed = getattr(collector, "wait_probed", None)
    if wait_probed is not None:
        wait_probed(PERF_WITHIN_S)
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
