"""Boxes with lines between them, as PNG or SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("png", "svg")
_COLUMN, _ROW = 2.4, 1.75
_WIDTH, _LINE = 1.75, 0.19
_DPI, _MAX_PIXELS = 130, 20_000


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A box at a column and a row, counted to the right and down."""

    x: float
    y: float
    lines: tuple[str, ...]
    fill: str
    border: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """An arrow between two boxes, by their keys; a connection is dashed and has no head."""

    start: int
    end: int
    label: str
    colour: str
    is_connection: bool


class Diagram(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn; ``legend`` says what a colour means."""

    title: str
    boxes: Mapping[int, Box]
    lines: tuple[Line, ...]
    legend: Mapping[str, str] = {}


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

    columns = [box.x for box in diagram.boxes.values()] or [0.0]
    rows = [box.y for box in diagram.boxes.values()] or [0.0]
    loops = any(line.start == line.end for line in diagram.lines)
    width = (max(columns) - min(columns) + 1) * _COLUMN + (1.8 if loops else 0.3)
    height = (max(rows) - min(rows) + 1) * _ROW + 0.9
    figure = Figure(figsize=(max(width, 4.5), height), dpi=min(_DPI, _MAX_PIXELS / max(width, height)))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    middle = (min(columns) + max(columns)) / 2 * _COLUMN
    axes.set_xlim(middle - max(width, 4.5) / 2, middle + max(width, 4.5) / 2)
    axes.set_ylim(-(max(rows) * _ROW) - _ROW / 2 - 0.4, -(min(rows) * _ROW) + _ROW / 2 + 0.5)
    axes.axis("off")
    shapes = {key: _box(axes, box) for key, box in diagram.boxes.items()}
    seen: dict[tuple[int, int], int] = {}
    places = _label_places(diagram)
    for index, line in enumerate(diagram.lines):
        pair = (line.start, line.end) if line.start < line.end else (line.end, line.start)
        seen[pair] = seen.get(pair, 0) + 1
        _line(axes, diagram, shapes, line, bend=seen[pair] - 1, at=places.get(index, 0.5))
    if diagram.title:
        axes.text(
            0.5, 0.985, diagram.title, transform=axes.transAxes, ha="center", va="top", fontsize=12, parse_math=False
        )
    _legend(axes, diagram.legend)
    into = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(into, format=kind, metadata=metadata)
    return into.getvalue()


def _box(axes: Axes, box: Box) -> Any:
    from matplotlib.patches import FancyBboxPatch

    height = _LINE * len(box.lines) + 0.12
    x, y = box.x * _COLUMN, -box.y * _ROW
    shape = FancyBboxPatch(
        (x - _WIDTH / 2, y - height / 2),
        _WIDTH,
        height,
        boxstyle="round,pad=0.03,rounding_size=0.09",
        facecolor=box.fill,
        edgecolor=box.border,
        linewidth=1.0 if box.border.startswith("#4") else 2.2,
        zorder=3,
    )
    axes.add_patch(shape)
    for index, text in enumerate(box.lines):
        below = y + height / 2 - 0.06 - _LINE * (index + 0.5)
        kept = text if len(text) <= 22 else f"{text[:21]}…"
        weight = "bold" if not index else "normal"
        # A dollar would begin a formula.
        axes.text(x, below, kept, ha="center", va="center", fontsize=8.5, weight=weight, zorder=4, parse_math=False)
    return shape


def _line(axes: Axes, diagram: Diagram, shapes: Mapping[int, Any], line: Line, *, bend: int, at: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    start, end = diagram.boxes[line.start], diagram.boxes[line.end]
    ends = [(box.x * _COLUMN, -box.y * _ROW) for box in (start, end)]
    if line.start == line.end:
        _loop(axes, ends[0], line)
        return
    # Several between the same two go round each other, one along a row or past one goes round the boxes between.
    curve = (0.0, 0.22, -0.22, 0.4, -0.4)[bend % 5] + (0.28 if abs(start.y - end.y) != 1 else 0.06)
    axes.add_patch(
        FancyArrowPatch(
            *ends,
            patchA=shapes[line.start],
            patchB=shapes[line.end],
            shrinkA=2,
            shrinkB=2,
            connectionstyle=f"arc3,rad={curve}",
            arrowstyle="-" if line.is_connection else "-|>",
            mutation_scale=12,
            color=line.colour,
            linestyle="--" if line.is_connection else "-",
            linewidth=1.1,
            zorder=2,
        )
    )
    if line.label:
        (x1, y1), (x2, y2) = ends
        # A point of a quadratic curve, whose control point lies beside the middle of the line.
        aside = 2 * at * (1 - at) * curve
        x, y = x1 + at * (x2 - x1) + aside * (y2 - y1), y1 + at * (y2 - y1) - aside * (x2 - x1)
        _text(axes, x, y, line)


def _label_places(diagram: Diagram) -> dict[int, float]:
    """Return how far along its line each label stands: those side by side not all at one height."""
    by_rows: dict[tuple[float, float], list[tuple[float, int]]] = {}
    for index, line in enumerate(diagram.lines):
        if line.label:
            start, end = diagram.boxes[line.start], diagram.boxes[line.end]
            by_rows.setdefault((start.y, end.y), []).append((start.x + end.x, index))
    places = {}
    for (top, bottom), labels in by_rows.items():
        gaps = int(abs(top - bottom))
        for rank, (_, index) in enumerate(sorted(labels)):
            # Between two rows, for in the middle of a line over several of them there may be a box.
            places[index] = (gaps // 2 + 0.5) / gaps if gaps > 1 else (0.5, 0.34, 0.66)[rank % 3]
    return places


def _loop(axes: Axes, at: tuple[float, float], line: Line) -> None:
    from matplotlib.patches import FancyArrowPatch

    x, y = at[0] + _WIDTH / 2, at[1]
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12, "color": line.colour, "zorder": 2}
    axes.add_patch(FancyArrowPatch((x, y + 0.12), (x, y - 0.12), connectionstyle="arc3,rad=-1.6", **look))
    _text(axes, x + 0.1, y - 0.42, line)


def _text(axes: Axes, x: float, y: float, line: Line) -> None:
    around = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.text(
        x, y, line.label, ha="center", va="center", fontsize=7.5, color=line.colour, bbox=around, zorder=5,
        parse_math=False,
    )  # fmt: skip


def _legend(axes: Axes, legend: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    if legend:
        handles = [Patch(facecolor=colour, edgecolor="#444444", label=name) for name, colour in legend.items()]
        axes.legend(
            handles=handles, loc="lower center", ncols=min(len(handles), 5), fontsize=7.5, frameon=False, borderpad=0
        )
