"""Figures as matplotlib draws them: its objects only, nothing global, so that any thread may draw its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.report.blocks import Floats
from fedmon.report.plots.curve import Curve, coarser
from fedmon.report.plots.figure import Quantity
from fedmon.report.plots.layout import Line, Panel
from fedmon.report.plots.literal import literal
from fedmon.report.plots.scale import Scale, number, scale_of
from fedmon.report.plots.time_axis import TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_IN, _HEAD_IN = 0.142, 0.13
_SAMPLE_IN, _NAME_IN, _MEAN_IN, _MAX_IN = 0.2, 0.25, 1.7, 2.12
_LONGEST = 20
_PT, _HEAD_PT = 7.0, 6.0

WIDTH_IN = 7.1
"""18 cm: the width of the text of an A4 page, so that fonts have their size there."""
TITLE_PT, TEXT_PT, SMALL_PT = 9.5, 7.5, 7.0
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
"""Okabe and Ito's palette without its yellow, which is hard to see on white. Source: Color Universal Design, 2008."""
DASHES: tuple[Any, ...] = ("-", "-", "-", (0, (5, 1.5)), "-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)))
REST, LIMIT = "#777777", "#444444"
MOST_POINTS, MOST_POINTS_OF_MANY = 400, 240
"""Points of a line that is alone in its panel, and of one that is not: more hide one another."""
MOST_MARKS, MOST_MARK_LABELS = 200, 8
_LEFT_IN, _RIGHT_IN, _LEGEND_IN = 0.68, 0.12, 2.25
_TOP_IN, _BOTTOM_IN, _GAP_IN = 0.5, 0.46, 0.34
_LONE_IN, _PANEL_IN = 1.75, 1.2
_STEPS = [1, 2, 2.5, 5, 10]


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn: texts as they are to be read, panels, the axis, and marks as Unix time and text.

    Where ``axis`` is None the lines are over their own x values, which ``x_label`` names.
    """

    title: str
    notes: str
    panels: tuple[Panel, ...]
    shares_scale: bool
    quantity: Quantity
    noun: str
    axis: TimeAxis | None
    x_label: str = ""
    marks: tuple[tuple[float, str], ...] = ()


def draw(drawing: Drawing) -> Figure:
    """Return the figure."""
    from matplotlib.figure import Figure

    panels = drawing.panels
    each_in = _LONE_IN if len(panels) == 1 else _PANEL_IN
    top_in = _TOP_IN if len(panels) == 1 or drawing.notes else _TOP_IN - 0.14
    height = top_in + _BOTTOM_IN + len(panels) * each_in + (len(panels) - 1) * _GAP_IN
    height += _GAP_IN / 2 if len(panels) > 1 else 0
    figure = Figure(figsize=(WIDTH_IN, height), dpi=100)
    has_legend = any(_needs_legend(panel) for panel in panels)
    width = WIDTH_IN - _LEFT_IN - (_LEGEND_IN if has_legend else _RIGHT_IN)
    shared = max((_largest(panel) for panel in panels), default=0.0)
    top = max((line.curve.peak for panel in panels for line in (*panel.lines, *panel.limits)), default=0.0)
    notes = drawing.notes
    if len(panels) == 1:
        notes = "; ".join(filter(None, [_summary(panels[0], drawing), notes]))
    figure.text(
        0.1 / WIDTH_IN, 1 - 0.07 / height, drawing.title, va="top", size=TITLE_PT, weight="bold", parse_math=False
    )
    figure.text(0.1 / WIDTH_IN, 1 - 0.26 / height, notes, va="top", size=SMALL_PT, color="#333333", parse_math=False)
    for position, panel in enumerate(panels):
        scale = scale_of(drawing.quantity, shared if drawing.shares_scale else _largest(panel), drawing.noun)
        bottom = _BOTTOM_IN + (len(panels) - 1 - position) * (each_in + _GAP_IN)
        axes = figure.add_axes((_LEFT_IN / WIDTH_IN, bottom / height, width / WIDTH_IN, each_in / height))
        _lines(axes, panel, scale, drawing)
        _value_axis(axes, panel, scale, drawing, top=top if drawing.shares_scale and len(panels) > 1 else None)
        _x_axis(axes, drawing, is_last=position == len(panels) - 1)
        _marks(axes, drawing, is_first=position == 0)
        if panel.title:
            _text(axes, 0, 1.03, literal(panel.title, 60), size=TEXT_PT, va="bottom", weight="bold")
            summary = _summary(panel, drawing)
            _text(axes, 1, 1.03, summary, size=SMALL_PT, va="bottom", ha="right", color="#333333")
        if _needs_legend(panel):
            draw_legend(figure, _entries(panel), scale, left_in=_LEFT_IN + width + 0.1, top_in=bottom + each_in)
    return figure


def most_points(panel: Panel) -> int:
    """Return of how many points a line of a panel is drawn at most."""
    return MOST_POINTS if len(panel.lines) == 1 else MOST_POINTS_OF_MANY


def style(position: int, *, is_rest: bool) -> tuple[str, Any]:
    """Return colour and dashes of the line at a position."""
    return (REST, (0, (2, 1.2))) if is_rest else (COLOURS[position % len(COLOURS)], DASHES[position % len(DASHES)])


def _entries(panel: Panel) -> list[tuple[str, Curve | None, str, Any]]:
    found: list[tuple[str, Curve | None, str, Any]] = []
    for position, line in enumerate(panel.lines):
        found.append((line.label, line.curve, *style(position, is_rest=line.is_rest)))
    found += [(line.label, line.curve, LIMIT, (0, (1, 1))) for line in panel.limits]
    return found


def _needs_legend(panel: Panel) -> bool:
    return len(panel.lines) + len(panel.limits) > 1


def _largest(panel: Panel) -> float:
    """Return the value that decides the unit: high, but no single outlier."""
    values = [np.percentile(np.abs(line.curve.mean), 98) for line in panel.lines if len(line.curve.mean)]
    return float(max(values, default=0.0)) or max((abs(line.curve.peak) for line in panel.lines), default=0.0)


def _summary(panel: Panel, drawing: Drawing) -> str:
    if not any(len(line.curve.t) for line in panel.lines):
        return ""
    of = f"{literal(panel.of)}: " if panel.of else ""
    of_one_name = [line for line in panel.lines if not panel.of or line.curve.name == panel.of]
    each = " each" if len(of_one_name) > 1 else ""
    average, peak = (
        scale_of(drawing.quantity, value, drawing.noun).text(value) for value in (panel.average, panel.peak)
    )
    return f"{of}mean {average}{each}, max {peak}"


def _lines(axes: Axes, panel: Panel, scale: Scale, drawing: Drawing) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

    origin = drawing.axis.origin if drawing.axis is not None else 0.0
    curves = [coarser(line.curve, most_points(panel)).scaled(scale.factor) for line in panel.lines]
    bands = sum(curve.low is not None for curve in curves)
    for position, (line, curve) in enumerate(zip(panel.lines, curves, strict=True)):
        colour, dashes = style(position, is_rest=line.is_rest)
        x = curve.t - origin
        if curve.low is not None and curve.high is not None and not line.is_rest:
            polygons = _polygons(x, curve.low, curve.high, curve.breaks)
            alpha = 0.25 if bands <= 2 else 0.15 if bands <= 4 else 0.1
            if polygons:
                axes.add_collection(
                    PolyCollection(polygons, facecolor=colour, alpha=alpha, linewidth=0, zorder=2), autolim=False
                )
        cuts = np.flatnonzero(curve.breaks) + 1
        axes.add_line(
            Line2D(
                np.insert(x, cuts, np.nan),
                np.insert(curve.mean, cuts, np.nan),
                color=colour,
                linestyle=dashes,
                linewidth=1.0,
                label=f"line {position}",
                zorder=3,
            )
        )
        if len(lonely := _lonely(curve)):
            axes.add_line(
                Line2D(x[lonely], curve.mean[lonely], color=colour, linestyle="", marker="o", markersize=2.4, zorder=3)
            )
    for line in panel.limits:
        curve = line.curve.scaled(scale.factor)
        axes.add_line(
            Line2D(curve.t - origin, curve.mean, color=LIMIT, linestyle=(0, (1, 1)), linewidth=1.0, zorder=2.5)
        )


def _polygons(x: Floats, low: Floats, high: Floats, breaks: NDArray[np.bool_]) -> list[Floats]:
    runs = [run for run in np.split(np.arange(len(x)), np.flatnonzero(breaks) + 1) if len(run) > 1]
    return [
        np.column_stack([np.concatenate([x[run], x[run][::-1]]), np.concatenate([low[run], high[run][::-1]])])
        for run in runs
    ]


def _lonely(curve: Curve) -> NDArray[np.int64]:
    """Return points that no line shows, or all of them where there are few."""
    if len(curve.t) <= 30:
        return np.arange(len(curve.t))
    cut = np.concatenate([[True], curve.breaks, [True]])
    return np.flatnonzero(cut[1:] & cut[:-1])


def _value_axis(axes: Axes, panel: Panel, scale: Scale, drawing: Drawing, *, top: float | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown: list[Line] = [*panel.lines, *panel.limits]
    curves = [line.curve for line in shown if len(line.curve.t)]
    low = min((float(np.min(_first(c.low, c.mean))) for c in curves), default=0.0) * scale.factor
    high = max((float(np.max(_first(c.high, c.mean))) for c in curves), default=0.0) * scale.factor
    if top is not None:
        high = max(high, top * scale.factor)
    if not math.isfinite(high - low):
        low, high = -1e300, 1e300
    is_from_zero = low >= 0 and drawing.quantity not in (Quantity.CELSIUS, Quantity.HERTZ, Quantity.NUMBER)
    margin = 0.06 * (high - (0.0 if is_from_zero else low)) or 0.1 * abs(high) or 1.0
    axes.set_ylim(0.0 if is_from_zero else low - margin, high + margin)
    if is_from_zero and _wants_log(panel, drawing.quantity):
        lowest = min(float(np.percentile(curve.mean[curve.mean > 0], 2)) for curve in curves)
        axes.set_yscale("symlog", linthresh=10.0 ** math.floor(math.log10(lowest * scale.factor)), linscale=0.4)
        axes.set_ylim(0.0, high * 1.6)
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3 if len(drawing.panels) > 1 else 5, steps=_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.tick_params(axis="y", labelsize=SMALL_PT, length=2.5, width=0.6, pad=2)
    if scale.unit:
        axes.set_ylabel(scale.unit, size=TEXT_PT, parse_math=False, labelpad=2)
    axes.grid(visible=True, axis="y", color="#e0e0e0", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)


def _first(values: Floats | None, otherwise: Floats) -> Floats:
    return otherwise if values is None else values


def _wants_log(panel: Panel, quantity: Quantity) -> bool:
    """Tell whether lines are so far apart that the lower ones would lie on the axis, and none keeps falling to 0."""
    shown = [line.curve for line in (*panel.lines, *panel.limits) if len(line.curve.t)]
    if quantity not in (Quantity.RATE, Quantity.BYTE_RATE, Quantity.COUNT, Quantity.NUMBER) or len(shown) < 2:
        return False
    if any(float(np.mean(curve.mean > 0)) < 0.95 for curve in shown):
        return False
    averages = [curve.average for curve in shown]
    return max(averages) > 100 * min(averages)


def _x_axis(axes: Axes, drawing: Drawing, *, is_last: bool) -> None:
    axes.tick_params(axis="x", labelsize=SMALL_PT, length=2.5, width=0.6, pad=2, labelbottom=is_last)
    axis = drawing.axis
    label = drawing.x_label
    if axis is not None:
        margin = max(axis.end - axis.start, 1e-3) * 0.01
        axes.set_xlim(axis.start - margin, axis.end + margin)
        # Ticks are what takes most of the time to draw.
        axes.set_xticks([at for at, _ in axis.ticks] if is_last else [])
        if is_last:
            axes.set_xticklabels([text for _, text in axis.ticks])
        label = axis.label
    else:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        values = [line.curve.t for panel in drawing.panels for line in panel.lines if len(line.curve.t)]
        low, high = (float(min(map(np.min, values))), float(max(map(np.max, values)))) if values else (0.0, 1.0)
        margin = 0.02 * (high - low) or 1.0
        axes.set_xlim(low - margin, high + margin)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    if is_last:
        axes.set_xlabel(label, size=TEXT_PT, labelpad=2, parse_math=False)


def _marks(axes: Axes, drawing: Drawing, *, is_first: bool) -> None:
    from matplotlib.collections import LineCollection

    axis = drawing.axis
    if axis is None or not drawing.marks:
        return
    at = [(t - axis.origin, text) for t, text in drawing.marks[:MOST_MARKS]]
    across = axes.get_xaxis_transform()
    axes.add_collection(
        LineCollection(
            [[(x, 0), (x, 1)] for x, _ in at], colors="#888888", linewidths=0.6, transform=across, zorder=1.5
        ),
        autolim=False,
    )
    if not is_first:
        return
    span = max(axis.end - axis.start, 1e-3)
    last, labelled = -math.inf, 0
    for x, text in at:
        if x - last < 0.03 * span or labelled == MOST_MARK_LABELS:
            continue
        last, labelled = x, labelled + 1
        side = "right" if x > axis.start + 0.97 * span else "left"
        shift = 0.004 * span * (-1 if side == "right" else 1)
        axes.text(
            x + shift, 0.98, literal(text, 26), transform=across, rotation=90, size=6, va="top", ha=side,
            color="#555555", parse_math=False, zorder=4,
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.4},
        )  # fmt: skip


def _text(axes: Axes, x: float, y: float, text: str, *, size: float, **fields: Any) -> None:
    axes.text(x, y, text, size=size, transform=axes.transAxes, parse_math=False, **fields)


def draw_legend(
    figure: Figure,
    entries: Sequence[tuple[str, Curve | None, str, Any]],
    scale: Scale,
    *,
    left_in: float,
    top_in: float,
) -> None:
    """Draw entries (name, curve, colour, dashes) below ``top_in``; matplotlib's own legend lays out several times."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()

    def write(x_in: float, y_in: float, text: str, **fields: Any) -> None:
        figure.text((left_in + x_in) / width, y_in / height, text, parse_math=False, **fields)

    for x_in, head in ((_MEAN_IN, "mean"), (_MAX_IN, "max")):
        write(x_in, top_in - 0.02, head, size=_HEAD_PT, ha="right", va="top", color="#666666")
    for row, (label, curve, colour, dashes) in enumerate(entries):
        y_in = top_in - _HEAD_IN - (row + 0.5) * _ROW_IN
        figure.add_artist(
            Line2D(
                [left_in / width, (left_in + _SAMPLE_IN) / width],
                [y_in / height] * 2,
                color=colour,
                linestyle=dashes,
                linewidth=1.5,
            )
        )
        write(_NAME_IN, y_in, literal(label, _LONGEST), size=_PT, va="center")
        if curve is not None and len(curve.t):
            for x_in, value in ((_MEAN_IN, curve.average), (_MAX_IN, curve.peak)):
                is_tiny = 0 < abs(value * scale.factor) < 0.01
                write(x_in, y_in, "≈ 0" if is_tiny else scale.number(value), size=_PT, va="center", ha="right")
