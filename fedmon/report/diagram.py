"""Drawings of a run: boxes with lines between them that lead downward, and bars over time."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.text import shorten
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]
_COLUMN, _ROW, _WIDTH, _HEIGHT, _LANE = 2.4, 1.75, 1.75, 0.75, 0.3
"""Distances between the middles of boxes, the size of a box, and the distance of lines that pass it, in inches."""
_MIN_ROW, _SWEEPS = 6, 12
_LETTERS, _LINE = 24, 0.19
"""Letters in a line of a label, and the height of a line in a box, in inches."""
_NARROWEST, _LEGEND_COLUMN, _MARGIN = 4.5, 1.15, 0.3
_DPI, _MAX_PIXELS = 130, 20_000
_LABELS_AT = (0.5, 0.3, 0.7)


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A box; without a fill it is a note on lines, in the colour of its border."""

    lines: tuple[str, ...]
    fill: str
    border: str
    is_thick: bool = False


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge between two boxes, by their keys; the legend explains each ``kind``."""

    start: int
    end: int
    kind: str
    colour: str
    label: str = ""
    is_dashed: bool = False
    has_head: bool = True


_Stop = tuple[int, int, str]
"""A row and its content: a box by its key, or the edges of one colour from that box, which pass the row."""


def laid_out(keys: Sequence[int], edges: Sequence[Edge]) -> tuple[dict[int, Point], list[tuple[Point, ...]]]:
    """Return the middle of each box, and the corners of each edge, in inches, with y upward.

    An edge from a box to itself has none. Raises MissingExtraError without networkx.
    """
    row_of = _wrapped(_generations(keys, edges))
    stops = [list(_stops(edge, row_of)) for edge in edges]
    rows: dict[int, list[_Stop]] = defaultdict(list)
    for stop in dict.fromkeys(chain(((row_of[key], key, "") for key in keys), *stops)):
        rows[stop[0]].append(stop)
    xs = _columns(rows, stops)
    places = {key: (xs[row, key, ""], -_ROW * row) for key, row in row_of.items()}
    pairs = [frozenset((edge.start, edge.end)) for edge in edges]
    parallel, seen = Counter(pairs), Counter[frozenset[int]]()
    ways = []
    for pair, each in zip(pairs, stops, strict=True):
        aside = (seen[pair] - (parallel[pair] - 1) / 2) * _LANE / 2
        seen[pair] += 1
        ways.append(tuple(_way(each, xs, aside)))
    return places, ways


def _generations(keys: Sequence[int], edges: Sequence[Edge]) -> dict[int, int]:
    """Return the row of each box: below all boxes that lead to it; the boxes of a circle take separate rows."""
    with report_extra("a drawing"):
        import networkx as nx
    graph = nx.DiGraph()
    graph.add_nodes_from(keys)
    graph.add_edges_from((edge.start, edge.end) for edge in edges if edge.start != edge.end)
    parts = nx.condensation(graph)
    row_of: dict[int, int] = {}
    below: dict[int, int] = {}
    for part in nx.topological_sort(parts):
        first = max((below[before] for before in parts.predecessors(part)), default=0)
        members = sorted(parts.nodes[part]["members"])
        row_of.update((key, first + offset) for offset, key in enumerate(members))
        below[part] = first + len(members)
    return row_of


def _wrapped(row_of: Mapping[int, int]) -> dict[int, int]:
    """Break rows that are much wider than the drawing is high."""
    rows: dict[int, list[int]] = {}
    for key in sorted(row_of):
        rows.setdefault(row_of[key], []).append(key)
    widest = max(_MIN_ROW, math.ceil(math.sqrt(len(row_of) * 1.5)))
    pieces: list[list[int]] = []
    for _, members in sorted(rows.items()):
        each = math.ceil(len(members) / math.ceil(len(members) / widest))
        pieces += [members[start : start + each] for start in range(0, len(members), each)]
    return {key: row for row, piece in enumerate(pieces) for key in piece}


def _stops(edge: Edge, row_of: Mapping[int, int]) -> Iterator[_Stop]:
    first, last = row_of[edge.start], row_of[edge.end]
    step = 1 if last > first else -1
    yield first, edge.start, ""
    for row in range(first + step, last, step) if first != last else ():
        yield row, edge.start, edge.colour
    yield last, edge.end, ""


def _columns(rows: Mapping[int, list[_Stop]], stops: Sequence[Sequence[_Stop]]) -> dict[_Stop, float]:
    """Order each row by the places of the neighbours of each stop, and centre it."""
    near: dict[_Stop, list[_Stop]] = defaultdict(list)
    for each in stops:
        for one, other in pairwise(each):
            near[one].append(other)
            near[other].append(one)
    xs: dict[_Stop, float] = {}
    for sweep in range(_SWEEPS):
        for _, row in sorted(rows.items(), reverse=bool(sweep % 2)):
            wanted = {stop: statistics.fmean([xs.get(other, 0.0) for other in near[stop]] or [0.0]) for stop in row}
            row.sort(key=wanted.__getitem__)
            widths = [_LANE if colour else _COLUMN for _, _, colour in row]
            left = -sum(widths) / 2
            for stop, width in zip(row, widths, strict=True):
                xs[stop] = left + width / 2
                left += width
    return xs


def _way(stops: Sequence[_Stop], xs: Mapping[_Stop, float], aside: float) -> Iterator[Point]:
    """Return the corners of an edge, which passes rows straight, ``aside`` of others between the same boxes."""
    if stops[0] == stops[-1]:
        return
    half = _HEIGHT / 2 * (1 if stops[-1][0] > stops[0][0] else -1)
    for number, stop in enumerate(stops):
        x, y = xs[stop] + aside, -_ROW * stop[0]
        if number:
            yield x, y + half
        if number < len(stops) - 1:
            yield x, y - half


# --- drawing --------------------------------------------------------------------------------------------------------


def drawn(
    boxes: Mapping[int, Box], edges: Sequence[Edge], *, title: str, legend: Mapping[str, str], kind: str
) -> bytes:
    """Return a drawing as "png" or "svg"; ``legend`` names the colours of boxes. Raises MissingExtraError."""
    places, ways = laid_out(list(boxes), edges)
    handles = len(legend) + len({edge.kind for edge in edges})
    xs = [x + side for x, _ in chain(places.values(), *ways) for side in (-_WIDTH / 2, _WIDTH / 2)] or [0.0]
    low, middle = min((y for _, y in places.values()), default=0.0) - _ROW / 2, (min(xs) + max(xs)) / 2
    width = max(max(xs) - min(xs) + 1.0 + 2 * _MARGIN, _NARROWEST)
    columns = max(1, int(width / _LEGEND_COLUMN))
    low -= 0.15 + 0.17 * math.ceil(handles / columns)
    high = _ROW / 2 + _MARGIN

    def draw(figure: Any) -> None:
        axes: Any = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(middle - width / 2, middle + width / 2)
        axes.set_ylim(low, high)
        axes.axis("off")
        for key, box in boxes.items():
            _box(axes, places[key], box)
        into: Counter[int] = Counter()
        for edge, way in zip(edges, ways, strict=True):
            _edge(axes, edge, way, places[edge.start], _LABELS_AT[into[edge.end] % len(_LABELS_AT)])
            into[edge.end] += bool(edge.label)
        _text(axes, (middle, high - 0.2), title, fontsize=12)
        if handles:
            look = {"fontsize": 7.5, "frameon": False, "borderpad": 0.3}
            axes.legend(handles=_handles(edges, legend), loc="lower center", ncols=min(handles, columns), **look)

    dpi = min(_DPI, _MAX_PIXELS / max(width, high - low))
    return _written(draw, kind, figsize=(width, high - low), dpi=dpi)


def _text(axes: Axes, at: Point, text: str, **look: Any) -> None:
    axes.text(*at, text, ha="center", va="center", parse_math=False, **look)  # a dollar would begin a formula


def _in_lines(text: str) -> str:
    """Break a label, but before no number or unit."""
    bound = re.sub(r" (?=\S{1,3}(?: |$))", "\N{NO-BREAK SPACE}", text)
    return "\n".join(textwrap.wrap(bound, _LETTERS)).replace("\N{NO-BREAK SPACE}", " ")


def _box(axes: Axes, at: Point, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner, style = (at[0] - _WIDTH / 2, at[1] - _HEIGHT / 2), f"round,pad=0,rounding_size={0.09 if box.fill else 0.3}"
    look: dict[str, Any] = {"facecolor": box.fill or "#ffffff", "edgecolor": box.border, "zorder": 3}
    axes.add_patch(
        FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle=style, linewidth=2.2 if box.is_thick else 1.0, **look)
    )
    if not box.fill:
        _text(axes, at, _in_lines(" ".join(box.lines)), fontsize=7.5, color=box.border, zorder=4)
        return
    for index, text in enumerate(box.lines):
        y = at[1] + _LINE * ((len(box.lines) - 1) / 2 - index)
        _text(axes, (at[0], y), shorten(text, _LETTERS), fontsize=8.5, weight="normal" if index else "bold", zorder=4)


def _edge(axes: Axes, edge: Edge, way: Sequence[Point], at: Point, label_at: float) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    look: dict[str, Any] = {"arrowstyle": "-|>" if edge.has_head else "-", "mutation_scale": 12, "color": edge.colour}
    look |= {"linestyle": "--" if edge.is_dashed else "-", "linewidth": 1.1, "zorder": 2}
    if way:
        axes.add_patch(FancyArrowPatch(path=Path(list(way)), **look))
        (x, y), (end_x, end_y) = way[-2:]
        middle = x + (end_x - x) * label_at, y + (end_y - y) * label_at
    else:
        x, y = at[0] + _WIDTH / 2, at[1]
        axes.add_patch(FancyArrowPatch((x, y + 0.12), (x, y - 0.12), connectionstyle="arc3,rad=-1.6", **look))
        middle = x + 0.3, y - 0.45
    around = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    if edge.label:
        _text(axes, middle, _in_lines(edge.label), fontsize=7.5, color=edge.colour, bbox=around, zorder=5)


def _handles(edges: Sequence[Edge], legend: Mapping[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Any] = [Patch(facecolor=colour, edgecolor="#444444", label=name) for name, colour in legend.items()]
    for kind, edge in sorted({edge.kind: edge for edge in edges}.items()):
        style: Any = "--" if edge.is_dashed else "-"
        found.append(Line2D([], [], color=edge.colour, label=kind, linestyle=style, linewidth=1.1))
    return found


# --- over time --------------------------------------------------------------------------------------------------------

_BARS_IN, _LONGEST_NAME = 0.24, 30


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A state with its colour, from when to when, in seconds since the beginning."""

    start_s: float
    end_s: float
    state: str
    colour: str


def timeline_png(rows: Sequence[tuple[str, Sequence[Bar]]]) -> bytes:
    """Return named rows of bars, from above to below, as PNG. Raises MissingExtraError."""
    names = [shorten(name, _LONGEST_NAME) for name, _ in rows]
    with report_extra("a drawing"):
        from fedmon.report.charts.catalogue import Quantity, scale_of
    scale = scale_of(Quantity.SECONDS, max((bar.end_s for _, bars in rows for bar in bars), default=1.0))

    def draw(figure: Any) -> None:
        from matplotlib.patches import Patch

        axes = figure.add_subplot()
        for row, (_, bars) in enumerate(rows):
            spans = [(bar.start_s * scale.factor, (bar.end_s - bar.start_s) * scale.factor) for bar in bars]
            axes.broken_barh(spans, (row - 0.36, 0.72), facecolors=[bar.colour for bar in bars], edgecolor="#555555")
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.grid(axis="x", color="#dddddd")
        axes.set_axisbelow(True)
        axes.set_xlabel(f"time since the run began ({scale.unit})")
        colours = {bar.state: bar.colour for _, bars in rows for bar in bars}
        handles = [Patch(facecolor=colour, edgecolor="#555555", label=state) for state, colour in colours.items()]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)

    return _written(draw, figsize=(9.0, len(rows) * _BARS_IN + 1.0), layout="constrained")


def _written(draw: Callable[[Any], None], kind: str = "png", dpi: float = _DPI, **size: Any) -> bytes:
    with report_extra("a drawing"):
        from matplotlib.figure import Figure

        from fedmon.report.charts.draw import saved

    def made() -> Figure:
        figure = Figure(**size)
        draw(figure)
        return figure

    return saved(made, kind, dpi=dpi)
