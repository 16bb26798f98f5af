"""Learning curves: reported values by round or step, the runs of a training joined, and the cost of each round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.series import split_series
from fedmon.report.blocks import Block, Floats

VALUE, STEP, ROWS = "user_value", "user_step", "user_run_rows"
COSTS: Mapping[str, str] = {"user_run_seconds": "seconds", "user_run_joules": "joules", "user_run_bytes": "bytes"}
"""Metrics of the cost of a round, and their columns in frames."""


class LearningCurve(NamedTuple):
    """One value by step on one node; ``number`` counts from 0 where a program began again."""

    node_id: str
    number: int
    steps: Floats
    values: Floats


Points: TypeAlias = list[tuple[Floats, Floats, Floats]]
"""Times, steps and values."""


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
        self._points: dict[str, dict[tuple[str, str], Points]] = defaultdict(lambda: defaultdict(list))
        self._costs: dict[str, dict[tuple[str, str], list[tuple[float, str, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._weights: dict[str, dict[str, float]] = defaultdict(dict)
        self._last_step: dict[tuple[str, str], float] = {}

    def add(self, block: Block) -> None:
        """Take samples in; only those of user streams matter."""
        if not is_user_stream(block.stream):
            return
        for name, values in block.columns.items():
            try:
                metric, labels = split_series(name)
            except ValueError:
                continue
            group, job, known = labels.get("group", ""), labels.get("job", ""), ~np.isnan(values)
            if metric == VALUE and (steps := block.columns.get(name.replace(VALUE, STEP, 1))) is not None:
                known &= ~np.isnan(steps)
                if known.any():
                    self._points[group][labels.get("name", ""), block.node_id].append(
                        (block.t[known], steps[known], values[known])
                    )
                    self._last_step[block.node_id, job] = float(steps[known][-1])
            elif metric in COSTS and known.any():
                self._costs[group][metric, block.node_id].append((float(block.t[known][-1]), job, values[known][-1]))
            elif metric == ROWS and known.any():
                self._weights[group][block.node_id] = float(values[known][-1])

    def all(self) -> list[Training]:
        """Return the trainings by group."""
        return [self._training(group) for group in sorted(self._points)]

    def _training(self, group: str) -> Training:
        points: dict[tuple[str, str], Points] = dict(self._points[group])
        for key, costs in sorted(self._costs.get(group, {}).items(), key=lambda one: list(COSTS).index(one[0][0])):
            # A run without a reported step is no round.
            told = [(t, self._last_step[key[1], job], value) for t, job, value in costs
                    if (key[1], job) in self._last_step]  # fmt: skip
            if told:
                t, steps, values = np.array(told, dtype=np.float64).T
                points[key] = [(t, steps, values)]
        curves: dict[str, list[LearningCurve]] = {}
        for (name, node_id), pieces in points.items():
            curves.setdefault(name, []).extend(_curves(node_id, pieces, is_joined=bool(group)))
        return Training(group, curves, self._weights.get(group, {}))


def _curves(node_id: str, pieces: Points, *, is_joined: bool) -> list[LearningCurve]:
    """Return one curve, or without a group one for each time that steps began again; of equal steps the mean."""
    t, steps, values = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    order = np.argsort(t, kind="stable")
    steps, values = steps[order], values[order]
    cuts = [] if is_joined else (np.flatnonzero(np.diff(steps) < 0) + 1).tolist()
    found = []
    for number, part in enumerate(np.split(np.arange(len(steps)), cuts)):
        at, places, counts = np.unique(steps[part], return_inverse=True, return_counts=True)
        found.append(LearningCurve(node_id, number, at, np.bincount(places, values[part]) / counts))
    return found


def is_reported(series: str) -> bool:
    """Tell whether a series belongs to learning curves."""
    return series.startswith((f"{VALUE}{{", f"{STEP}{{", "user_run_"))
