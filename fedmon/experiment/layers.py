"""Where the boxes of a drawing go: in rows, each below those it waits for, and near those it has to do with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_SWEEPS = 6
_MIN_ROW = 6


def placed(keys: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Return a column and a row for each key; an edge leads from above to below, but where edges go in a circle."""
    rows = _rows(keys, edges)
    near: dict[int, list[int]] = {key: [] for key in keys}
    for start, end in edges:
        near[start].append(end)
        near[end].append(start)
    columns = {key: float(column) for row in rows for column, key in enumerate(row)}
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            row.sort(key=lambda key: _middle(key, near, columns))
            columns.update((key, column - len(row) / 2) for column, key in enumerate(row))
    return _wrapped(rows)


def _rows(keys: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Put each key one row below the lowest that leads to it; what is left of a circle goes below what is there."""
    below: dict[int, list[int]] = {key: [] for key in keys}
    above = dict.fromkeys(keys, 0)
    for start, end in set(edges):
        if start != end:
            below[start].append(end)
            above[end] += 1
    row_of: dict[int, int] = {}
    left = dict.fromkeys(keys)
    row = [key for key in keys if not above[key]]
    number = 0
    while left:
        if not row:
            row = [min(left, key=lambda key: above[key])]
        following = []
        for key in row:
            del left[key]
            row_of[key] = number
        for key in row:
            for end in below[key]:
                above[end] -= 1
                if not above[end] and end in left:
                    following.append(end)
        row, number = list(dict.fromkeys(following)), number + 1
    rows: list[list[int]] = [[] for _ in range(number)]
    for key in keys:
        rows[row_of[key]].append(key)
    return rows


def _middle(key: int, near: Mapping[int, Sequence[int]], columns: Mapping[int, float]) -> float:
    """Return the middle of where those are that a key has to do with."""
    others = near[key]
    return sum(columns[other] for other in others) / len(others) if others else columns[key]


def _wrapped(rows: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    """Break rows that are much longer than the drawing is high, and put each in the middle."""
    widest = max(_MIN_ROW, math.ceil(math.sqrt(sum(map(len, rows)) * 1.5)))
    places: dict[int, tuple[float, float]] = {}
    number = 0
    for row in rows:
        lines = math.ceil(len(row) / widest)
        each = math.ceil(len(row) / lines) if lines else 1
        for start in range(0, len(row), each):
            line = row[start : start + each]
            places.update((key, (column - (len(line) - 1) / 2, float(number))) for column, key in enumerate(line))
            number += 1
    return places
