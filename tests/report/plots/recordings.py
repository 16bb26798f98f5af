"""Small recordings for plots, and the figures that they give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.report import plots
from fedmon.report.plots import Plot
from fedmon.report.source import Source
from fedmon.report.subject import choose

T0 = 1_795_255_200.0
"""2026-11-21 10:00:00 UTC."""
Columns = Mapping[str, Sequence[float | None]]


def samples(columns: Columns, *, node: str = "n1", stream: str = "host", late_s: float = 0.0, step_s: float = 1.0,
            first: int = 0) -> Batch:  # fmt: skip
    """Make samples that begin ``first`` steps after T0, by a clock that is late."""
    count = len(next(iter(columns.values())))
    mono = [(first + number) * step_s for number in range(count)]
    t = [T0 + moment + late_s for moment in mono]
    return Batch(
        node_id=node,
        boot=1,
        stream=stream,
        seq=first,
        t=t,
        mono=mono,
        columns={key: list(column) for key, column in columns.items()},
    )


def recording(path: Path, *batches: Batch) -> Path:
    with Recording(path) as store:
        store.append(batches)
    return path


@contextlib.contextmanager
def made(path: Path, *batches: Batch, **choice: Any) -> Iterator[dict[str, Plot]]:
    """The plots of samples by name."""
    with Source([recording(path, *batches)]) as source:
        subject = choose(source)
        yield {plot.name: plot for plot in plots.figures(plots.read_bins(subject), source, **choice)}


def drawn(path: Path, name: str, *batches: Batch, **choice: Any) -> Figure:
    with made(path, *batches, **choice) as found:
        return found[name].draw()


def panels(figure: Figure) -> list[Axes]:
    return figure.axes


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """The x and y values of the lines, without the markers of single points."""
    return [
        (np.asarray(line.get_xdata(), float).tolist(), np.asarray(line.get_ydata(), float).tolist())
        for line in axes.get_lines()
        if str(line.get_label()).startswith("line ")
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts] + [
        text.get_text() for axes in figure.axes for text in (*axes.texts, axes.xaxis.label, axes.yaxis.label)
    ]
