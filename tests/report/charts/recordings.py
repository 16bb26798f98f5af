"""Small recordings for charts, and the charts that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedmon.common.metrics.sample import Batch
from fedmon.report.charts import Chart, Charts, Choice, charts_of, read_bins
from fedmon.report.source import Source
from fedmon.report.subject import choose
from tests.report.tables import T0, recording


def made(path: Path, *batches: Batch, **choice: Any) -> Charts:
    """The charts of samples."""
    with Source([recording(path, *batches)]) as source:
        subject = choose(source)
        chosen = Choice(**choice)
        return charts_of(read_bins(subject, wanted=chosen.wanted), subject, choice=chosen)


def named(charts: Charts) -> dict[str, Chart]:
    return {chart.name: chart for chart in (*charts.first, *charts.rest)}


def chart(path: Path, name: str, *batches: Batch, **choice: Any) -> Chart:
    return named(made(path, *batches, **choice))[name]


def points(chart: Chart, label: str) -> dict[float, float]:
    """The values of one line by seconds since T0, or by step, as far as there are any."""
    (line,) = (line for line in chart.lines if line.label == label)
    x = chart.x - (0.0 if chart.is_over_steps else T0)
    known = np.flatnonzero(np.isfinite(line.values))
    return {round(float(x[at]), 3): round(float(line.values[at]), 6) for at in known}
