"""What a program reports over its own steps, such as a loss over epochs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmon.common.metrics.series import metric_name
from fedmon.report.bins import Bins
from fedmon.report.plots.curve import Curve
from fedmon.report.plots.figure import Figure
from fedmon.report.plots.gather import Part, Series


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
