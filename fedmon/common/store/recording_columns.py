"""One column of numbers as JSON that compresses well: scaled to whole numbers, then as differences.

A column is written as ``[decimals, numbers]``. With ``decimals`` of 0 or more each number is a whole one: the first is
the first value times ten to the power of ``decimals``, each further one the difference to the value before it that is
not null. A single number in place of the list stands for a column of equal values. ``decimals`` of -1 means that the
numbers stand there as they are, because no such scale gives each of them back exactly.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

VERBATIM = -1
_SCALES = (0, 1, 2, 3, 4, 6, 9)
_MAX_SCALED = 2**60
"""Beyond it a number would not fit into the 64 bits of other readers of the JSON."""

Column = list[float | None]


def written(values: Sequence[float | None]) -> list[Any]:
    """Return a column in its written form; `restored` gives back equal values."""
    decimals, numbers = _scaled(values)
    if decimals == VERBATIM:
        return [decimals, numbers]
    if None in numbers:
        return [decimals, None if all(number is None for number in numbers) else _sparse_differences(numbers)]
    first = numbers[0]
    differences = list(map(operator.sub, numbers[1:], numbers))
    return [decimals, [first, *differences] if any(differences) else first]


def restored(column: Sequence[Any], length: int) -> Column:
    """Return the values of a written column of ``length`` values.

    Raises TypeError or ValueError for what `written` cannot have made.
    """
    decimals, numbers = column
    if decimals != VERBATIM and decimals not in _SCALES:
        raise ValueError(f"a column has {decimals!r} decimals")
    if numbers is None:
        return [None] * length
    if not isinstance(numbers, list):
        return [_unscaled(numbers, decimals)] * length
    if len(numbers) != length:
        raise ValueError(f"a column has {len(numbers)} values instead of {length}")
    if decimals == VERBATIM:
        return numbers
    if None in numbers:
        return _sparse_values(numbers, decimals)
    if decimals == 0:
        return list(itertools.accumulate(numbers))
    scale = 10**decimals
    return [number / scale for number in itertools.accumulate(numbers)]


def _scaled(values: Sequence[float | None]) -> tuple[int, list[Any]]:
    """Return the smallest scale that loses nothing, and the whole numbers at that scale."""
    for decimals in _SCALES:
        scale = 10**decimals
        try:
            numbers: list[Any] = [None if value is None else round(value * scale) for value in values]
        except (OverflowError, ValueError):  # infinite, or no number
            break
        # Division of whole numbers rounds correctly, so equality here is equality after reading.
        if all(
            value is None or (-_MAX_SCALED < number < _MAX_SCALED and (number / scale if decimals else number) == value)
            for number, value in zip(numbers, values, strict=True)
        ):
            return decimals, numbers
    # The JSON of others ends at 64 bits; such a number came from a float or is one on the wire.
    return VERBATIM, [None if value is None else float(value) for value in values]


def _sparse_differences(numbers: list[int | None]) -> list[int | None]:
    differences: list[int | None] = []
    before = 0
    for number in numbers:
        if number is None:
            differences.append(None)
        else:
            differences.append(number - before)
            before = number
    return differences


def _sparse_values(differences: list[int | None], decimals: int) -> Column:
    values: Column = []
    number = 0
    for difference in differences:
        if difference is None:
            values.append(None)
        else:
            number += difference
            values.append(_unscaled(number, decimals))
    return values


def _unscaled(number: int, decimals: int) -> float:
    return number if decimals == 0 else number / 10**decimals
