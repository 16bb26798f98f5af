"""Lines between boxes: each goes through gaps, and none behind a box that it has nothing to do with."""

from __future__ import annotations

import itertools

from fedmon.experiment.drawing import placed
from fedmon.report.diagram import Grid, Labels, Route, point_of, routes

GRID = Grid(column=2.4, row=1.75, width=1.75, height=0.75)


def curves(route: Route) -> list[tuple[float, float]]:
    parts = [route.points[at : at + 4] for at in range(0, len(route.points) - 1, 3)]
    return [point_of((p[0], p[1], p[2], p[3]), step / 20) for p in parts for step in range(21)]


def test_no_line_passes_behind_a_box() -> None:
    # A round waits for the one before, and all of them for the first and one another: most lines pass over rows.
    keys = range(1, 25)
    lines = [*itertools.pairwise(keys), *((1, key) for key in keys if key > 2), (24, 1), (5, 3), *((2, 24),) * 3]
    places = placed(keys, lines)

    for (start, end), route in zip(lines, routes(places, lines, GRID), strict=True):
        for x, y in curves(route):
            for key, (column, row) in places.items():
                is_inside = abs(x - column * GRID.column) < 0.85 and abs(y + row * GRID.row) < 0.35
                assert not is_inside, f"{start} -> {end} passes box {key}"


def test_lines_between_the_same_two_boxes_are_apart() -> None:
    places = placed([1, 2], [(1, 2)])

    found = routes(places, [(1, 2)] * 3 + [(2, 1)], GRID)

    assert len({route.points[0][0] for route in found} | {route.points[-1][0] for route in found}) == 4


def test_those_in_one_row_are_joined_from_below() -> None:
    route = routes({1: (0.0, 0.0), 2: (1.0, 0.0)}, [(1, 2)], GRID)[0]

    assert all(y < -GRID.height / 2 for _, y in curves(route))


def test_labels_cover_no_other_where_there_is_room() -> None:
    lines = [(1, 2)] * 2
    labels = Labels()

    first, second = (labels.place(route, 1.5, 0.17) for route in routes({1: (0.0, 0.0), 2: (0.0, 1.0)}, lines, GRID))

    assert abs(first[1] - second[1]) >= 0.14
