"""Boxes with lines between them, as PNG or SVG."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]

_LANE = 0.11
_STUB = 0.04
_TRIED = (0.5, 0.35, 0.65, 0.22, 0.78)

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


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """How large the boxes are, and how far apart from middle to middle."""

    column: float
    row: float
    width: float
    height: float


class _Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line passes a row: between boxes, or on a side past all of them; in columns."""

    middle: float
    x: float
    row: float
    side: int


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A line as cubic curves one after the other: a first point, then two control points and an end for each curve."""

    points: tuple[Point, ...]

    def channels(self) -> Iterator[tuple[Point, Point, Point, Point]]:
        """Return the curves between two rows, where there is room for labels."""
        for at in range(0, len(self.points) - 1, 3):
            curve = self.points[at : at + 4]
            if curve[0] != curve[1]:  # past boxes it goes straight
                yield curve[0], curve[1], curve[2], curve[3]


def routes(places: Mapping[int, Point], lines: Sequence[tuple[int, int]], grid: Grid) -> list[Route]:
    """Return a way for each line, given by the keys of its ends, which are two different ones.

    ``places`` are columns and rows; y of what is returned grows upward, as in a drawing.
    """
    rows: dict[float, list[float]] = {}
    for x, y in places.values():
        rows.setdefault(y, []).append(x)
    passed = _lanes([list(_passed(places, line, rows)) for line in lines], grid)
    ports = _ports(places, lines, passed, grid)
    return [
        Route(points=tuple(_curves(places, line, passed[at], (ports[at, True], ports[at, False]), grid)))
        for at, line in enumerate(lines)
    ]


def point_of(curve: tuple[Point, Point, Point, Point], t: float) -> Point:
    """Return a point of a cubic curve. Source: Wikipedia, "Bézier curve", on cubic ones."""
    a, b, c, d = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3
    p, q, r, s = curve
    return a * p[0] + b * q[0] + c * r[0] + d * s[0], a * p[1] + b * q[1] + c * r[1] + d * s[1]


class Labels:
    """Finds room for labels: each is put on its line where it covers no other, as far as there is such a place."""

    def __init__(self) -> None:
        self._taken: list[tuple[Point, float, float]] = []

    def place(self, route: Route, width: float, height: float) -> Point:
        """Return the middle of a label of this size, and keep others off it."""
        curves = list(route.channels())
        # What comes of a condition is at the head of its arrow: there, and in the middle, it is looked for first.
        order = [curves[-1], *curves[:-1]] if curves else []
        found = [point_of(curve, t) for curve in order for t in _TRIED]
        best = min(found, key=lambda at: self._covered(at, width, height), default=route.points[0])
        self._taken.append((best, width, height))
        return best

    def _covered(self, at: Point, width: float, height: float) -> float:
        total = 0.0
        for (x, y), other_width, other_height in self._taken:
            across = (width + other_width) / 2 - abs(x - at[0])
            down = (height + other_height) / 2 - abs(y - at[1])
            total += max(0.0, across) * max(0.0, down)
        return total


def _passed(
    places: Mapping[int, Point], line: tuple[int, int], rows: Mapping[float, Sequence[float]]
) -> Iterator[_Gap]:
    """Say through which gaps a line goes on its way: those nearest to the straight way."""
    (x1, y1), (x2, y2) = places[line[0]], places[line[1]]
    between = sorted((y for y in rows if min(y1, y2) < y < max(y1, y2)), reverse=y2 < y1)
    x = x1
    for left, y in zip(range(len(between), 0, -1), between, strict=True):
        straight = x + (x2 - x) / (left + 1)
        taken = sorted(rows[y])
        gaps = [taken[0] - 0.5, *((one + two) / 2 for one, two in itertools.pairwise(taken)), taken[-1] + 0.5]
        x = min(gaps, key=lambda gap: abs(gap - straight))
        side = -1 if x == gaps[0] else 1 if x == gaps[-1] else 0
        gap = x
        x = min(x, straight) if side < 0 else max(x, straight) if side > 0 else x
        yield _Gap(middle=gap, x=x, row=y, side=side)


def _lanes(passed: Sequence[Sequence[_Gap]], grid: Grid) -> list[list[Point]]:
    """Put those that go through one gap beside each other, in the order in which they come from left to right."""
    found = [[(gap.x * grid.column, gap.row) for gap in gaps] for gaps in passed]
    through: dict[tuple[float, float], list[tuple[int, int]]] = {}
    for at, gaps in enumerate(passed):
        for rank, gap in enumerate(gaps):
            through.setdefault((gap.middle, gap.row), []).append((at, rank))
    for those in through.values():
        side = passed[those[0][0]][those[0][1]].side
        if side:
            _beside(found, those, side)
            continue
        those.sort(key=lambda one: (_from(passed[one[0]], one[1]), one[0]))
        step = min(_LANE, (grid.column - grid.width - 0.12) / len(those))
        for number, (at, rank) in enumerate(those):
            x, y = found[at][rank]
            found[at][rank] = (x + (number - (len(those) - 1) / 2) * step, y)
    return found


def _beside(found: list[list[Point]], those: list[tuple[int, int]], side: int) -> None:
    """Put lines past the end of a row, where there is as much room as they need."""
    those.sort(key=lambda one: (side * found[one[0]][one[1]][0], one[0]))
    least: float | None = None
    for at, rank in those:
        x, y = found[at][rank]
        away = side * x if least is None else max(side * x, least)
        found[at][rank] = (side * away, y)
        least = away + _LANE


def _from(gaps: Sequence[_Gap], rank: int) -> float:
    return gaps[max(0, rank - 1)].x


def _ports(
    places: Mapping[int, Point], lines: Sequence[tuple[int, int]], passed: Sequence[Sequence[Point]], grid: Grid
) -> dict[tuple[int, bool], Point]:
    """Say where lines leave boxes and come to them, in the order of where they go, so that they do not cross there."""
    sides: dict[tuple[int, bool], list[tuple[float, int, bool]]] = {}
    for at, (start, end) in enumerate(lines):
        is_down = places[end][1] >= places[start][1]
        first = passed[at][0][0] if passed[at] else places[end][0] * grid.column
        last = passed[at][-1][0] if passed[at] else places[start][0] * grid.column
        sides.setdefault((start, is_down), []).append((first, at, True))
        # In one row it comes from below, too: it goes round.
        from_below = not is_down or places[end][1] == places[start][1]
        sides.setdefault((end, from_below), []).append((last, at, False))
    ports = {}
    for (key, is_below), those in sides.items():
        x, y = places[key][0] * grid.column, -places[key][1] * grid.row
        step = min(0.3, (grid.width - 0.2) / len(those))
        for number, (_, at, is_start) in enumerate(sorted(those)):
            away = (number - (len(those) - 1) / 2) * step
            ports[at, is_start] = (x + away, y + (grid.height / 2 + _STUB) * (-1 if is_below else 1))
    return ports


def _curves(
    places: Mapping[int, Point],
    line: tuple[int, int],
    passed: Iterable[Point],
    ends: tuple[Point, Point],
    grid: Grid,
) -> Iterator[Point]:
    (x, y), last = ends
    yield x, y
    if places[line[0]][1] == places[line[1]][1]:
        below = y - (grid.row - grid.height) * 0.55
        yield from ((x, below), (last[0], below), last)
        return
    down = -1.0 if places[line[1]][1] > places[line[0]][1] else 1.0
    half = grid.height / 2 + _STUB
    for gap, row in passed:
        into, out = -row * grid.row - down * half, -row * grid.row + down * half
        yield from _swing((x, y), (gap, into))
        yield from ((gap, into), (gap, out), (gap, out))
        x, y = gap, out
    yield from _swing((x, y), last)


def _swing(start: Point, end: Point) -> tuple[Point, Point, Point]:
    """Return the rest of a curve that leaves upright and arrives upright."""
    bend = (end[1] - start[1]) * 0.5
    return (start[0], start[1] + bend), (end[0], end[1] - bend), end
