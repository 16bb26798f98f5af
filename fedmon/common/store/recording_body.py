"""The body of one row of a recording: the columns of a batch, so that one of them can be read without the others.

A body is the names of its columns, a directory, and behind them the long columns one after another, each compressed
alone. The directory is compressed JSON, ``[columns, reasons, steps]``. ``columns`` has for ``t``, ``mono`` and each
name either the column itself, as recording_columns.py writes it, or how many bytes its part takes. ``reasons`` lists
``[samples, {series: why}]`` for stretches of samples. ``steps`` is ``[number, counts]``: how many samples fall into
each step of 10 s, from the first step's number since 1970 on; null where the row is short or its clock went back.
Names and directory have their length in front of them, in four bytes each.
"""

from __future__ import annotations

import functools
import itertools
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording_columns import Column, restored, written

_SHORT = 30
"""Up to so many samples the columns stay in the directory: compressed together they are half as large as apart."""
STEP_S = 10
_INLINE_BYTES = 40
_MAX_BYTES = 64 * 2**20
_LEVEL = 6

Reasons = list[tuple[int, dict[str, str]]]
Chooser = Callable[[str], bool]


class UnreadableRowError(StorageError):
    """One row of a recording is damaged; the others can still be read."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
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
    head = [_compressed(names), _compressed([entries, reasons, _steps(columns[0]) if apart else None])]
    return b"".join((*(len(part).to_bytes(4, "big") + part for part in head), *parts))


def decode(body: bytes, place: Place, *, wanted: Chooser | None = None) -> list[Batch]:
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
    for low, high, said in _separated(reasons, columns, length):
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


def written_column(body: bytes, name: str, *, by_steps: bool) -> tuple[list[Any] | None, list[Any] | None]:
    """Return one column of a body as it is written, None when it is not there, and the times of its samples.

    These are the steps of 10 s when ``by_steps`` and when the body has them, else ``t`` as it is written; a list of two
    or of three. Raises zlib.error, msgspec.DecodeError, ValueError or TypeError when the body is damaged.
    """
    names, entries, _, steps, start = directory(body)
    if name not in names:
        return None, None

    def entry(place: int) -> list[Any]:
        found = entries[place]
        if isinstance(found, int):
            begin = start + sum(size for size in entries[:place] if isinstance(size, int))
            found = msgspec.json.decode(inflated(body[begin : begin + found]))
        return list(found)

    return entry(names.index(name) + 2), steps if steps is not None and by_steps else entry(0)


def _steps(t: list[Any]) -> list[Any] | None:
    if any(map(operator.gt, t, itertools.islice(t, 1, None))):
        return None
    first = int(t[0] // STEP_S)
    if t[-1] // STEP_S - first >= len(t):
        return None  # samples far apart would make more steps than samples
    counts = [0] * (int(t[-1] // STEP_S) - first + 1)
    for moment in t:
        counts[int(moment // STEP_S) - first] += 1
    return [first, counts]


def _opened(
    body: bytes, length: int, wanted: Chooser | None
) -> tuple[list[float], list[float], dict[str, Column], Reasons]:
    names, entries, reasons, _, start = directory(body)
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


def directory(body: bytes) -> tuple[tuple[str, ...], list[Any], Reasons, list[Any] | None, int]:
    """Return names, columns or their sizes, reasons and steps, and where the first part begins.

    Of the two and more columns the first are ``t`` and ``mono``. Raises what `written_column` raises.
    """
    middle = 4 + int.from_bytes(body[:4], "big")
    start = middle + 4 + int.from_bytes(body[middle : middle + 4], "big")
    names = _names(body[4:middle])
    entries, reasons, steps = msgspec.json.decode(inflated(body[middle + 4 : start]))
    if len(entries) != len(names) + 2:
        raise ValueError(f"it has {len(names)} names for {len(entries)} columns")
    return names, entries, reasons, steps, start


@functools.lru_cache(maxsize=256)
def _names(part: bytes) -> tuple[str, ...]:
    """Return the names of columns; they are the same from row to row."""
    return tuple(msgspec.json.decode(inflated(part), type=list[str]))


def _compressed(content: object) -> bytes:
    return zlib.compress(msgspec.json.encode(content), _LEVEL)


def series_names(head: bytes) -> tuple[str, ...] | None:
    """Return the names of a body's columns from its first bytes; None when these are too few.

    Raises what `written_column` raises.
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


def _separated(reasons: Reasons, columns: dict[str, Column], length: int) -> list[tuple[int, int, dict[str, str]]]:
    """Return stretches of samples whose reasons can be told together: no null would get the reason of another.

    A reason goes with every null of its series, so a stretch where the series was merely not due must stay apart.
    """
    found: list[tuple[int, int, dict[str, str]]] = []
    at = 0
    for samples, said in reasons or [(length, {})]:
        low, high = at, at + samples
        at = high
        if found:
            begun, end, before = found[-1]
            together = before | said
            fits = together == said | before and not any(
                name in columns and None in columns[name][part_low:part_high]
                for part_low, part_high, there in ((begun, end, before), (low, high, said))
                for name in together.keys() - there.keys()
            )
            if fits:
                found[-1] = (begun, high, together)
                continue
        found.append((low, high, dict(said)))
    return found
