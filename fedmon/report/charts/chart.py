"""Charts as data: lines on one grid of time, for every way of drawing."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS
from fedmon.common.store.recording_reader import chooser
from fedmon.common.text import duration, natural, short_ids
from fedmon.common.text import joined as told
from fedmon.report.bins import Binned, Bins, SeriesKey
from fedmon.report.blocks import Floats, labels_of, usual_distance
from fedmon.report.charts.catalogue import (
    DEVICES,
    FIRST_OF_JOB,
    FIRST_OF_NODES,
    NOT_SHOWN,
    ONE_LINE_A_NODE,
    Figure,
    Group,
    Join,
    Quantity,
    Scale,
    figures,
    is_shown,
    quantity_of,
    scale_of,
)
from fedmon.report.source import HOST, JOB
from fedmon.report.subject import Subject
from fedmon.report.training import COSTS, VALUE, LearningCurve

MOST_LINES = 7
"""Most lines of a chart; the others are shown as one."""
MOST_SHOWN = 12
"""Charts that are shown first; the others are folded."""
MOST_REPORTED = 6
"""Charts of reported values that are shown first."""
_ALIKE = 1e-3
"""Values that differ by a smaller share count as equal: a line of them shows nothing."""
_EDGE = 0.025
"""The part of a sum at its begin and end in which some nodes have no samples."""
_SPOKEN = {"gpu": "GPU", "cpu": "CPU", "node": "node", "mig": "instance", "link": "link", "port": "port"}


class Line(NamedTuple):
    """One line: a value for each moment of its chart, NaN if unknown; the band is None if it is thin."""

    label: str
    values: Floats
    low: Floats | None = None
    high: Floats | None = None
    mean: float = 0.0


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One chart. ``x`` are the moments in Unix time, or the program's steps if ``is_over_steps``.

    ``name`` is the unique beginning of a file name; ``figure`` the name of its figure. ``is_combined`` if each line is
    of all nodes together.
    """

    name: str
    figure: str
    title: str
    group: Group
    quantity: Quantity
    x: Floats
    lines: tuple[Line, ...]
    limits: tuple[tuple[str, float], ...] = ()
    is_stack: bool = False
    is_combined: bool = False
    is_over_steps: bool = False

    @property
    def scale(self) -> Scale:
        """The unit in which most of its values are short numbers."""
        tops = [float(np.nanpercentile(np.abs(line.values), 98)) for line in self.lines]
        return scale_of(self.quantity, sum(tops) if self.is_stack else max(tops))

    @property
    def is_constant(self) -> bool:
        """Tell whether no line changes, so that a picture shows nothing."""
        for line in self.lines:
            low = np.nanmin(line.values if line.low is None else line.low)
            high = np.nanmax(line.values if line.high is None else line.high)
            if high - low > _ALIKE * max(abs(low), abs(high)):
                return False
        return True


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of charts: a chart shows at least one of ``metrics``, which are names or globs, also with labels."""

    groups: frozenset[Group] | None = None
    metrics: Sequence[str] | None = None
    per_node: bool = True
    combined: bool = True
    zeros: bool = False

    @property
    def wanted(self) -> Callable[[str], bool]:
        """The filter of series that charts need: where labels are chosen, of those that are drawn only the chosen."""
        chosen = chooser(self.metrics)
        named = chosen if any("{" in glob for glob in self.metrics or ()) else None
        return lambda series: is_shown(series) and (named is None or named(series) or metric_name(series) in NOT_SHOWN)


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of a subject: the main ones, and the others; ``constant`` are titles of charts that never changed.

    ``span`` is the time that all charts over time show, ``gaps`` are times without samples of a node and why, in order
    and one after another, in Unix time.
    """

    span: tuple[float, float]
    first: tuple[Chart, ...]
    rest: tuple[Chart, ...]
    constant: tuple[str, ...] = ()
    gaps: tuple[tuple[float, float, str], ...] = ()


class _Part(NamedTuple):
    """One series of a figure, in words."""

    key: SeriesKey
    node: str
    name: str
    device: str


def charts_of(bins: Bins, subject: Subject, *, choice: Choice | None = None) -> Charts:
    """Return the charts of all metrics in a reading of a subject; none of constant values, unless asked for.

    Of several nodes each figure has a chart of all of them together, and one for each of its lines with a line a node.
    """
    maker = _Maker(bins, subject, choice or Choice())
    made = maker.charts()
    kept = tuple(_first(made, subject.job, several=maker.several, by_step=maker.by_step))
    names = {chart.name for chart in kept}
    return Charts(
        span=(bins.start, max(bins.end, float(maker.x[-1]))),
        first=kept,
        rest=tuple(chart for chart in made if chart.name not in names),
        constant=tuple(maker.constant),
        gaps=tuple(_gaps(bins, subject)),
    )


def _gaps(bins: Bins, subject: Subject) -> Iterator[tuple[float, float, str]]:
    """Return when samples of the job, or else of the machine, are missing on a node, with the reason if known."""
    stream, end = HOST if subject.job is None else f"{JOB}{subject.job}", bins.start
    holes = [(hole, host) for host in subject.hosts for hole in bins.holes(host.node_id, stream)]
    for hole, host in sorted(holes, key=lambda one: one[0].after_t):
        if hole.until_t <= end:  # nodes often lack samples at the same time, which is told once
            continue
        lost = subject.source.lost(host.node_id, stream, hole.boot) if hole.missing else []
        reasons = {one.reason for one in lost if one.first_seq < hole.until_seq <= one.last_seq + hole.missing}
        why = f": {told(sorted(reasons))}" if reasons else ""
        where = f"{host.name}: " if len(subject.hosts) > 1 else ""
        yield max(hole.after_t, end), hole.until_t, f"{where}no samples for {duration(hole.seconds)}{why}"
        end = hole.until_t


def _first(made: Sequence[Chart], job: str | None, *, several: bool, by_step: Collection[str]) -> Sequence[Chart]:
    """Return the main charts: reported values, by step and of most nodes first, then those of a job or nodes."""
    over_steps = sorted((chart for chart in made if chart.is_over_steps), key=lambda chart: -len(chart.lines))
    over_time = [chart for chart in made if chart.group is Group.USER and not chart.is_combined
                 and not chart.is_over_steps and chart.title not in by_step]  # fmt: skip
    chosen = [*over_steps, *over_time][:MOST_REPORTED]
    for name in FIRST_OF_JOB if job is not None else FIRST_OF_NODES:
        found = [chart for chart in made if chart.figure == name]
        if several and name in ONE_LINE_A_NODE:
            chosen += ([chart for chart in found if not chart.is_combined] or found)[:1]
        else:
            chosen += [chart for chart in found if chart.is_combined == several]
    return chosen[:MOST_SHOWN] or made[:MOST_SHOWN]


class _Maker:
    def __init__(self, bins: Bins, subject: Subject, choice: Choice) -> None:
        self._bins, self._machines, self._choice = bins, subject.machines, choice
        self._nodes = {host.node_id: host.name for host in subject.source.hosts}
        self._trained = bins.trainings.all()
        self.constant: list[str] = []
        self.by_step: set[str] = set()
        self._parts: dict[str, list[tuple[SeriesKey, Mapping[str, str]]]] = {}
        streams: dict[str, set[bool]] = {}
        for key in bins.keys():  # noqa: SIM118 - a method of ours
            name = metric_name(key.series)
            self._parts.setdefault(name, []).append((key, labels_of(key.series)))
            streams.setdefault(name, set()).add(key.stream.startswith(JOB))
        keys = [key for parts in self._parts.values() for key, _ in parts]
        self.several = len({key.node_id for key in keys}) > 1
        self._jobs = short_ids({key.stream.removeprefix(JOB) for key in keys if key.stream.startswith(JOB)})
        self._of_both = {name for name, kinds in streams.items() if len(kinds) > 1}
        self._names: set[str] = set()
        self.x = self._grid(keys)

    def _grid(self, keys: Sequence[SeriesKey]) -> Floats:
        """Return the moments of all charts: as dense as samples, but no more than a picture can show."""
        span = self._bins.end - self._bins.start
        paced = [key for key in keys if not key.series.startswith("user_")]
        distances = (np.diff(binned.t)[~binned.gaps] for binned in map(self._bins.of, paced or keys))
        usual = min((float(np.quantile(usual_distance(apart), 0.1)) for apart in distances if len(apart)), default=span)
        if usual <= self._bins.width_s:
            steps, first = np.arange(self._bins.count, dtype=np.float64), self._bins.start + self._bins.width_s / 2
            return np.asarray(first + self._bins.width_s * steps, dtype=np.float64)
        steps = np.arange(int(span / usual + 0.5) + 1, dtype=np.float64)
        return np.asarray(self._bins.start + usual * steps, dtype=np.float64)

    def charts(self) -> list[Chart]:
        made: list[Chart] = []
        for figure in figures({*self._parts, *([VALUE] if self._trained else [])}):
            if self._choice.groups is not None and figure.group not in self._choice.groups:
                continue
            if self._choice.metrics is not None and not any(
                fnmatch.fnmatchcase(name, metric_name(glob)) for name in figure.lines for glob in self._choice.metrics
            ):
                continue
            for chart in (*(self._trainings() if VALUE in figure.lines else ()), *self._of(figure)):
                if not chart.lines:  # a sum of nodes that were never read at the same time
                    continue
                # Who asks for it gets a line that never changes, too, but none of zeros.
                is_asked = self._choice.groups is not None or self._choice.metrics is not None
                is_zero = not np.nan_to_num([line.values for line in chart.lines]).any()
                is_empty = is_zero if is_asked else chart.is_constant and not chart.is_over_steps
                if is_empty and not self._choice.zeros:
                    self.constant.append(chart.title)
                else:
                    made.append(chart)
        return made

    def _of(self, figure: Figure) -> list[Chart]:
        by_each: dict[str, list[_Part]] = {}
        for metric in figure.lines:
            for part, labels in self._labelled(figure, metric):
                by_each.setdefault(labels.get(figure.each, ""), []).append(part)
        return [chart for each, parts in by_each.items() for chart in self._over_time(figure, each, parts)]

    def _over_time(self, figure: Figure, each: str, parts: Sequence[_Part]) -> list[Chart]:
        name = _file_name(f"{figure.name}_{each}" if figure.each else figure.name)
        title = f"{figure.title}: {each}" if figure.each else figure.title
        lines = {part: on_grid(self._bins.of(part.key), self.x, part.name) for part in parts}
        nodes = sorted({part.node for part in parts}, key=natural)
        devices: dict[str, dict[str, list[Line]]] = {part.name: {} for part in parts}
        for part in sorted(parts, key=lambda part: natural(part.node)):
            devices[part.name].setdefault(part.node, []).append(lines[part])
        by_name = {line: {node: joined(line, found, figure.within) for node, found in by_node.items()}
                   for line, by_node in devices.items()}  # fmt: skip

        def chart(suffix: str, title: str, found: Sequence[Line], *, combined: bool = False) -> Chart:
            return Chart(name=self._unique(f"{name}{suffix}"), figure=figure.name, title=title, group=figure.group,
                         quantity=figure.quantity, x=self.x,
                         lines=tuple(_few(found, is_stack=figure.is_stack)),
                         limits=() if self.several else self._limits(figure, each, found),
                         is_stack=figure.is_stack and len(found) > 1, is_combined=combined)  # fmt: skip

        if not self.several:
            if len(by_name) == 1:
                found = [lines[part]._replace(label=part.device or part.name or figure.title)
                         for part in sorted(parts, key=lambda part: natural(part.device))]  # fmt: skip
            else:
                found = [one for by_node in by_name.values() for one in by_node.values()]
            return [chart("_per_node", title, found)] if self._choice.per_node else []
        made = []
        if self._choice.combined:
            over = [joined(line or figure.title, [*by_node.values()], figure.over) for line, by_node in by_name.items()]
            words = f"{figure.over.value} of {len(nodes)} nodes" if len(nodes) > 1 else nodes[0]
            made.append(chart("_all_nodes", f"{title}, {words}", over, combined=True))
        if self._choice.per_node:
            for line, by_node in by_name.items():
                each_node = [one._replace(label=node) for node, one in by_node.items()]
                is_only = len(by_name) == 1
                one = chart("_per_node" if is_only else f"_{_file_name(line)}_per_node",
                            title if is_only else f"{title}: {line}", each_node)  # fmt: skip
                made.append(msgspec.structs.replace(one, is_stack=False))
        return made

    def _labelled(self, figure: Figure, metric: str) -> list[tuple[_Part, Mapping[str, str]]]:
        found = []
        chosen = [one for one in self._parts.get(metric, ()) if not set(figure.without) & set(one[1].values())]
        names = {name for _, labels in chosen for name in labels}
        alike = {name for name in names if len({labels.get(name) for _, labels in chosen}) == 1}
        for key, labels in chosen:
            is_of_job = key.stream.startswith(JOB)
            kept = [figure.lines.get(metric) or figure.limits.get(metric, "")]
            kept += [_kind(value) if name == "zone" else value for name, value in labels.items()
                     if name not in DEVICES and name != figure.each and name not in alike]  # fmt: skip
            if is_of_job and len(self._jobs) > 1:
                kept.append(f"job {self._jobs[key.stream.removeprefix(JOB)]}")
            elif metric in self._of_both:
                kept.append("job" if is_of_job else "machine")
            device = [f"{_SPOKEN[name]} {value}" if name in _SPOKEN and value.isdigit() else value
                      for name, value in labels.items() if name in DEVICES and name not in alike]  # fmt: skip
            node = self._nodes[key.node_id]
            if key.stream == HOST:
                node = self._machines.get(key.node_id, node)
            found.append((_Part(key, node, " ".join(filter(None, kept)), " ".join(device)), labels))
        return found

    def _limits(self, figure: Figure, each: str, lines: Sequence[Line]) -> tuple[tuple[str, float], ...]:
        """Return the limits of one node that are not far above all lines."""
        peak = max((float(np.nanmax(line.values)) for line in lines if np.isfinite(line.values).any()), default=0.0)
        limits = [
            (part.name, float(self._bins.of(part.key).mean[-1]))
            for metric in figure.limits
            for part, labels in self._labelled(figure, metric)
            if labels.get(figure.each, "") == each
        ]
        return tuple((label, value) for label, value in limits if 0 < value <= 4 * peak)

    def _trainings(self) -> list[Chart]:
        """Return the learning curves of each training and the cost of its rounds below them, on one axis."""
        made: list[Chart] = []
        for group, curves, weights in self._trained:
            for name, found in curves.items():
                what = f"{COSTS[name]} per round" if name in COSTS else name
                title = f"Training {group}: {what}" if group else f"Reported: {what}, by step"
                x = _steps([one for each in curves.values() for one in each] if group else found, self._bins.count)
                lines = _curves(found, x, self._nodes, None if name in COSTS else weights)
                file = f"training_{group}_{what}" if group else f"reported_{name}_by_step"
                # Runs of a group have no chart over time that could show a single round.
                if len(x) > 1 or group:
                    self.by_step.add(f"Reported: {name}")
                    made.append(Chart(
                        name=self._unique(_file_name(file)),
                        figure="training", title=title, group=Group.USER, x=x, lines=tuple(lines), is_over_steps=True,
                        quantity=quantity_of(METRICS[name]) if name in COSTS else Quantity.NUMBER,
                    ))  # fmt: skip
        return made

    def _unique(self, name: str) -> str:
        """Return a unique name, as different names may become one file name."""
        found, number = name, 2
        while found.lower() in self._names:
            number, found = number + 1, f"{name}_{number}"
        self._names.add(found.lower())
        return found


def _steps(curves: Sequence[LearningCurve], most: int) -> Floats:
    """Return the steps of curves, ascending, thinned out if there are very many."""
    x = np.unique(np.concatenate([one.steps for one in curves]))
    return x if len(x) <= most else x[np.linspace(0, len(x) - 1, most).astype(np.int64)]


def _curves(
    curves: Sequence[LearningCurve], x: Floats, nodes: Mapping[str, str], weights: Mapping[str, float] | None
) -> list[Line]:
    """Return a line for each node at some steps and the mean of their reports; without ``weights`` the reports alone.

    Between two reports of a node its line continues, but it does not count in means and costs.
    """
    lines: list[Line] = []
    means: list[Line] = []
    for number in sorted({one.number for one in curves}):
        suffix = f" ({number + 1})" if number else ""
        alike = sorted((one for one in curves if one.number == number),
                       key=lambda one: natural(nodes[one.node_id]))  # fmt: skip
        told = [_told(one, x) for one in alike]
        rows = told if weights is None else [
            np.where(np.isnan(line := np.interp(x, one.steps, one.values, left=np.nan, right=np.nan)), row, line)
            for one, row in zip(alike, told, strict=True)
        ]  # fmt: skip
        lines += [Line(nodes[one.node_id] + suffix, row, mean=float(np.mean(one.values)))
                  for one, row in zip(alike, rows, strict=True)]  # fmt: skip
        if len(alike) > 1 and weights is not None:
            by_rows = all(weights.get(one.node_id) for one in alike)
            each = np.array([weights[one.node_id] if by_rows else 1.0 for one in alike])[:, None]
            values = np.stack(told)
            whole = (each * ~np.isnan(values)).sum(axis=0)
            with np.errstate(invalid="ignore"):
                mean = np.where(whole > 0, np.nansum(each * values, axis=0) / whole, np.nan)
            means.append(Line(f"mean{', by rows' if by_rows else ''}{suffix}", mean, mean=float(np.nanmean(mean))))
    most = MOST_LINES - len(means)  # as many as there are colours
    return [*(lines if len(lines) <= most else _few(lines, is_stack=False, most=max(2, most))), *means]


def _told(curve: LearningCurve, x: Floats) -> Floats:
    """Return the values of a curve at some steps, NaN if it has none; those between two steps at the former."""
    row = np.full(len(x), np.nan)
    # Of several at one step the first stays, which is the one of that step itself.
    row[np.searchsorted(x, curve.steps[::-1], side="right") - 1] = curve.values[::-1]
    return row


def on_grid(binned: Binned, x: Floats, label: str) -> Line:
    """Return a series on a grid of time: the nearest value, or one between two neighbours, never across a gap."""
    t = binned.t
    half = (x[1] - x[0]) / 2 if len(x) > 1 else 0.5
    after = np.searchsorted(t, x)
    left, right = np.clip(after - 1, 0, len(t) - 1), np.clip(after, 0, len(t) - 1)
    nearest = np.where(np.abs(x - t[left]) <= np.abs(t[right] - x), left, right)
    is_near = np.abs(x - t[nearest]) <= half * 1.001
    inside = (after > 0) & (after < len(t))
    inside[inside] &= ~binned.gaps[after[inside] - 1]
    rows = []
    for values in (binned.mean, binned.low, binned.high):
        row = np.where(inside, np.interp(x, t, values), np.nan)
        row[is_near] = values[nearest[is_near]]
        rows.append(row)
    average = float(np.average(binned.mean, weights=binned.counts))
    is_thin = float(np.mean(binned.counts)) < 2  # else a line through means hides something
    return Line(label, rows[0], None if is_thin else rows[1], None if is_thin else rows[2], average)


def joined(label: str, lines: Sequence[Line], how: Join) -> Line:
    """Return one line for several. A sum is unknown while one of them has a gap; a mean is that of the others."""
    if len(lines) == 1:
        return lines[0]._replace(label=label)
    values = np.stack([line.values for line in lines])
    is_there = ~np.isnan(values)
    known: NDArray[np.bool_] = np.any(is_there, axis=0)
    line = np.full(values.shape[1], np.nan)
    low = high = None
    if how is Join.TOTAL:
        all_places, edge = np.flatnonzero(known), max(1, int(_EDGE * len(line)))
        for row in is_there[is_there.any(axis=1)]:
            places = np.flatnonzero(row)
            # Long before its first and after its last value a node has no part in the sum.
            first = places[0] if places[0] - all_places[0] > edge else all_places[0]
            last = places[-1] if all_places[-1] - places[-1] > edge else all_places[-1]
            known[first : last + 1] &= row[first : last + 1]
        line[known] = np.nansum(values[:, known], axis=0)
    elif how is Join.HIGHEST:
        line[known] = np.nanmax(values[:, known], axis=0)
    else:
        line[known] = np.nanmean(values[:, known], axis=0)
        low, high = np.full_like(line, np.nan), np.full_like(line, np.nan)
        low[known] = np.nanmin(values[:, known], axis=0)
        high[known] = np.nanmax(values[:, known], axis=0)
    return Line(label, line, low, high, float(np.nanmean(line)) if known.any() else 0.0)


def _few(lines: Sequence[Line], *, is_stack: bool, most: int = MOST_LINES) -> list[Line]:
    """Leave out lines of zeros and unknown ones, draw equal ones once, and show those beyond the largest as one."""
    there = [line for line in lines if np.isfinite(line.values).any()]
    kept = [line for line in there if np.nanmax(np.abs(line.values)) > 0] or there[:1]
    if not is_stack:
        equal: dict[bytes, list[Line]] = {}
        for line in kept:
            equal.setdefault(line.values.tobytes(), []).append(line)
        names = ([line.label for line in same] for same in equal.values())
        labels = [f"{told(alike)} (same values)" if len(alike) > 1 else alike[0] for alike in names]
        kept = [same[0]._replace(label=label) for same, label in zip(equal.values(), labels, strict=True)]
    if len(kept) <= most:
        return kept
    shown = sorted(sorted(range(len(kept)), key=lambda at: -abs(kept[at].mean))[: most - 1])
    others = [line for at, line in enumerate(kept) if at not in shown]
    other = joined(f"{len(others)} others, average", others, Join.AVERAGE)
    if is_stack:  # of which each is nothing where it is unknown, such as a job before it ran
        amounts = (~np.isnan([line.values for line in others])).sum(axis=0)
        other = Line(f"{len(others)} others", other.values * amounts)
    return [*(kept[at] for at in shown), other]


def _kind(zone: str) -> str:
    """Return the kind of a RAPL zone: ``package-1-core`` is a core."""
    words = [word for word in zone.split("-") if not word.isdigit()]
    return words[-1] if words else zone


def _file_name(text: str) -> str:
    """Return a text as a part of a file name: only letters, digits, dash, dot and underscore."""
    return re.sub("[^A-Za-z0-9.-]+", "_", text).strip("._-")[:60] or "unnamed"
