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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

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


class RowPlace(NamedTuple):
    """Whose samples a body holds, by node, stream and boot, and their numbers."""

    key: tuple[str, str, int]
    first_seq: int
    last_seq: int


def encode(batches: Sequence[Batch]) -> bytes:
    """Return the body of batches of one stream that follow each other without a gap."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(batch.columns for batch in batches)))
    columns = [_joined([batch.t for batch in batches]), _joined([batch.mono for batch in batches])]
    columns += [_joined([batch.columns.get(name) or [None] * len(batch.t) for batch in batches]) for name in names]
    apart = len(columns[0]) > _SHORT
    entries: list[Any] = []
    parts: list[bytes] = []
    for column in map(written, columns):
        part = _compressed(column) if apart and isinstance(column[1], list) else b""
        if len(part) <= _INLINE_BYTES:
            entries.append(column)
        else:
            entries.append(len(part))
            parts.append(part)
    alike = itertools.groupby(batches, key=operator.attrgetter("reasons"))
    stretches: Reasons = [(sum(len(batch.t) for batch in group), said) for said, group in alike]
    reasons = stretches if any(said for _, said in stretches) else []
    head = [_compressed(names), _compressed([entries, reasons, None])]
    return b"".join((*(len(part).to_bytes(4, "big") + part for part in head), *parts))


def decode(body: bytes, place: RowPlace, *, wanted: Chooser | None = None) -> list[Batch]:
    """Return the samples of a body, with the series that ``wanted`` says yes to, or with all.

    It is one batch, or more where the reasons of its nulls differ from sample to sample. Raises UnreadableRowError.
    """
    (node_id, stream, boot), first, last = place
    try:
        columns, reasons = _opened(body, last - first + 1, wanted)
        (_, t), (_, mono), *series = columns
        batch = Batch(
            node_id=node_id,
            boot=boot,
            stream=stream,
            seq=first,
            t=cast("list[float]", t),
            mono=cast("list[float]", mono),
            columns=dict(series),
        )
        return [
            msgspec.structs.replace(batch, reasons=said).part(low, high)
            for low, high, said in _separated(reasons, first, last)
        ]
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise UnreadableRowError(
            f"samples {first} to {last} of stream {stream} of node {node_id} are damaged: {error}"
        ) from error


def _opened(body: bytes, length: int, wanted: Chooser | None) -> tuple[list[tuple[str, Column]], Reasons]:
    """Return the wanted columns behind those of the two clocks, and the reasons."""
    names, entries, reasons, start = directory(body)
    columns: list[tuple[str, Column]] = []
    for number, (name, entry) in enumerate(zip(("t", "mono", *names), entries, strict=True)):
        size = entry if isinstance(entry, int) else 0
        if number < 2 or wanted is None or wanted(name):
            column = msgspec.json.decode(inflated(body[start : start + size])) if size else entry
            columns.append((name, restored(column, length)))
        start += size
    if wanted is not None:
        reasons = [(samples, {name: why for name, why in said.items() if wanted(name)}) for samples, said in reasons]
    return columns, reasons


def directory(body: bytes) -> tuple[tuple[str, ...], list[Any], Reasons, int]:
    """Return names, columns or their sizes, reasons, and where the first part begins.

    Of the two and more columns the first are ``t`` and ``mono``. Raises zlib.error, msgspec.DecodeError, ValueError or
    TypeError when the body is damaged.
    """
    middle = 4 + int.from_bytes(body[:4], "big")
    start = middle + 4 + int.from_bytes(body[middle : middle + 4], "big")
    names = _names(body[4:middle])
    entries, reasons, _ = msgspec.json.decode(inflated(body[middle + 4 : start]))
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


def _separated(reasons: Reasons, first: int, last: int) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Yield first and last sample of stretches with the same reasons.

    A reason goes with every null of its series, so a stretch where the series was merely not due must stay apart.
    """
    for said, group in itertools.groupby(reasons or [(last - first + 1, {})], key=operator.itemgetter(1)):
        end = first + sum(samples for samples, _ in group)
        yield first, end - 1, said
        first = end


# --- columns ----------------------------------------------------------------------------------------------------


def written(values: Sequence[float | None]) -> list[Any]:
    """Return a column in its written form; `restored` gives back equal values."""
    known = _known(values)
    if not known:
        return [0, None, 1]
    if known.count(known[0]) == len(values):
        decimals, (number,) = _scaled(known[:1])
        return [decimals, number, 1]
    decimals, numbers = _scaled(known)
    unit = 1
    if decimals != VERBATIM:
        unit = math.gcd(*numbers) or 1
        if unit > 1:
            numbers = [number // unit for number in numbers]
        numbers = [numbers[0], *map(operator.sub, numbers[1:], numbers)]
    return [decimals, _spread(numbers, values), unit]


def restored(column: Sequence[Any], length: int) -> Column:
    """Return the values of a written column of ``length`` values.

    Raises TypeError or ValueError for bytes that `written` cannot have made.
    """
    decimals, numbers, unit = checked(column, length)
    if numbers is None:
        return [None] * length
    scale = 10 ** max(0, decimals)
    if not isinstance(numbers, list):
        return [numbers * unit if scale == 1 else numbers * unit / scale] * length
    if decimals == VERBATIM:
        return numbers
    whole: Iterable[int] = itertools.accumulate(_known(numbers))
    if unit > 1:
        whole = [number * unit for number in whole]
    return _spread(list(whole) if scale == 1 else [number / scale for number in whole], numbers)


def checked(column: Sequence[Any], length: int) -> tuple[int, Any, int]:
    """Return decimals, numbers and unit of a written column. Raises TypeError or ValueError like `restored`."""
    decimals, numbers, unit = column
    if decimals != VERBATIM and decimals not in _SCALES:
        raise ValueError(f"a column has {decimals!r} decimals")
    if isinstance(numbers, list) and len(numbers) != length:
        raise ValueError(f"a column has {len(numbers)} values instead of {length}")
    return decimals, numbers, unit


def _known(values: Sequence[Any]) -> Sequence[Any]:
    return [value for value in values if value is not None] if None in values else values


def _spread(known: list[Any], places: Sequence[Any]) -> list[Any]:
    """Return the known values where the places hold some, and None where they hold None."""
    if len(known) == len(places):
        return known
    left = iter(known)
    return [None if place is None else next(left) for place in places]


def _scaled(values: Sequence[float]) -> tuple[int, list[Any]]:
    """Return the smallest scale that loses nothing, and the whole numbers at that scale."""
    if all(kind is int for kind in map(type, values)) and max(map(abs, values)) < _MAX_SCALED:
        return 0, list(values)
    # Most scales fail at one of a few values; only then are all of them tried.
    probes = (values[0], values[len(values) // 2], values[-1])
    for decimals in _SCALES:
        if _exact(probes, decimals) and (numbers := _exact(values, decimals)):
            return decimals, numbers
    return VERBATIM, [_fitting(value) for value in values]


def _exact(values: Sequence[float], decimals: int) -> list[int] | None:
    """Return values as whole numbers at a scale; None if that would change one."""
    scale = 10**decimals
    try:
        numbers = [round(value * scale) for value in values]
    except (OverflowError, ValueError):  # infinite, or no number
        return None
    # Division of whole numbers rounds correctly, so equality here is equality after reading.
    again = [number / scale for number in numbers] if decimals else numbers
    return numbers if again == list(values) and max(map(abs, numbers)) < _MAX_SCALED else None


def _fitting(value: Any) -> float | None:
    """Return a number that JSON here can carry: its whole numbers end at 64 bits."""
    return float(value) if isinstance(value, int) and abs(value) >= _JSON_LIMIT else value
