"""The format of one row of a recording: columns as numbers that compress well, and the body that holds them.

A column is written as ``[decimals, numbers, unit]``. With ``decimals`` of 0 or more each number is a whole one, and a
value is ``number * unit / 10 ** decimals``: the first number is that of the first value, each further one the
difference to the value before it that is not null. A single number in place of the list stands for a column of equal
values. ``decimals`` of -1 means that the numbers stand there as they are, because no such scale gives each of them back
exactly.

A body is the names of its columns, a directory, and behind them the long columns one after another, each compressed
alone, so that one can be read without the others. The directory is compressed JSON, ``[columns, reasons, steps]``.
``columns`` has for ``t``, ``mono`` and each name either the column itself or how many bytes its part takes. ``reasons``
lists ``[samples, {series: why}]`` for stretches of samples. ``steps`` is null; older files have a count there that
nothing reads. Names and directory have their length in front of them, in four bytes each.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch

VERBATIM = -1
_SCALES = (0, 1, 2, 3, 4, 6, 9)
_JSON_LIMIT = 2**63
_MAX_SCALED = 2**60
"""Up to it differences fit into 64 bits too."""

Column = list[float | None]
_SHORT = 30
"""Most samples with columns in the directory: compressed together they are half as large as apart."""
_INLINE_BYTES = 40
_MAX_BYTES = 64 * 2**20
_LEVEL = 6

Reasons = list[tuple[int, dict[str, str]]]
Chooser = Callable[[str], bool]


class UnreadableRowError(StorageError):
    """One row of a recording is damaged; the others can still be read."""


class RowPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Whose samples a body holds, and their numbers."""

    node_id: str
    boot: int
    stream: str
    first_seq: int
    last_seq: int


def encode(batches: Sequence[Batch]) -> bytes:
    """Return the body of batches of one stream that follow each other without a gap."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(batch.columns for batch in batches)))
    columns = [_joined([batch.t for batch in batches]), _joined([batch.mono for batch in batches])]
    columns += [_joined([_column(batch, name) for batch in batches]) for name in names]
    apart = len(columns[0]) > _SHORT
    entries: list[Any] = []
    parts: list[bytes] = []
    for column in map(written, columns):
        if not apart or not isinstance(column[1], list):
            entries.append(column)
            continue
        part = _compressed(column)
        if len(part) <= _INLINE_BYTES:
            entries.append(column)
        else:
            entries.append(len(part))
            parts.append(part)
    stretches = _stretches(batches)
    reasons = stretches if any(said for _, said in stretches) else []
    head = [_compressed(names), _compressed([entries, reasons, None])]
    return b"".join((*(len(part).to_bytes(4, "big") + part for part in head), *parts))


def decode(body: bytes, place: RowPlace, *, wanted: Chooser | None = None) -> list[Batch]:
    """Return the samples of a body, with the series that ``wanted`` says yes to, or with all.

    It is one batch, or more where the reasons of its nulls differ from sample to sample. Raises UnreadableRowError.
    """
    length = place.last_seq - place.first_seq + 1
    try:
        t, mono, columns, reasons = _opened(body, length, wanted)
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise UnreadableRowError(
            f"samples {place.first_seq} to {place.last_seq} of stream {place.stream} of node {place.node_id} "
            f"are damaged: {error}"
        ) from error
    found: list[Batch] = []
    for low, high, said in _separated(reasons, length):
        whole = (low, high) == (0, length)
        found.append(
            Batch(
                node_id=place.node_id,
                boot=place.boot,
                stream=place.stream,
                seq=place.first_seq + low,
                t=t if whole else t[low:high],
                mono=mono if whole else mono[low:high],
                columns=columns if whole else {name: column[low:high] for name, column in columns.items()},
                reasons=said,
            )
        )
    return found


def _opened(
    body: bytes, length: int, wanted: Chooser | None
) -> tuple[list[float], list[float], dict[str, Column], Reasons]:
    names, entries, reasons, start = directory(body)
    clocks: list[Any] = []
    columns: dict[str, Column] = {}
    for number, entry in enumerate(entries):
        size = entry if isinstance(entry, int) else 0
        if number < 2 or wanted is None or wanted(names[number - 2]):
            column = msgspec.json.decode(inflated(body[start : start + size])) if size else entry
            values = restored(column, length)
            if number < 2:
                clocks.append(values)
            else:
                columns[names[number - 2]] = values
        start += size
    t, mono = clocks
    if wanted is not None:
        reasons = [(samples, {name: why for name, why in said.items() if wanted(name)}) for samples, said in reasons]
    return t, mono, columns, reasons


def directory(body: bytes) -> tuple[tuple[str, ...], list[Any], Reasons, int]:
    """Return names, columns or their sizes, reasons, and where the first part begins.

    Of the two and more columns the first are ``t`` and ``mono``. Raises zlib.error, msgspec.DecodeError, ValueError or
    TypeError when the body is damaged.
    """
    middle = 4 + int.from_bytes(body[:4], "big")
    start = middle + 4 + int.from_bytes(body[middle : middle + 4], "big")
    names = _names(body[4:middle])
    entries, reasons, _ = msgspec.json.decode(inflated(body[middle + 4 : start]))
    if len(entries) != len(names) + 2:
        raise ValueError(f"it has {len(names)} names for {len(entries)} columns")
    return names, entries, reasons, start


@functools.lru_cache(maxsize=256)
def _names(part: bytes) -> tuple[str, ...]:
    """Return the names of columns; they are the same from row to row."""
    return tuple(msgspec.json.decode(inflated(part), type=list[str]))


def _compressed(content: object) -> bytes:
    return zlib.compress(msgspec.json.encode(content), _LEVEL)


def series_names(head: bytes) -> tuple[str, ...] | None:
    """Return the names of a body's columns from its first bytes; None when these are too few.

    Raises as `directory`.
    """
    end = 4 + int.from_bytes(head[:4], "big")
    return _names(head[4:end]) if 4 <= end <= len(head) else None


def inflated(part: bytes) -> bytes:
    """Return a part of a body as JSON. Raises zlib.error or ValueError when it is damaged."""
    inflater = zlib.decompressobj()
    content = inflater.decompress(part, _MAX_BYTES)
    if not inflater.eof:
        raise ValueError("a part of it is cut off, or larger than anything that was written")
    return content


def _joined(columns: list[Any]) -> Column:
    return columns[0] if len(columns) == 1 else list(itertools.chain.from_iterable(columns))


def _column(batch: Batch, name: str) -> Column:
    column = batch.columns.get(name)
    return [None] * len(batch.t) if column is None else column


def _stretches(batches: Sequence[Batch]) -> Reasons:
    """Return the reasons of neighbouring batches, those that agree taken together."""
    found: Reasons = []
    for batch in batches:
        if found and found[-1][1] == batch.reasons:
            found[-1] = (found[-1][0] + len(batch.t), batch.reasons)
        else:
            found.append((len(batch.t), batch.reasons))
    return found


def _separated(reasons: Reasons, length: int) -> list[tuple[int, int, dict[str, str]]]:
    """Return stretches of samples with the same reasons.

    A reason goes with every null of its series, so a stretch where the series was merely not due must stay apart.
    """
    found: list[tuple[int, int, dict[str, str]]] = []
    for samples, said in reasons or [(length, {})]:
        low, high, before = found[-1] if found else (0, 0, None)
        if before == said:
            found[-1] = (low, high + samples, said)
        else:
            found.append((high, high + samples, said))
    return found


# --- columns ----------------------------------------------------------------------------------------------------


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

    Raises TypeError or ValueError for bytes that `written` cannot have made.
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
