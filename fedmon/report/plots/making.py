"""Which plots a recording has, from what was measured in it."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fedmon.common.metrics.series import metric_name, split_series
from fedmon.report.bins import Bins, SeriesKey
from fedmon.report.plots.catalogue import FIGURES, NOT_SHOWN, SCENARIO_FINISHED, unlisted
from fedmon.report.plots.curve import Curve, join
from fedmon.report.plots.drawing import Drawing, draw, most_points
from fedmon.report.plots.figure import Figure, Group, Join, Quantity
from fedmon.report.plots.layout import MOST_LINES, MOST_PANELS, Panel, spread
from fedmon.report.plots.literal import file_name, literal
from fedmon.report.plots.plot import Plot
from fedmon.report.plots.scale import scale_of
from fedmon.report.plots.time_axis import time_axis
from fedmon.report.source import JOB

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

_SPOKEN = {"gpu": "GPU", "cpu": "CPU", "link": "link", "mig": "instance", "node": "node", "port": "port"}
_ZONE = "zone"

MOST_EACH = 24
"""Figures that one row of the catalogue makes at most, such as one for each value that a program reports."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which plots are wanted; without a word about a respect, all of them."""

    groups: frozenset[Group] | None = None
    metric: Callable[[str], bool] | None = None
    per_node: bool = True
    combined: bool = True
    zeros: bool = False
    zone: datetime.tzinfo = datetime.UTC


class Maker:
    """Makes the plots of what ``bins`` hold; ``nodes`` maps node ids to names, ``marks`` are Unix time and text."""

    def __init__(
        self, bins: Bins, nodes: Mapping[str, str], marks: Sequence[tuple[float, str]], streams: Callable[[str], bool],
        choice: Choice,
    ) -> None:  # fmt: skip
        keys = [key for key in bins.keys() if streams(key.stream)]  # noqa: SIM118 - a method of ours
        self._series = Series(bins, nodes, keys)
        self._bins, self._choice = bins, choice
        self._has_nodes = len({key.node_id for key in keys}) > 1
        self._marks = tuple(sorted([*marks, *self._finished()]))
        self._axis = time_axis(bins.start, bins.end, zone=choice.zone)
        self._names: set[str] = set()
        self.left_out: list[str] = []
        """Figures that were not made because all their values are 0."""

    def plots(self) -> list[Plot]:
        """Return every plot, in the order of reading."""
        found: list[Plot] = []
        metrics = [name for name in self._series.metrics if name not in NOT_SHOWN]
        for figure in (*FIGURES, *unlisted(metrics)):
            if self._choice.groups is not None and figure.group not in self._choice.groups:
                continue
            if self._choice.metric is not None and not any(map(self._choice.metric, figure.lines)):
                continue
            found += self._of(figure)
        return found

    def _of(self, figure: Figure) -> list[Plot]:
        found: list[Plot] = []
        for each, parts in list(self._series.parts(figure).items())[:MOST_EACH]:
            name = self._unique(f"{figure.name}_{file_name(each)}") if figure.each else figure.name
            title = f"{figure.title}: {literal(each, 48)}" if figure.each else figure.title
            own = msgspec.structs.replace(figure, name=name, title=title)
            if figure.quiet and not self._choice.zeros:
                parts = [part for part in parts if part.is_limit or self._has_value(part)]  # noqa: PLW2901 - fewer
                if all(part.is_limit for part in parts):
                    self.left_out.append(name)
                    continue
            if figure.over_step:
                found += self._by_step(own, parts)
                continue
            if self._choice.per_node:
                found.append(self._plot(own, parts, "_per_node", None))
            if self._choice.combined and self._has_nodes and own.over is not None:
                found.append(self._plot(own, parts, "_all_nodes", own.over))
        if figure.detail and self._choice.per_node:
            found += self._detail(figure)
        return found

    def _unique(self, name: str) -> str:
        """Return a name that no other figure has, as names that differ may look alike in a file's."""
        number, found = 2, name
        while found.lower() in self._names:
            number, found = number + 1, f"{name}_{number}"
        self._names.add(found.lower())
        return found

    def _detail(self, figure: Figure) -> list[Plot]:
        """Return the figure of single devices, where a node has several."""
        found = []
        for parts in self._series.parts(figure, by_instance=True).values():
            if len({part.instance for part in parts}) > 1:
                name, title = f"{figure.name}_by_{figure.detail}", f"{figure.title} by {figure.detail}"
                one = msgspec.structs.replace(figure, name=name, title=title, split=True)
                found.append(self._plot(one, parts, "_per_node", None))
        return found

    def _plot(self, figure: Figure, parts: Sequence[Part], suffix: str, over: Join | None) -> Plot:
        return Plot(
            name=f"{figure.name}{suffix}",
            title=self._title(figure, parts, over),
            group=figure.group,
            is_combined=over is not None,
            draw=functools.partial(self._draw, figure, tuple(parts), over),
        )

    def _title(self, figure: Figure, parts: Sequence[Part], over: Join | None) -> str:
        nodes = {part.key.node_id for part in parts}
        if over is not None:
            return f"{figure.title}, {over.value} over {len(nodes)} node{'s' * (len(nodes) > 1)}"
        if not self._has_nodes:
            return figure.title
        return f"{figure.title}, per node"

    def _draw(self, figure: Figure, parts: Sequence[Part], over: Join | None) -> Drawn:
        curves = [self._series.curve(figure, part) for part in parts]
        width_s = self._bins.width_s
        notes = []
        if over is not None:
            lines = over_nodes(curves, figure, over, width_s)
        else:
            by_instance = figure.split and (
                len({curve.node for curve in curves}) <= MOST_PANELS or len(curves) <= MOST_LINES
            )
            lines = per_node(curves, figure, width_s, by_instance=by_instance)
            if figure.split and not by_instance and len(lines) < len(curves):
                notes.append(f"{figure.within.value} of the devices of each node")
        layout = spread(lines, width_s)
        if layout.left_out:
            notes.append(f"no room for: {', '.join(literal(name) for name in layout.left_out)}")
        notes.insert(0, self._band(layout.panels, over))
        return draw(
            Drawing(
                title=self._title(figure, parts, over),
                notes="; ".join(filter(None, notes)),
                panels=layout.panels,
                shares_scale=layout.shares_scale,
                quantity=figure.shown,
                noun=figure.noun,
                axis=self._axis,
                marks=self._marks,
            )
        )

    def _band(self, panels: Sequence[Panel], over: Join | None) -> str:
        """Say what the bands are, and over what the highest mean is meant."""
        shown = [(line.curve, most_points(panel)) for panel in panels for line in panel.lines if not line.is_rest]
        said = []
        if any(curve.low is not None or len(curve.t) > most for curve, most in shown):
            is_of_nodes = over is Join.AVERAGE and all(curve.low is not None for curve, _ in shown)
            said.append(f"band: lowest to highest value{' of any node' * is_of_nodes}")
        if any(curve.is_peak_of_means for curve, _ in shown):
            width = scale_of(Quantity.SECONDS, self._bins.width_s).text(self._bins.width_s)
            said.append(f"max is that of means over {width}")
        return "; ".join(said)

    def _by_step(self, figure: Figure, parts: Sequence[Part]) -> list[Plot]:
        curves = over_steps(self._bins, self._series, figure, parts)
        if not curves or not self._choice.per_node:
            return []
        return [
            Plot(
                name=f"{figure.name}_per_node",
                title=f"{figure.title}, by step",
                group=figure.group,
                is_combined=False,
                draw=functools.partial(self._draw_steps, figure, tuple(curves)),
            )
        ]

    def _draw_steps(self, figure: Figure, curves: Sequence[Curve]) -> Drawn:
        layout = spread(curves, 1e-9)
        return draw(
            Drawing(
                title=f"{figure.title}, by step",
                notes="",
                panels=layout.panels,
                shares_scale=layout.shares_scale,
                quantity=Quantity.NUMBER,
                noun=figure.noun,
                axis=None,
                x_label="step, as the program counts",
            )
        )

    def _has_value(self, part: Part) -> bool:
        return bool(np.any(self._bins.of(part.key).high))

    def _finished(self) -> list[tuple[float, str]]:
        found = []
        for key, labels in self._series.labelled(SCENARIO_FINISHED):
            node = self._series.nodes.get(key.node_id, key.node_id)
            text = f"{labels.get('scenario', '')} finished".strip()
            found += [(float(t), f"{node}: {text}") for t in self._bins.of(key).t]
        return found


def over_steps(bins: Bins, series: Series, figure: Figure, parts: Sequence[Part]) -> list[Curve]:
    """Return values over steps, of every series that tells both; a step that goes back begins a new piece."""
    steps = {(part.key.node_id, part.key.stream, _labels(part)): part for part in parts if part.is_limit}
    found = []
    for part in parts:
        other = steps.get((part.key.node_id, part.key.stream, _labels(part)))
        # Metric and limit of such a figure are the value and its step.
        if part.is_limit or other is None:
            continue
        value, step = bins.of(part.key), bins.of(other.key)
        _, at, at_step = np.intersect1d(value.steps, step.steps, assume_unique=True, return_indices=True)
        if len(at) < 2:
            continue
        curve = series.curve(figure, part)
        x = step.mean[at_step]
        found.append(
            curve._replace(
                t=x,
                mean=value.mean[at],
                low=None if curve.low is None else curve.low[at],
                high=None if curve.high is None else curve.high[at],
                breaks=np.diff(x) < 0,
                is_dense=False,
            )
        )
    return found


def _labels(part: Part) -> str:
    return part.key.series.removeprefix(metric_name(part.key.series))


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
