"""Numbers that came while something ran, as lines over time, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import msgspec

from fedmon.report.extra import report_extra
from fedmon.report.timeline import unit_of

_MAX_LINES = 10


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A line with its name, and its points: seconds since the beginning, and a number."""

    label: str
    points: tuple[tuple[float, float], ...]


def drawn(title: str, curves: Sequence[Curve]) -> bytes:
    """Return curves as PNG; of more than a few only these are named. Raises MissingExtraError."""
    with report_extra("a drawing"):
        from fedmon.report.plots.library import plain_settings

        with plain_settings():
            return _drawn(title, curves)


def _drawn(title: str, curves: Sequence[Curve]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 3.1), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    unit, size = unit_of(max((t for curve in curves for t, _ in curve.points), default=0.0))
    for index, curve in enumerate(curves):
        times, values = [t / size for t, _ in curve.points], [value for _, value in curve.points]
        axes.plot(times, values, marker="o" if len(times) <= 40 else None, markersize=3.5, linewidth=1.3)
        if index < _MAX_LINES:
            axes.lines[-1].set_label(curve.label if not curve.label.startswith("_") else f" {curve.label}")
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_xlabel(f"time since the run began ({unit})", fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.margins(y=0.08)
    axes.ticklabel_format(axis="y", useOffset=False)
    more = f"{len(curves) - _MAX_LINES} more have no name here" if len(curves) > _MAX_LINES else None
    legend = axes.legend(fontsize=7.5, title=more, title_fontsize=7.5, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    into = io.BytesIO()
    figure.savefig(into, format="png", metadata={"Software": None})
    return into.getvalue()
