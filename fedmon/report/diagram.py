"""Boxes with lines between them, as PNG or SVG."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.report.diagram_routes import Grid, Labels, Point, Route, routes
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("png", "svg")
_COLUMN, _ROW = 2.4, 1.75
_WIDTH, _LINE, _PAD = 1.75, 0.19, 0.03
_LABEL, _LETTER, _LABEL_LINE = 24, 0.062, 0.125
"""How many letters a line of a label has, and how large each is."""
_NARROWEST, _LEGEND_COLUMN = 4.5, 1.15
_DPI, _MAX_PIXELS = 130, 20_000


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A box at a column and a row, counted to the right and down; without a fill it is a note on lines."""

    x: float
    y: float
    lines: tuple[str, ...]
    fill: str
    border: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line between two boxes, by their keys; a connection is dashed."""

    start: int
    end: int
    label: str
    colour: str
    is_connection: bool
    has_head: bool


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn; ``legend`` says what a colour of a box means, ``line_legend`` what a line like that one is."""

    title: str
    boxes: Mapping[int, Box]
    lines: tuple[Line, ...]
    legend: Mapping[str, str] = {}
    line_legend: Mapping[str, Line] = {}


def drawn(diagram: Diagram, kind: str) -> bytes:
    """Return a diagram as one of KINDS. Raises InvalidInputError for another one, and MissingExtraError."""
    if kind not in KINDS:
        raise InvalidInputError(f"no diagrams of the kind {kind!r}; one of: {', '.join(KINDS)}")
    with report_extra("a diagram"):
        from fedmon.report.plots.library import plain_settings

        with plain_settings(svg__fonttype="none", svg__hashsalt="diagram"):
            return _drawn(diagram, kind)


def _drawn(diagram: Diagram, kind: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grid = _grid(diagram)
    going = [line for line in diagram.lines if line.start != line.end]
    places = {key: (box.x, box.y) for key, box in diagram.boxes.items()}
    ways = routes(places, [(line.start, line.end) for line in going], grid)
    written = _written(going, ways)
    left, right = _extent(diagram, ways, written)
    rows = [box.y for box in diagram.boxes.values()] or [0.0]
    width = max(right - left, _NARROWEST)
    handles = _handles(diagram)
    each = max(1, int(width / _LEGEND_COLUMN))
    below = 0.15 + 0.17 * math.ceil(len(handles) / each)
    height = (max(rows) - min(rows) + 1) * _ROW + 0.3 + below
    figure = Figure(figsize=(width, height), dpi=min(_DPI, _MAX_PIXELS / max(width, height)))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    middle = (left + right) / 2
    axes.set_xlim(middle - width / 2, middle + width / 2)
    axes.set_ylim(-(max(rows) * _ROW) - _ROW / 2 - below, -(min(rows) * _ROW) + _ROW / 2 + 0.3)
    axes.axis("off")
    for box in diagram.boxes.values():
        _box(axes, box, grid.height - 2 * _PAD)
    for line, way in zip(going, ways, strict=True):
        _line(axes, line, way)
    for at, text, colour in written:
        _text(axes, *at, text, colour)
    for line in diagram.lines:
        if line.start == line.end:
            box = diagram.boxes[line.start]
            _loop(axes, (box.x * _COLUMN, -box.y * _ROW), line)
    if diagram.title:
        axes.text(
            0.5, 0.985, diagram.title, transform=axes.transAxes, ha="center", va="top", fontsize=12, parse_math=False
        )
    if handles:
        axes.legend(
            handles=handles,
            loc="lower center",
            ncols=min(len(handles), each),
            fontsize=7.5,
            frameon=False,
            borderpad=0.3,
        )
    into = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(into, format=kind, metadata=metadata)
    return into.getvalue()


def _grid(diagram: Diagram) -> Grid:
    tallest = max((len(box.lines) for box in diagram.boxes.values()), default=0)
    return Grid(column=_COLUMN, row=_ROW, width=_WIDTH, height=_LINE * tallest + 0.12 + 2 * _PAD)


def _written(lines: Sequence[Line], ways: Sequence[Route]) -> list[tuple[Point, str, str]]:
    """Return where each label stands, its text and its colour."""
    labels = Labels()
    found = []
    for line, way in zip(lines, ways, strict=True):
        if line.label:
            words = textwrap.wrap(line.label, _LABEL)
            size = _width(words) + 0.08, len(words) * _LABEL_LINE + 0.04
            found.append((labels.place(way, *size), "\n".join(words), line.colour))
    return found


def _width(words: Sequence[str]) -> float:
    return max(map(len, words), default=0) * _LETTER


def _extent(diagram: Diagram, ways: Sequence[Route], written: Sequence[tuple[Point, str, str]]) -> tuple[float, float]:
    """Return how far to the left and to the right something is drawn."""
    xs = [box.x * _COLUMN + side for box in diagram.boxes.values() for side in (-_WIDTH / 2, _WIDTH / 2)] or [0.0]
    xs += [
        diagram.boxes[line.start].x * _COLUMN + _WIDTH / 2 + 0.1 + max(0.6, _width([line.label]) / 2)
        for line in diagram.lines
        if line.start == line.end
    ]
    xs += [x for way in ways for x, _ in way.points]
    xs += [x + side * _width(text.split("\n")) / 2 for (x, _), text, _ in written for side in (-1, 1)]
    return min(xs) - 0.3, max(xs) + 0.3


def _box(axes: Axes, box: Box, height: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = box.x * _COLUMN, -box.y * _ROW
    is_note, is_plain = not box.fill, box.border.startswith("#4")
    axes.add_patch(
        FancyBboxPatch(
            (x - _WIDTH / 2, y - height / 2),
            _WIDTH,
            height,
            boxstyle=f"round,pad={_PAD},rounding_size={0.3 if is_note else 0.09}",
            facecolor=box.fill or "#ffffff",
            edgecolor=box.border,
            linewidth=1.0 if is_plain or is_note else 2.2,
            zorder=3,
        )
    )
    lines = textwrap.wrap(" ".join(box.lines), _LABEL) if is_note else box.lines
    each = _LABEL_LINE if is_note else _LINE
    for index, text in enumerate(lines):
        kept = text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"
        axes.text(
            x,
            y + each * ((len(lines) - 1) / 2 - index),
            kept,
            ha="center",
            va="center",
            fontsize=7.5 if is_note else 8.5,
            weight="normal" if index or is_note else "bold",
            color=box.border if is_note else "black",
            zorder=4,
            parse_math=False,  # a dollar would begin a formula
        )


def _line(axes: Axes, line: Line, route: Route) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    codes = [Path.MOVETO, *[Path.CURVE4] * (len(route.points) - 1)]
    axes.add_patch(
        FancyArrowPatch(
            path=Path(route.points, codes),
            arrowstyle="-|>" if line.has_head else "-",
            mutation_scale=12,
            color=line.colour,
            linestyle="--" if line.is_connection else "-",
            linewidth=1.1,
            zorder=2,
        )
    )


def _loop(axes: Axes, at: tuple[float, float], line: Line) -> None:
    from matplotlib.patches import FancyArrowPatch

    x, y = at[0] + _WIDTH / 2, at[1]
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12, "color": line.colour, "zorder": 2}
    axes.add_patch(FancyArrowPatch((x, y + 0.12), (x, y - 0.12), connectionstyle="arc3,rad=-1.6", **look))
    _text(axes, x + 0.1, y - 0.42, line.label, line.colour)


def _text(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    around = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=colour, bbox=around, zorder=5, parse_math=False)


def _handles(diagram: Diagram) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    boxes = [Patch(facecolor=colour, edgecolor="#444444", label=name) for name, colour in diagram.legend.items()]
    return boxes + [
        Line2D([], [], color=one.colour, linestyle="--" if one.is_connection else "-", linewidth=1.1, label=name)
        for name, one in diagram.line_legend.items()
    ]
