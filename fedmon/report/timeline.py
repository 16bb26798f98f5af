"""What was in which state when, as a row of bars for each, as PNG."""

from __future__ import annotations

import io
from typing import Any

import msgspec

from fedmon.report.extra import report_extra

_WIDTH, _ROW, _MARGIN = 9.0, 0.24, 0.95
_LETTER = 0.075
_LONGEST = 30


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A state with its colour, from when to when, in seconds since the beginning."""

    start_s: float
    end_s: float
    state: str
    colour: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of bars, from above to below, each with its name; ``length_s`` is where all of it ends."""

    rows: tuple[tuple[str, tuple[Bar, ...]], ...]
    length_s: float


def drawn(timeline: Timeline) -> bytes:
    """Return it as PNG. Raises MissingExtraError."""
    with report_extra("a timeline"):
        from fedmon.report.plots.library import plain_settings

        with plain_settings():
            return _drawn(timeline)


def _drawn(timeline: Timeline) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name, _ in timeline.rows]
    left = 0.3 + max(map(len, names), default=0) * _LETTER
    height = len(names) * _ROW + _MARGIN
    figure = Figure(figsize=(_WIDTH, height), dpi=130)
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes(
        (left / _WIDTH, (_MARGIN - 0.1) / height, 1 - (left + 0.25) / _WIDTH, len(names) * _ROW / height)
    )
    unit, size = unit_of(timeline.length_s)
    colours: dict[str, str] = {}
    for row, (_, bars) in enumerate(timeline.rows):
        for bar in bars:
            colours.setdefault(bar.state, bar.colour)
            start, width = bar.start_s / size, (bar.end_s - bar.start_s) / size
            axes.barh(row, width, left=start, height=0.72, color=bar.colour, edgecolor="#555555", linewidth=0.6)
    axes.set_yticks(range(len(names)), names, fontsize=8.5, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlim(0, max(timeline.length_s, 1e-6) / size * 1.003)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"time since the run began ({unit})", fontsize=8.5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    handles = [Patch(facecolor=colour, edgecolor="#555555", label=state) for state, colour in colours.items()]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)
    into = io.BytesIO()
    figure.savefig(into, format="png", metadata={"Software": None})
    return into.getvalue()


def unit_of(length_s: float) -> tuple[str, float]:
    """Return the unit in which a time is best told, and how many seconds it has."""
    if length_s < 1:
        return "ms", 0.001
    if length_s < 300:
        return "s", 1.0
    return ("min", 60.0) if length_s < 7200 else ("h", 3600.0)
