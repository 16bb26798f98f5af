"""Charts as matplotlib draws them: its objects only, nothing global, so that any thread may draw its own."""

from __future__ import annotations

import datetime
import io
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmon.common.log import escape_control
from fedmon.common.text import shorten
from fedmon.report.amounts import significant
from fedmon.report.charts.catalogue import FLOATING
from fedmon.report.charts.chart import Chart, Charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
"""Okabe and Ito's palette without its yellow, which is hard to see on white. Source: Color Universal Design, 2008."""
KINDS = ("png", "svg", "pdf")
DPI = 130
SIZE_IN = (7.1, 2.6)
"""18 cm: the width of the text of an A4 page, so that fonts have their size there."""
_SHORT_S = 300.0
"""Charts up to this length are shown in seconds since their begin."""
_LONGEST, _MOST_ROWS, _BESIDE_PT = 32, 3, 24.0
"""Most letters of a label, most rows of a legend, and the room beside a label for its sign and the distance."""
_SMALLEST_PT, _SMALL_PT, _TITLE_PT = 6.0, 7.0, 9.0
_SETTINGS = threading.RLock()
_NOT_OF_A_DRAWING = ("backend", "interactive", "toolbar", "webagg.", "tk.", "keymap.", "macosx.", "docstring.")


def saved(made: Callable[[], Figure], kind: str, *, dpi: float) -> bytes:
    """Return the figure that ``made`` returns as one of KINDS; safe from any thread of ours.

    It is drawn with matplotlib's default settings, not those of the user's file.
    """
    import matplotlib as mpl

    # A user's TeX, fonts or colours would change what we say in a drawing, or keep it from being made.
    plain: Mapping[Any, Any] = mpl.rcParamsDefault
    settings: Any = {name: value for name, value in plain.items() if not name.startswith(_NOT_OF_A_DRAWING)}
    into = io.BytesIO()
    with _SETTINGS, mpl.rc_context(settings | {"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn instead
        made().savefig(into, format=kind, dpi=dpi)
    return into.getvalue()


def drawn(chart: Chart, charts: Charts, kind: str, *, size_in: tuple[float, float] = SIZE_IN, dpi: int = DPI) -> bytes:
    """Return a chart as one of KINDS."""
    return saved(lambda: figure(chart, charts, size_in=size_in), kind, dpi=dpi)


def figure(chart: Chart, charts: Charts, *, size_in: tuple[float, float] = SIZE_IN) -> Figure:
    """Return the figure of a chart; all figures of one size have equal axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    made = Figure(figsize=size_in)
    width, height = size_in
    room_pt = (width - 0.2) * 72
    labels, columns = _legend(chart, room_pt)
    rows = -(-len(labels) // columns) if len(labels) > 1 else 0
    bottom, top = 0.42 + 0.16 * rows, 0.28
    axes: Any = made.add_axes((0.62 / width, bottom / height, 1 - 0.74 / width, 1 - (bottom + top) / height))
    scale = chart.scale
    origin = 0.0 if chart.is_over_steps else charts.span[0]
    x = chart.x - origin
    _lines(axes, chart, x, scale.factor, labels)
    for label, (_, value) in zip(labels[len(chart.lines) :], chart.limits, strict=True):
        axes.axhline(value * scale.factor, color="#444444", linestyle=(0, (1, 1)), linewidth=1.0, label=label)
    _value_axis(axes, chart, scale.factor)
    if chart.is_over_steps:
        margin = 0.01 * (x[-1] - x[0]) or 0.5
        axes.set_xlim(x[0] - margin, x[-1] + margin)
        axes.xaxis.set_major_locator(MaxNLocator(integer=bool(np.all(x % 1 == 0)), min_n_ticks=1))
        axes.set_xlabel("round or step", size=_SMALL_PT, labelpad=2)
    else:
        _time_axis(axes, charts)
        for since, until, _ in charts.gaps:
            axes.axvspan(since - origin, until - origin, facecolor="none", edgecolor="#bbbbbb", hatch="////",
                         linewidth=0)  # fmt: skip
    unit = f" ({scale.unit})" if scale.unit else ""
    title, letters_pt = escape_control(chart.title), room_pt / 0.7
    # A long title gets smaller letters before it is cut.
    size = min(_TITLE_PT - (width < SIZE_IN[0] / 1.5), max(_SMALLEST_PT, letters_pt / len(title + unit)))
    title = shorten(title, round(letters_pt / size) - len(unit))
    made.text(0.1 / width, 1 - 0.06 / height, f"{title}{unit}", size=size, va="top", weight="bold", parse_math=False)
    axes.tick_params(labelsize=_SMALL_PT, length=2.5, width=0.6, pad=2)
    axes.grid(visible=True, axis="y", color="#e0e0e0", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if rows:
        legend = made.legend(*axes.get_legend_handles_labels(), loc="lower left", ncols=columns, frameon=False,
                             fontsize=_SMALL_PT, bbox_to_anchor=(0.1 / width, 0), handlelength=1.2, borderpad=0.1,
                             labelspacing=0.2, columnspacing=1.2)  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
    return made


def _legend(chart: Chart, room_pt: float) -> tuple[list[str], int]:
    """Return the labels of lines and limits, and the number of columns; longer labels than fit are cut."""
    names = (*(line.label for line in chart.lines), *(label for label, _ in chart.limits))
    # The legend leaves out a label with a leading underscore.
    labels = [shorten(escape_control(f" {name}" if name.startswith("_") else name), _LONGEST) for name in names]
    letter = 0.6 * _SMALL_PT
    for rows in range(1, _MOST_ROWS + 1):
        columns = -(-len(labels) // rows)
        widths = np.array_split([_BESIDE_PT + letter * len(label) for label in labels], columns)
        if sum(map(max, widths)) <= room_pt:
            return labels, columns
    return [shorten(label, int((room_pt / columns - _BESIDE_PT) / letter)) for label in labels], columns


def _lines(axes: Any, chart: Chart, x: Any, factor: float, labels: Sequence[str]) -> None:
    is_there = np.isfinite([line.values for line in chart.lines]).any(axis=0)
    below = np.zeros(len(x))
    for at, line in enumerate(chart.lines):
        colour, values = COLOURS[at % len(COLOURS)], line.values * factor
        few = not chart.is_stack and np.isfinite(values).sum() <= 30
        if chart.is_stack:
            values = np.where(is_there, below + np.nan_to_num(values), np.nan)
            axes.fill_between(x, below, values, where=is_there, facecolor=colour, alpha=0.75, linewidth=0,
                              label=labels[at])  # fmt: skip
            below = values
        else:
            axes.plot(x, values, color=colour, linewidth=1.0, label=labels[at], marker="o" if few else None,
                      markersize=2.4)  # fmt: skip
        if line.low is not None and line.high is not None and not chart.is_stack and len(chart.lines) <= 2:
            axes.fill_between(x, line.low * factor, line.high * factor, facecolor=colour, alpha=0.2, linewidth=0)
        there = np.concatenate([[False], np.isfinite(values), [False]])
        lonely = np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])  # points that no line shows
        if len(lonely) and not few:
            axes.plot(x[lonely], values[lonely], color=colour, linestyle="", marker="o", markersize=2.4)


def _value_axis(axes: Any, chart: Chart, factor: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if chart.is_stack:
        low, top = 0.0, float(np.max(np.sum([np.nan_to_num(line.values) for line in chart.lines], axis=0)))
    else:
        low = min(float(np.nanmin(line.values if line.low is None else line.low)) for line in chart.lines) * factor
        top = max(float(np.nanmax(line.values if line.high is None else line.high)) for line in chart.lines)
    high = max([top, *(value for _, value in chart.limits)]) * factor
    begin = 0.0 if low >= 0 and chart.quantity not in FLOATING else low
    margin = 0.06 * (high - begin) or 0.1 * abs(high) or 1.0
    axes.set_ylim(0.0 if begin == 0.0 and low >= 0 else begin - margin, high + margin)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 6)))


def _time_axis(axes: Any, charts: Charts) -> None:
    """Show seconds since the begin, or the time of day in UTC if it took longer."""
    import matplotlib.dates
    from matplotlib.ticker import FuncFormatter

    dates: Any = matplotlib.dates  # it has no types
    begin, end = charts.span
    length = end - begin
    axes.set_xlim(-0.01 * length, 1.01 * length)
    first = datetime.datetime.fromtimestamp(begin, datetime.UTC)
    if length <= _SHORT_S:
        axes.set_xlabel(f"seconds since {first:%Y-%m-%d %H:%M:%S} UTC", size=_SMALL_PT, labelpad=2)
        return
    locator = dates.AutoDateLocator(tz=datetime.UTC, minticks=4, maxticks=9)
    locator.intervald[dates.MINUTELY] = [1, 2, 5, 10, 15, 30]
    last = datetime.datetime.fromtimestamp(end, datetime.UTC)
    days = locator.tick_values(first, last)
    at = [day for day in days if dates.date2num(first) <= day <= dates.date2num(last)]
    words = dates.ConciseDateFormatter(locator, tz=datetime.UTC).format_ticks(at)
    axes.set_xticks([(day - dates.date2num(first)) * 86_400 for day in at], words)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda _value, place: words[place] if place is not None else ""))
    days_of = f"{first:%Y-%m-%d}" if first.date() == last.date() else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    axes.set_xlabel(f"{days_of}, UTC", size=_SMALL_PT, labelpad=2)
