"""The rows of one span: what the streams of a node said at the same instant stands in the same row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import RecordingRows, SampleRow
from fedmon.report.block import Block, Floats
from fedmon.report.decoding import Decoder
from fedmon.report.layout import Column, Layout
from fedmon.report.rates import PERF_CLOCK, Rates, clock_of, is_by_perf_clock
from fedmon.report.spans import Span
from fedmon.report.stream_blocks import Damage, Limits, read_blocks


class SpanRows(NamedTuple):
    """Rows of one node by time: Unix time of each, and a row of ``values`` for each column; NaN is no value."""

    t: Floats
    values: Floats


class SpanReader:
    """Reads spans of recordings into the columns of a layout; for one thread.

    It keeps nothing from span to span: a rate at the begin of one is found by reading back to the value before.
    Raises StorageError.
    """

    def __init__(self, recordings: Sequence[RecordingRows], layout: Layout) -> None:
        self._recordings = recordings
        self._width = len(layout.columns)
        self._values: dict[str, dict[str, int]] = {}
        self._rates: dict[str, dict[str, int]] = {}
        for number, column in enumerate(layout.columns):
            self._place(column, number)
        self._damage = Damage()

    @property
    def damaged(self) -> int:
        """How many samples were left out so far because they are damaged; at the edge of two spans they count twice."""
        return self._damage.samples

    def read(self, span: Span) -> SpanRows:
        """Return the rows of a span."""
        parts: list[tuple[Block, NDArray[np.bool_], dict[int, Floats]]] = []
        for key, runs in span.runs:
            recordings = [recording for recording in self._recordings if recording.holds(key)]
            for block, columns in self._columns(recordings, key, runs):
                inside = (block.t >= span.since_t) & (block.t < span.until_t)
                if inside.any():
                    parts.append((block, inside, columns))
        return self._merged(parts)

    def _place(self, column: Column, number: int) -> None:
        places = self._rates if column.is_rate else self._values
        places.setdefault(column.stream, {})[column.series] = number

    def _columns(
        self, recordings: Sequence[RecordingRows], key: Key, runs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Block, dict[int, Floats]]]:
        """Return the blocks of runs, and by place the columns that they fill."""
        stream = key[1]
        values, rates = self._values.get(stream, {}), self._rates.get(stream, {})
        wanted = values.keys() | rates.keys() | ({PERF_CLOCK} if any(map(is_by_perf_clock, rates)) else set())
        growth = Rates()
        end = -1
        for first, last in runs:
            limits = Limits(first_seq=first, last_seq=last, series=wanted.__contains__)
            for block in read_blocks(recordings, key, limits, self._damage):
                if rates and block.seq != end + 1:
                    _begin(growth, recordings, key, block, [name for name in rates if name in block.columns], end)
                end = block.last_seq
                columns = {values[name]: column for name, column in block.columns.items() if name in values}
                columns |= {
                    place: growth.of(block, name).per_second for name, place in rates.items() if name in block.columns
                }
                yield block, columns

    def _merged(self, parts: Sequence[tuple[Block, NDArray[np.bool_], Mapping[int, Floats]]]) -> SpanRows:
        if not parts:
            return SpanRows(np.empty(0), np.empty((self._width, 0)))
        places, t, is_shared = _rows(parts)
        values = np.full((self._width, len(t)), np.nan)
        begin = 0
        for _, inside, columns in parts:
            length = int(np.count_nonzero(inside))
            rows = places[begin : begin + length]
            begin += length
            # Writing to a slice is a copy of memory; writing to places one by one takes ten times as long.
            is_slice = rows[-1] - rows[0] + 1 == length and bool((np.diff(rows) == 1).all())
            target = slice(int(rows[0]), int(rows[-1]) + 1) if is_slice else rows
            for place, column in columns.items():
                chosen = column if length == len(column) else column[inside]
                if is_slice and not is_shared:
                    values[place, target] = chosen
                else:
                    known = ~np.isnan(chosen)
                    values[place, rows[known]] = chosen[known]
        return SpanRows(t, values)


def _rows(
    parts: Sequence[tuple[Block, NDArray[np.bool_], Mapping[int, Floats]]],
) -> tuple[NDArray[np.intp], Floats, bool]:
    """Return the number of the row of each sample, the time of each row, and whether samples of one stream share one.

    Samples of one boot share a row when they have both clocks in common, unless they say different things.
    """
    t = np.concatenate([block.t[inside] for block, inside, _ in parts])
    mono = np.concatenate([block.mono[inside] for block, inside, _ in parts])
    if len(parts) == 1 and bool((np.diff(t) > 0).all()):
        return np.arange(len(t)), t, False
    boot = np.concatenate([np.full(np.count_nonzero(inside), block.boot) for block, inside, _ in parts])
    order = np.lexsort((mono, boot, t))
    new = np.ones(len(t), dtype=bool)
    new[1:] = (np.diff(t[order]) != 0) | (np.diff(mono[order]) != 0) | (np.diff(boot[order]) != 0)
    is_shared = _keep_apart(parts, order, new)
    places = np.empty(len(t), dtype=np.intp)
    places[order] = np.cumsum(new) - 1
    return places, t[order][new], is_shared


def _keep_apart(
    parts: Sequence[tuple[Block, NDArray[np.bool_], Mapping[int, Floats]]],
    order: NDArray[np.intp],
    new: NDArray[np.bool_],
) -> bool:
    """Begin a row where a sample has another value for a column that one of the same instant filled.

    Tells whether a stream has several samples of one instant at all.
    """
    part = np.concatenate([np.full(np.count_nonzero(inside), at) for at, (_, inside, _) in enumerate(parts)])
    streams = {at: (block.stream, block.boot) for at, (block, _, _) in enumerate(parts)}
    within = np.concatenate([np.flatnonzero(inside) for _, inside, _ in parts])
    # Only samples of one stream can say different things of one instant: other streams fill other columns.
    names = list(dict.fromkeys(streams.values()))
    stream = np.array([names.index(streams[at]) for at in range(len(parts))])[part[order]]
    group = np.cumsum(new)
    by_stream = np.lexsort((stream, group))
    same = (np.diff(group[by_stream]) == 0) & (np.diff(stream[by_stream]) == 0)
    for number in np.unique(group[by_stream[1:][same]]).tolist():
        filled: set[int] = set()
        for at in np.flatnonzero(group == number).tolist():
            _, _, columns = parts[part[order[at]]]
            says = {place for place, column in columns.items() if not math.isnan(column[within[order[at]]])}
            if filled & says:
                new[at] = True
                filled = set()
            filled |= says
    return bool(same.any())


def _begin(
    growth: Rates, recordings: Sequence[RecordingRows], key: Key, block: Block, names: Sequence[str], read_to: int
) -> None:
    """Tell what counters were read as before a block, as far back as that is; up to ``read_to`` is known already."""
    wanted = {name for name in names if not np.isnan(block.columns[name]).all()}
    position = block.seq
    while wanted and position > read_to + 1:
        rows = [row for one in recordings if (row := one.before(key, position)) is not None]
        if not rows:
            return
        row = max(rows, key=lambda row: min(row.last_seq, position - 1))
        if min(row.last_seq, position - 1) <= read_to:
            return
        wanted -= _found(growth, block, row, position, wanted)
        position = row.first_seq


def _found(growth: Rates, block: Block, row: SampleRow, position: int, wanted: set[str]) -> set[str]:
    """Look for the last values of counters in the part of a row before a sample; returns which were found."""
    decoder = Decoder(lambda name: name in wanted or name == PERF_CLOCK)
    decoder.add(row)
    decoded = decoder.take()
    found: set[str] = set()
    if decoded is None:
        return found
    length = position - row.first_seq
    columns = dict(zip(decoded.names, decoded.values, strict=True))
    for name in wanted & columns.keys():
        values, times = columns[name], clock_of(name, columns, decoded.mono)
        known = np.flatnonzero(~(np.isnan(values[:length]) | np.isnan(times[:length])))
        if len(known):
            growth.begin(block, name, float(times[known[-1]]), float(values[known[-1]]))
            found.add(name)
    return found
