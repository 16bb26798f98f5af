"""The lines of a figure: every series that belongs to it, for each node or joined over nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fedmon.common.metrics.series import split_series
from fedmon.report.bins import Bins, SeriesKey
from fedmon.report.plots.curve import Curve, join
from fedmon.report.plots.figure import Figure, Join
from fedmon.report.source import JOB

_SPOKEN = {"gpu": "GPU", "cpu": "CPU", "link": "link", "mig": "instance", "node": "node", "port": "port"}
_ZONE = "zone"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One series of a figure, in words: ``each`` names the figure that it belongs to, where there are several."""

    key: SeriesKey
    name: str
    instance: str
    each: str
    is_limit: bool


class Series:
    """Everything that bins hold, by metric; ``nodes`` maps node ids to the names under which they are shown."""

    def __init__(self, bins: Bins, nodes: Mapping[str, str], keys: Iterable[SeriesKey]) -> None:
        self.bins, self.nodes = bins, nodes
        self._by_metric: dict[str, list[tuple[SeriesKey, dict[str, str]]]] = {}
        jobs = set()
        of_jobs, of_machines = set[str](), set[str]()
        for key in keys:
            name, labels = split_series(key.series)
            self._by_metric.setdefault(name, []).append((key, labels))
            if key.stream.startswith(JOB):
                jobs.add(key.stream)
                of_jobs.add(name)
            else:
                of_machines.add(name)
        self._has_several_jobs = len(jobs) > 1
        self._of_both = of_jobs & of_machines

    @property
    def metrics(self) -> list[str]:
        """Name every metric that has a value."""
        return list(self._by_metric)

    def labelled(self, metric: str) -> list[tuple[SeriesKey, dict[str, str]]]:
        """Return the series of a metric with their labels."""
        return self._by_metric.get(metric, [])

    def parts(self, figure: Figure, *, by_instance: bool = False) -> dict[str, list[Part]]:
        """Return the series of a figure by what each of its figures is about; "" where there is one figure."""
        found: dict[str, list[Part]] = {}
        chosen = [
            (metric, key, labels)
            for metric in figure.metrics
            for key, labels in self._by_metric.get(metric, [])
            if not any(labels.get(label) in values for label, values in figure.without.items())
        ]
        alike = _alike([labels for _, _, labels in chosen])
        for metric, key, labels in chosen:
            part = self._part(figure, metric, key, labels, by_instance=by_instance, alike=alike)
            found.setdefault(part.each, []).append(part)
        return {
            each: parts
            for each, parts in found.items()
            if any(not part.is_limit for part in parts) or figure.lines.keys() == figure.limits.keys()
        }

    def curve(self, figure: Figure, part: Part) -> Curve:
        """Return the line of one series."""
        curve = Curve.of(
            self.bins.of(part.key),
            is_event=figure.is_event,
            name=part.name,
            node=self.nodes.get(part.key.node_id, part.key.node_id),
            instance=part.instance,
        )
        return curve._replace(is_limit=part.is_limit)

    def _part(
        self,
        figure: Figure,
        metric: str,
        key: SeriesKey,
        labels: Mapping[str, str],
        *,
        by_instance: bool,
        alike: frozenset[str],
    ) -> Part:
        kept = [
            _kind(value) if label == _ZONE else value
            for label in figure.keep
            if (value := labels.get(label)) and not (by_instance and label == _ZONE)
        ]
        is_of_job = key.stream.startswith(JOB)
        if is_of_job and self._has_several_jobs:
            kept.append(f"job {key.stream.removeprefix(JOB)}")
        elif metric in self._of_both:
            kept.append("job" if is_of_job else "machine")
        label = figure.lines.get(metric) or figure.limits.get(metric, "")
        rest = [
            f"{_SPOKEN[name]} {value}" if name in _SPOKEN and value.isdigit() else value
            for name, value in labels.items()
            if name not in alike
            and (name not in figure.keep or (by_instance and name == _ZONE))
            and name != figure.each
        ]
        return Part(
            key=key,
            name=" ".join(filter(None, [label, *kept])),
            instance=" ".join(rest),
            each=labels.get(figure.each, "") if figure.each else "",
            is_limit=metric in figure.limits,
        )


def per_node(curves: Sequence[Curve], figure: Figure, width_s: float, *, by_instance: bool) -> list[Curve]:
    """Return the lines of each node; those of its devices are joined, unless ``by_instance``."""
    groups: dict[tuple[str, str, str, bool], list[Curve]] = {}
    for curve in curves:
        instance = curve.instance if by_instance and not curve.is_limit else ""
        groups.setdefault((curve.node, curve.name, instance, curve.is_limit), []).append(curve)
    return [
        join(group, Join.TOTAL if is_limit else figure.within, width_s)._replace(
            node=node, name=name, instance=instance, is_limit=is_limit
        )
        for (node, name, instance, is_limit), group in groups.items()
    ]


def over_nodes(curves: Sequence[Curve], figure: Figure, how: Join, width_s: float) -> list[Curve]:
    """Return one line for each name, of all nodes together."""
    groups: dict[tuple[str, bool], list[Curve]] = {}
    for curve in per_node(curves, figure, width_s, by_instance=False):
        groups.setdefault((curve.name, curve.is_limit), []).append(curve)
    return [
        join(group, how, width_s)._replace(name=name, node="", instance="", is_limit=is_limit)
        for (name, is_limit), group in groups.items()
    ]


def _alike(series: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """Return labels that have one value everywhere, and so tell nothing apart, where there are others."""
    values: dict[str, set[str]] = {}
    for labels in series:
        for name, value in labels.items():
            values.setdefault(name, set()).add(value)
    found = {name for name, different in values.items() if len(different) == 1}
    return frozenset(found) if len(found) < len(values) else frozenset()


def _kind(zone: str) -> str:
    """Return what a RAPL zone measures: ``package-1-core`` is a core."""
    words = re.findall(r"[A-Za-z]+", zone)
    return str(words[-1]) if words else zone
