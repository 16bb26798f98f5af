"""Learning curves: reported values by round or step, the runs of a training joined, and the cost of each round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.series import metric_name
from fedmon.report.blocks import Block, Floats, labels_of

VALUE, STEP, ROWS = "user_value", "user_step", "user_run_rows"
COSTS: Mapping[str, str] = {"user_run_seconds": "seconds", "user_run_joules": "joules", "user_run_bytes": "bytes"}
"""Metrics of the cost of a round, and their columns in frames."""


class LearningCurve(NamedTuple):
    """One value by step on one node; ``number`` counts from 0 if a program began again."""

    node_id: str
    number: int
    steps: Floats
    values: Floats


Points: TypeAlias = list[Floats]
"""Boots, monotonic times, steps and values: a wall clock that is set changes no order."""


class _Run(NamedTuple):
    """The time and the step of the first and of the last report of one job on one node."""

    first: tuple[float, float]
    last: tuple[float, float]

    def continues(self, other: _Run) -> bool:
        """Tell whether it came after another and began where that was, or at a checkpoint."""
        return other.last[0] < self.first[0] and _goes_on(self.first[1], other.first[1], other.last[1])


class Training(NamedTuple):
    """The curves of one group by the name of their value, costs last; ``weights`` are rows by node, where known.

    Values without a group are one training, too, whose group is empty.
    """

    group: str
    curves: Mapping[str, list[LearningCurve]]
    weights: Mapping[str, float]


class Trainings:
    """A consumer of blocks that keeps every value with a step, exactly as reported."""

    def __init__(self) -> None:
        self._points: dict[str, dict[tuple[str, str, str], Points]] = defaultdict(lambda: defaultdict(list))
        """By group; then by name, node and job."""
        self._costs: dict[str, dict[tuple[str, str, str], tuple[float, float]]] = defaultdict(dict)
        """By group; then the time and value last told, by metric, node and job."""
        self._weights: dict[str, dict[str, float]] = defaultdict(dict)
        self._runs: dict[tuple[str, str], _Run] = {}
        """By node and job."""

    def add(self, block: Block) -> None:
        """Take samples in; only those of user streams matter."""
        if not is_user_stream(block.stream):
            return
        for name, values in block.columns.items():
            metric, labels = metric_name(name), labels_of(name)
            group, job, known = labels.get("group", ""), labels.get("job", ""), ~np.isnan(values)
            if metric == VALUE and (steps := block.columns.get(name.replace(VALUE, STEP, 1))) is not None:
                known &= ~np.isnan(steps)
                if known.any():
                    points = np.stack((np.full(len(steps), float(block.boot)), block.mono, steps, values))[:, known]
                    self._points[group][labels.get("name", ""), block.node_id, job].append(points)
                    self._note(block.node_id, job, block.t[known], steps[known])
            elif metric in COSTS and known.any():
                key, cost = (metric, block.node_id, job), (float(block.t[known][-1]), float(values[known][-1]))
                self._costs[group][key] = max(self._costs[group].get(key, cost), cost)
            elif metric == ROWS and known.any():
                self._weights[group][block.node_id] = float(values[known][-1])

    def all(self) -> list[Training]:
        """Return the trainings by group."""
        return [self._training(group) for group in sorted(self._points)]

    def _note(self, node_id: str, job: str, t: Floats, steps: Floats) -> None:
        told = list(zip(t.tolist(), steps.tolist(), strict=True))
        run = self._runs.get((node_id, job), _Run(told[0], told[0]))
        self._runs[node_id, job] = _Run(min(run.first, *told), max(run.last, *told))

    def _training(self, group: str) -> Training:
        numbers = {} if group else self._numbers({(node_id, job) for _, node_id, job in self._points[group]})
        points: dict[tuple[str, str], dict[int, Points]] = defaultdict(lambda: defaultdict(list))
        for (name, node_id, job), found in self._points[group].items():
            points[name, node_id][numbers.get((node_id, job), 0)] += found
        curves: dict[str, list[LearningCurve]] = {}
        for (name, node_id), pieces in points.items():
            curves.setdefault(name, []).extend(_curves(node_id, pieces, is_joined=bool(group)))
        costs: dict[tuple[str, str, int], dict[float, float]] = defaultdict(lambda: defaultdict(float))
        for (metric, node_id, job), (_, cost) in self._costs.get(group, {}).items():
            # A run without a reported step is no round.
            if (run := self._runs.get((node_id, job))) is not None:
                costs[metric, node_id, numbers.get((node_id, job), 0)][run.last[1]] += cost
        for (metric, node_id, number), by_step in sorted(costs.items(), key=lambda one: list(COSTS).index(one[0][0])):
            steps, sums = np.array(sorted(by_step.items())).T
            curves.setdefault(metric, []).append(LearningCurve(node_id, number, steps, sums))
        return Training(group, curves, self._weights.get(group, {}))

    def _numbers(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the number of the curve of each node and job: the newest that a job continues on all nodes of both."""
        jobs: dict[str, dict[str, _Run]] = defaultdict(dict)
        for node_id, job in keys:
            jobs[job][node_id] = self._runs[node_id, job]
        found: dict[tuple[str, str], int] = {}
        curves: dict[int, dict[str, _Run]] = {}
        for job, runs in sorted(jobs.items(), key=lambda one: (min(run.first[0] for run in one[1].values()), one[0])):
            fitting = (
                at
                for at, curve in reversed(curves.items())
                if all(run.continues(curve[node_id]) for node_id, run in runs.items() if node_id in curve)
            )
            number = next(fitting, len(curves))
            curve = curves.setdefault(number, {})
            for node_id, run in runs.items():
                curve[node_id] = run._replace(first=curve.get(node_id, run).first)
                found[node_id, job] = number
        return found


def _goes_on(step: float, first: float, last: float) -> bool:
    """Tell whether a step continues a training of such steps: after the last one, or from a checkpoint.

    Since the last of regular checkpoints at most half of the steps were lost; before the first a training begins again.
    """
    return bool(step > first and step - first >= (last - first) / 2)


def _curves(node_id: str, pieces: Mapping[int, Points], *, is_joined: bool) -> list[LearningCurve]:
    """Return a curve for each number, or unless joined one for each time that steps began again; of equal the mean."""
    found: list[LearningCurve] = []
    again = 0
    for number in sorted(pieces):
        boots, mono, steps, values = np.concatenate(pieces[number], axis=1)
        order = np.lexsort((mono, boots))
        steps, values = steps[order], values[order]
        begins = [0]
        for back in (np.flatnonzero(np.diff(steps) < 0) + 1).tolist():
            if not is_joined and not _goes_on(steps[back], steps[begins[-1]], steps[back - 1]):
                begins.append(back)
        for more, part in enumerate(np.split(np.arange(len(steps)), begins[1:])):
            at, places, counts = np.unique(steps[part], return_inverse=True, return_counts=True)
            found.append(LearningCurve(node_id, number + again + more, at, np.bincount(places, values[part]) / counts))
        again += len(begins) - 1
    return found


def is_reported(series: str) -> bool:
    """Tell whether a series belongs to learning curves."""
    return series.startswith((f"{VALUE}{{", f"{STEP}{{", "user_run_"))


def is_kept_exactly(series: str, columns: Container[str]) -> bool:
    """Tell whether `Trainings` has all that charts need of a series among ``columns``: each run has its own series."""
    metric = metric_name(series)
    if metric == VALUE:
        return 'group="' in series and series.replace(VALUE, STEP, 1) in columns
    return metric in (STEP, ROWS) or metric in COSTS
