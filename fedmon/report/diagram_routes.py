"""How lines go between the boxes of a diagram: through the gaps of the rows that they pass, each where no other is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

Point = tuple[float, float]

_LANE = 0.11
_STUB = 0.04
_TRIED = (0.5, 0.35, 0.65, 0.22, 0.78)


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
