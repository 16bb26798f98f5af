"""Drawings of a run: boxes with lines between them that lead downward, bars over time, and numbers over time."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("png", "svg")
Point = tuple[float, float]
_COLUMN, _ROW, _WIDTH, _HEIGHT = 2.4, 1.75, 1.75, 0.75
"""Distances between the middles of boxes, and the size of a box, in inches."""
_LANE, _PORT, _MIN_ROW, _SWEEPS = 0.22, 0.3, 6, 24
_LETTERS, _LETTER, _LETTER_LINE, _LINE = 24, 0.062, 0.125, 0.19
"""Letters in a line of a label, the size of one, and the height of a line in a box, in inches."""
_NARROWEST, _LEGEND_COLUMN, _MARGIN = 4.5, 1.15, 0.3
_DPI, _MAX_PIXELS = 130, 20_000
_TRIED = (0.5, 0.35, 0.65, 0.22, 0.78)


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A box; without a fill it is a note on lines, in the colour of its border."""

    lines: tuple[str, ...]
    fill: str
    border: str
    is_thick: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line between two boxes, by their keys; the legend explains each ``kind``."""

    start: int
    end: int
    kind: str
    colour: str
    label: str = ""
    is_dashed: bool = False
    has_head: bool = True


class _Lane(msgspec.Struct, frozen=True):
    """Where lines of one colour from one box pass a row on their way."""

    start: int
    colour: str
    row: int
    is_down: bool


_Key = int | _Lane


def laid_out(keys: Sequence[int], lines: Sequence[Line]) -> tuple[dict[int, Point], list[tuple[Point, ...]]]:
    """Return the middle of each box, and the way of each line, in inches, with y upward.

    A way is a first point, then three points for each cubic curve; a line from a box to itself has none. Raises
    MissingExtraError without networkx.
    """
    row_of = _wrapped(_generations(keys, lines))
    lanes = [list(_lanes(line, row_of)) for line in lines]
    rows: dict[int, list[_Key]] = {row: [] for row in sorted(set(row_of.values()))}
    for key in keys:
        rows[row_of[key]].append(key)
    for lane in dict.fromkeys(itertools.chain.from_iterable(lanes)):
        rows[lane.row].append(lane)
    stops: list[list[_Key]] = [
        [line.start, *between, line.end] if line.start != line.end else [line.start]
        for line, between in zip(lines, lanes, strict=True)
    ]
    xs = _columns(rows, stops)
    places = {key: (xs[key], -_ROW * row_of[key]) for key in keys}
    ports = _ports(lines, stops, xs, places)
    ways = [
        tuple(_way(ports[at, True], [(xs[lane], lane) for lane in between], ports[at, False]))
        if (at, True) in ports
        else ()
        for at, between in enumerate(lanes)
    ]
    return places, ways


def _generations(keys: Sequence[int], lines: Sequence[Line]) -> dict[int, int]:
    """Return the row of each box: below all boxes that lead to it; the boxes of a circle take rows of their own."""
    with report_extra("a drawing"):
        import networkx as nx
    graph = nx.DiGraph()
    graph.add_nodes_from(keys)
    graph.add_edges_from((line.start, line.end) for line in lines if line.start != line.end)
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
    wrapped: dict[int, int] = {}
    number = 0
    for _, members in sorted(rows.items()):
        each = math.ceil(len(members) / math.ceil(len(members) / widest))
        for start in range(0, len(members), each):
            wrapped.update(dict.fromkeys(members[start : start + each], number))
            number += 1
    return wrapped


def _lanes(line: Line, row_of: Mapping[int, int]) -> Iterator[_Lane]:
    first, last = row_of[line.start], row_of[line.end]
    step = 1 if last > first else -1
    for row in range(first + step, last, step) if first != last else ():
        yield _Lane(line.start, line.colour, row, step > 0)


def _columns(rows: Mapping[int, list[_Key]], stops: Sequence[Sequence[_Key]]) -> dict[_Key, float]:
    """Order each row, and place boxes and lanes near those that they are joined to, apart from each other."""
    near: dict[_Key, list[_Key]] = {key: [] for row in rows.values() for key in row}
    for each in stops:
        for one, other in itertools.pairwise(each):
            near[one].append(other)
            near[other].append(one)
    xs: dict[_Key, float] = {}
    for row in rows.values():
        _place(row, [0.0] * len(row), xs)
    for sweep in range(_SWEEPS):
        for row in list(rows.values())[:: 1 if sweep % 2 else -1]:
            # Its own place counts a little, so that nothing swings to and fro.
            wanted = {
                key: (xs[key] + 3 * sum(map(xs.__getitem__, near[key]))) / (1 + 3 * len(near[key])) for key in row
            }
            row.sort(key=wanted.__getitem__)
            _place(row, [wanted[key] for key in row], xs)
    return xs


def _place(row: Sequence[_Key], wanted: Sequence[float], xs: dict[_Key, float]) -> None:
    """Place a row in its order, as near to what is wanted as the widths allow."""
    halves = [_LANE / 2 if isinstance(key, _Lane) else _COLUMN / 2 for key in row]
    at: list[float] = []
    for index, want in enumerate(wanted):
        at.append(max(want, at[-1] + halves[index - 1] + halves[index]) if at else want)
    shift = sum(want - is_at for want, is_at in zip(wanted, at, strict=True)) / len(at)
    xs.update((key, is_at + shift) for key, is_at in zip(row, at, strict=True))


def _ports(
    lines: Sequence[Line], stops: Sequence[Sequence[_Key]], xs: Mapping[_Key, float], places: Mapping[int, Point]
) -> dict[tuple[int, bool], Point]:
    """Return where each line leaves its box (True) and reaches the other, sorted so that lines do not cross there."""
    sides: dict[tuple[int, bool], list[tuple[float, tuple[int, bool]]]] = {}
    for at, (line, each) in enumerate(zip(lines, stops, strict=True)):
        if len(each) > 1:
            is_down = places[line.end][1] < places[line.start][1]
            sides.setdefault((line.start, is_down), []).append((xs[each[1]], (at, True)))
            sides.setdefault((line.end, not is_down), []).append((xs[each[-2]], (at, False)))
    ports = {}
    for (box, is_below), ends in sides.items():
        (x, y), step = places[box], min(_PORT, (_WIDTH - 0.2) / len(ends))
        for number, (_, end) in enumerate(sorted(ends)):
            ports[end] = (x + (number - (len(ends) - 1) / 2) * step, y + _HEIGHT / 2 * (-1 if is_below else 1))
    return ports


def _way(start: Point, lanes: Sequence[tuple[float, _Lane]], end: Point) -> Iterator[Point]:
    """Return the curves of a line: it leaves and arrives upright, and passes rows straight."""
    yield start
    for x, lane in lanes:
        half = _HEIGHT / 2 * (1 if lane.is_down else -1)
        into, out = (x, -_ROW * lane.row + half), (x, -_ROW * lane.row - half)
        yield from _swing(start, into)
        yield from (into, out, out)
        start = out
    yield from _swing(start, end)


def _swing(start: Point, end: Point) -> tuple[Point, Point, Point]:
    bend = (end[1] - start[1]) / 2
    return (start[0], start[1] + bend), (end[0], end[1] - bend), end


# --- drawing --------------------------------------------------------------------------------------------------------


def drawn(
    boxes: Mapping[int, Box], lines: Sequence[Line], *, title: str, legend: Mapping[str, str], kind: str
) -> bytes:
    """Return a drawing as one of `KINDS`; ``legend`` names the colours of boxes. Raises MissingExtraError."""
    with report_extra("a drawing"):
        from fedmon.report.charts.library import plain_settings

        with plain_settings(svg__fonttype="none", svg__hashsalt="diagram"):
            return _drawn(boxes, lines, title, legend, kind)


def _drawn(boxes: Mapping[int, Box], lines: Sequence[Line], title: str, legend: Mapping[str, str], kind: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places, ways = laid_out(list(boxes), lines)
    labels = _labels(lines, places, ways)
    handles = _handles(lines, legend)
    xs = [x + side for x, _ in places.values() for side in (-_WIDTH / 2, _WIDTH / 2)] or [0.0]
    xs += [x for way in ways for x, _ in way]
    xs += [x + side * width / 2 for (x, _), width, _, _ in labels for side in (-1, 1)]
    low, middle = min((y for _, y in places.values()), default=0.0) - _ROW / 2, (min(xs) + max(xs)) / 2
    width = max(max(xs) - min(xs) + 2 * _MARGIN, _NARROWEST)
    columns = max(1, int(width / _LEGEND_COLUMN))
    low -= 0.15 + 0.17 * math.ceil(len(handles) / columns)
    high = _ROW / 2 + _MARGIN
    figure = Figure(figsize=(width, high - low), dpi=min(_DPI, _MAX_PIXELS / max(width, high - low)))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(middle - width / 2, middle + width / 2)
    axes.set_ylim(low, high)
    axes.axis("off")
    for key, box in boxes.items():
        _box(axes, places[key], box)
    for line, way in zip(lines, ways, strict=True):
        _line(axes, line, way, places[line.start])
    around = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for at, _, text, colour in labels:
        _text(axes, at, text, fontsize=7.5, color=colour, bbox=around, zorder=5)
    _text(axes, (middle, high - 0.2), title, fontsize=12)
    if handles:
        look = {"fontsize": 7.5, "frameon": False, "borderpad": 0.3}
        axes.legend(handles=handles, loc="lower center", ncols=min(len(handles), columns), **look)
    into = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(into, format=kind, metadata=metadata)
    return into.getvalue()


_Label = tuple[Point, float, str, str]
"""Its middle, width, text and colour."""


def _labels(lines: Sequence[Line], places: Mapping[int, Point], ways: Sequence[tuple[Point, ...]]) -> list[_Label]:
    """Return where each label stands: on its line, near the head, where it covers no other if there is room."""
    found: list[_Label] = []
    heights: list[float] = []
    for line, way in zip(lines, ways, strict=True):
        if line.label:
            words = textwrap.wrap(line.label, _LETTERS)
            width, height = max(map(len, words)) * _LETTER + 0.08, len(words) * _LETTER_LINE + 0.04
            x, y = places[line.start]
            tried = [(x + _WIDTH / 2 + 0.1, y - 0.42)]
            if way:
                curves = [way[at : at + 4] for at in range(0, len(way) - 1, 3) if way[at] != way[at + 1]]
                tried = [_point_of(curve, t) for curve in (curves[-1], *curves[:-1]) for t in _TRIED]
            covered = [
                sum(
                    max(0.0, (width + other[1]) / 2 - abs(other[0][0] - x))
                    * max(0.0, (height + other_height) / 2 - abs(other[0][1] - y))
                    for other, other_height in zip(found, heights, strict=True)
                )
                for x, y in tried
            ]
            found.append((tried[covered.index(min(covered))], width, "\n".join(words), line.colour))
            heights.append(height)
    return found


def _point_of(curve: Sequence[Point], t: float) -> Point:
    """Return a point of a cubic curve. Source: Wikipedia, "Bézier curve", on cubic ones."""
    weights = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, curve, strict=True)) for axis in (0, 1))
    return x, y


def _text(axes: Axes, at: Point, text: str, **look: Any) -> None:
    axes.text(*at, text, ha="center", va="center", parse_math=False, **look)  # a dollar would begin a formula


def _box(axes: Axes, at: Point, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner, style = (at[0] - _WIDTH / 2, at[1] - _HEIGHT / 2), f"round,pad=0,rounding_size={0.09 if box.fill else 0.3}"
    look: dict[str, Any] = {"facecolor": box.fill or "#ffffff", "edgecolor": box.border, "zorder": 3}
    axes.add_patch(
        FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle=style, linewidth=2.2 if box.is_thick else 1.0, **look)
    )
    if not box.fill:
        _text(
            axes, at, "\n".join(textwrap.wrap(" ".join(box.lines), _LETTERS)), fontsize=7.5, color=box.border, zorder=4
        )
        return
    for index, text in enumerate(box.lines):
        kept = text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
        y = at[1] + _LINE * ((len(box.lines) - 1) / 2 - index)
        _text(axes, (at[0], y), kept, fontsize=8.5, weight="normal" if index else "bold", zorder=4)


def _line(axes: Axes, line: Line, way: Sequence[Point], at: Point) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    look: dict[str, Any] = {"arrowstyle": "-|>" if line.has_head else "-", "mutation_scale": 12, "color": line.colour}
    look |= {"linestyle": "--" if line.is_dashed else "-", "linewidth": 1.1, "zorder": 2}
    if way:
        codes = [Path.MOVETO, *[Path.CURVE4] * (len(way) - 1)]
        axes.add_patch(FancyArrowPatch(path=Path(list(way), codes), **look))
    else:
        x, y = at[0] + _WIDTH / 2, at[1]
        axes.add_patch(FancyArrowPatch((x, y + 0.12), (x, y - 0.12), connectionstyle="arc3,rad=-1.6", **look))


def _handles(lines: Sequence[Line], legend: Mapping[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Any] = [Patch(facecolor=colour, edgecolor="#444444", label=name) for name, colour in legend.items()]
    for kind, line in sorted({line.kind: line for line in lines}.items()):
        look: dict[str, Any] = {"linestyle": "--" if line.is_dashed else "-", "linewidth": 1.1}
        found.append(Line2D([], [], color=line.colour, label=kind, **look))
    return found


# --- over time --------------------------------------------------------------------------------------------------------

_BARS_WIDTH, _BAR_HEIGHT, _BARS_MARGIN = 9.0, 0.24, 0.95
_NAME_LETTER = 0.075
_LONGEST_NAME = 30
_MAX_LINES = 10
_AXIS = "time since the run began"


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


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A line with its name, and its points: seconds since the beginning, and a number."""

    label: str
    points: tuple[tuple[float, float], ...]


def timeline_png(timeline: Timeline) -> bytes:
    """Return rows of bars as PNG. Raises MissingExtraError."""
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name, _ in timeline.rows]
    left = 0.3 + max(map(len, names), default=0) * _NAME_LETTER
    bars_height = len(names) * _BAR_HEIGHT
    height = bars_height + _BARS_MARGIN
    unit, size = unit_of(timeline.length_s)
    width = 1 - (left + 0.25) / _BARS_WIDTH
    place = (left / _BARS_WIDTH, (_BARS_MARGIN - 0.1) / height, width, bars_height / height)

    def draw(figure: Any) -> None:
        from matplotlib.patches import Patch

        axes = figure.add_axes(place)
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
        axes.set_xlabel(f"{_AXIS} ({unit})", fontsize=8.5)
        axes.spines[["top", "right", "left"]].set_visible(False)
        handles = [Patch(facecolor=colour, edgecolor="#555555", label=state) for state, colour in colours.items()]
        if handles:
            figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)

    return _png(draw, figsize=(_BARS_WIDTH, height))


def curves_png(title: str, curves: Sequence[Curve]) -> bytes:
    """Return curves as PNG; of more than a few only these are named. Raises MissingExtraError."""
    unit, size = unit_of(max((t for curve in curves for t, _ in curve.points), default=0.0))

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for index, curve in enumerate(curves):
            times, values = [t / size for t, _ in curve.points], [value for _, value in curve.points]
            axes.plot(times, values, marker="o" if len(times) <= 40 else None, markersize=3.5, linewidth=1.3)
            if index < _MAX_LINES:
                axes.lines[-1].set_label(curve.label if not curve.label.startswith("_") else f" {curve.label}")
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.set_xlabel(f"{_AXIS} ({unit})", fontsize=8.5)
        axes.tick_params(labelsize=8)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.margins(y=0.08)
        axes.ticklabel_format(axis="y", useOffset=False)
        more = f"{len(curves) - _MAX_LINES} more have no name here" if len(curves) > _MAX_LINES else None
        legend = axes.legend(fontsize=7.5, title=more, title_fontsize=7.5, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)

    return _png(draw, figsize=(6.2, 3.1), layout="constrained")


def unit_of(length_s: float) -> tuple[str, float]:
    """Return the unit in which a time is best told, and how many seconds it has."""
    if length_s < 1:
        return "ms", 0.001
    if length_s < 300:
        return "s", 1.0
    return ("min", 60.0) if length_s < 7200 else ("h", 3600.0)


def _png(draw: Callable[[Any], None], **size: Any) -> bytes:
    into = io.BytesIO()
    with report_extra("a drawing"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from fedmon.report.charts.library import plain_settings

        with plain_settings():
            figure = Figure(dpi=130, **size)
            FigureCanvasAgg(figure)
            draw(figure)
            figure.savefig(into, format="png", metadata={"Software": None})
    return into.getvalue()
