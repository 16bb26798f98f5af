"""One column of numbers as JSON that compresses well: scaled to whole numbers, then as differences.

A column is written as ``[decimals, numbers, unit]``. With ``decimals`` of 0 or more each number is a whole one, and a
value is ``number * unit / 10 ** decimals``: the first number is that of the first value, each further one the
difference to the value before it that is not null. A single number in place of the list stands for a column of equal
values. ``decimals`` of -1 means that the numbers stand there as they are, because no such scale gives each of them back
exactly.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

VERBATIM = -1
_SCALES = (0, 1, 2, 3, 4, 6, 9)
_JSON_LIMIT = 2**63
_MAX_SCALED = 2**60
"""Up to it differences fit into 64 bits too."""

Column = list[float | None]


def written(values: Sequence[float | None]) -> list[Any]:
    """Return a column in its written form; `restored` gives back equal values."""
    if values and values[0] is not None and values.count(values[0]) == len(values):
        return _equal(values[0])
    decimals, numbers = _scaled(values)
    if decimals == VERBATIM:
        return [decimals, numbers, 1]
    known = [number for number in numbers if number is not None]
    if not known:
        return [decimals, None, 1]
    unit = math.gcd(*known) or 1
    if len(known) < len(numbers):
        return [decimals, _sparse_differences(numbers, unit), unit]
    if unit > 1:
        numbers = [number // unit for number in numbers]
    return [decimals, [numbers[0], *map(operator.sub, numbers[1:], numbers)], unit]


def _equal(value: float) -> list[Any]:
    """Return the written form of a column that has the same value everywhere."""
    decimals, (number,) = _scaled([value])
    return [decimals, number, 1]


def restored(column: Sequence[Any], length: int) -> Column:
    """Return the values of a written column of ``length`` values.

    Raises TypeError or ValueError for what `written` cannot have made.
    """
    decimals, numbers, unit = checked(column, length)
    if numbers is None:
        return [None] * length
    if not isinstance(numbers, list):
        return [_unscaled(numbers * unit, max(0, decimals))] * length
    if decimals == VERBATIM:
        return numbers
    if None in numbers:
        return _sparse_values(numbers, decimals, unit)
    whole = itertools.accumulate(numbers)
    if decimals == 0:
        return list(whole) if unit == 1 else [number * unit for number in whole]
    scale = 10**decimals
    if unit == 1:
        return [number / scale for number in whole]
    return [number * unit / scale for number in whole]


def checked(column: Sequence[Any], length: int) -> tuple[int, Any, int]:
    """Return decimals, numbers and unit of a written column. Raises TypeError or ValueError like `restored`."""
    decimals, numbers, unit = column
    if decimals != VERBATIM and decimals not in _SCALES:
        raise ValueError(f"a column has {decimals!r} decimals")
    if isinstance(numbers, list) and len(numbers) != length:
        raise ValueError(f"a column has {len(numbers)} values instead of {length}")
    return decimals, numbers, unit


def _scaled(values: Sequence[float | None]) -> tuple[int, list[Any]]:
    """Return the smallest scale that loses nothing, and the whole numbers at that scale."""
    if all(kind is int for kind in map(type, values)) and _largest(values) < _MAX_SCALED:
        return 0, list(values)
    # Most scales fail at one of a few values; only then are all of them tried.
    probes = [value for value in (values[0], values[len(values) // 2], values[-1]) if value is not None]
    for decimals in _SCALES:
        scale = 10**decimals
        try:
            if not _is_exact(probes, decimals, scale):
                continue
            numbers: list[Any] = [None if value is None else round(value * scale) for value in values]
        except (OverflowError, ValueError):  # infinite, or no number
            break
        # Division of whole numbers rounds correctly, so equality here is equality after reading.
        again = numbers if decimals == 0 else [None if number is None else number / scale for number in numbers]
        if again == list(values) and _largest(numbers) < _MAX_SCALED:
            return decimals, numbers
    return VERBATIM, [_fitting(value) for value in values]


def _is_exact(probes: list[float], decimals: int, scale: int) -> bool:
    """Tell whether values can be scaled, by those that are tried first. Raises OverflowError or ValueError."""
    numbers = [round(value * scale) for value in probes]
    return [number / scale if decimals else number for number in numbers] == probes and _largest(numbers) < _MAX_SCALED


def _largest(numbers: Sequence[Any]) -> float:
    known = [number for number in numbers if number is not None] if None in numbers else numbers
    return max(map(abs, known), default=0)


def _fitting(value: Any) -> float | None:
    """Return a number that JSON here can carry: its whole numbers end at 64 bits."""
    return float(value) if isinstance(value, int) and abs(value) >= _JSON_LIMIT else value


def _sparse_differences(numbers: list[int | None], unit: int) -> list[int | None]:
    differences: list[int | None] = []
    before = 0
    for number in numbers:
        if number is None:
            differences.append(None)
        else:
            differences.append((number - before) // unit)
            before = number
    return differences


def _sparse_values(differences: list[int | None], decimals: int, unit: int) -> Column:
    values: Column = []
    number = 0
    for difference in differences:
        if difference is None:
            values.append(None)
        else:
            number += difference
            values.append(_unscaled(number * unit, decimals))
    return values


def _unscaled(number: int, decimals: int) -> float:
    return number if decimals == 0 else number / 10**decimals
