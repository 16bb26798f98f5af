"""Neighbouring samples of one stream as arrays: decoded from the rows of recordings, joined, each sample once."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.metrics.series import split_series
from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_format import VERBATIM, Chooser, checked, directory, inflated, restored
from fedmon.common.store.recording_reader import CALENDAR, RecordingRows, RowSelection
from fedmon.common.store.seq_ranges import SeqRanges

Floats: TypeAlias = NDArray[np.float64]
NEIGHBOURS = 9
LARGEST = 1e300
"""A larger value counts as missing: sums of such overflow."""


@functools.lru_cache(maxsize=32_768)
def labels_of(series: str) -> Mapping[str, str]:
    """Return the labels of a recorded series; none if its name is malformed, as another machine may have sent it."""
    try:
        return split_series(series)[1]
    except ValueError:
        return {}


class Block(NamedTuple):
    """Samples ``seq`` to ``last_seq`` of one stream of one boot of one node, in order.

    ``t`` is Unix time and ``mono`` monotonic time in seconds. ``columns`` maps a series to one value a sample; NaN is
    a value that is not there. All arrays are of the same length and are not changed.
    """

    node_id: str
    boot: int
    stream: str
    seq: int
    t: Floats
    mono: Floats
    columns: Mapping[str, Floats]

    @property
    def last_seq(self) -> int:
        """The number of the last sample."""
        return self.seq + len(self.t) - 1

    def part(self, first_seq: int, last_seq: int) -> Block:
        """Return the samples from ``first_seq`` to ``last_seq``, both included."""
        low, high = max(0, first_seq - self.seq), max(0, last_seq - self.seq + 1)
        if low == 0 and high >= len(self.t):
            return self
        columns = {name: values[low:high] for name, values in self.columns.items()}
        return self._replace(seq=self.seq + low, t=self.t[low:high], mono=self.mono[low:high], columns=columns)


logger = logging.getLogger(__name__)

_EXACT = 2**53
"""Up to it every whole number has a floating point number."""

_DAMAGED = (zlib.error, struct.error, msgspec.DecodeError, ValueError, TypeError, LookupError, ArithmeticError)


class _Shape:
    """Rows of one length with the same series: numbers of all of them, and where each column of numbers belongs."""

    def __init__(self, first_seq: int, length: int, names: tuple[str, ...]) -> None:
        self.first_seq, self.length, self.names = first_seq, length, names
        self.rows = 0
        self._numbers = bytearray()
        self._packed = struct.Struct(f"{length}q").pack  # twice as fast as array and numpy are with a list
        self._packed_at: list[tuple[int, int, int, int]] = []
        self._written: list[Any] = []
        self._single: list[tuple[int, int, Any]] = []

    def goes_on(self, first_seq: int, length: int, names: tuple[str, ...]) -> bool:
        """Tell whether a row follows the last one and has the same shape."""
        is_next = first_seq == self.first_seq + self.rows * self.length
        return is_next and length == self.length and (names is self.names or names == self.names)

    def add(self, body: bytes, entries: Sequence[Any], start: int, places: Sequence[int]) -> None:
        """Take the columns of a row. Raises errors of damage, and then has taken nothing."""
        columns = []
        for place, entry in zip(places, entries, strict=True):
            if type(entry) is not int:
                columns.append((place, entry))
                continue
            if place >= 0:
                columns.append((place, msgspec.json.decode(inflated(body[start : start + entry]))))
            start += entry
        taken = [(place, column, self._numbers_of(column)) for place, column in columns if place >= 0]
        for place, column, numbers in taken:
            if isinstance(numbers, bytes):
                self._numbers += numbers
                self._packed_at.append((place, self.rows, column[0], column[2]))
                self._written.append(column)
            elif numbers is not None:
                self._single.append((place, self.rows, numbers))
        self.rows += 1

    def _numbers_of(self, column: Any) -> bytes | float | Floats | None:
        """Return the numbers of a column as packed, unless some are missing or too large, or all are equal."""
        decimals, numbers, unit = checked(column, self.length)
        if numbers is None:
            return None
        if type(numbers) is list and decimals != VERBATIM and type(unit) is int and 0 < unit < _EXACT:
            with contextlib.suppress(struct.error):  # there are nulls in it, or numbers beyond 64 bits
                return self._packed(*numbers)
        if type(numbers) is int and type(unit) is int:
            number = numbers * unit / 10**decimals if decimals > 0 else float(numbers * unit)
            return number if abs(number) <= LARGEST else math.nan
        return _floats(restored(column, self.length))

    def decoded(self, key: Key) -> Block:
        """Return the columns taken, which are of this stream."""
        values = np.full((len(self.names) + 2, self.rows, self.length), np.nan)
        if self._packed_at:
            place, row, decimals, unit = np.array(self._packed_at, dtype=np.int64).T
            values[place, row] = self._scaled(decimals, unit)
        for at, number, single in self._single:
            values[at, number] = single
        flat = values.reshape(len(values), -1)
        node_id, stream, boot = key
        columns = dict(zip(self.names, flat[2:], strict=True))
        return Block(node_id, boot, stream, self.first_seq, flat[0], flat[1], columns)

    def _scaled(self, decimals: NDArray[np.int64], unit: NDArray[np.int64]) -> Floats:
        whole = np.cumsum(np.frombuffer(self._numbers, dtype=np.int64).reshape(-1, self.length), axis=1)
        whole *= unit[:, None]
        scaled: Floats = whole / (10.0**decimals)[:, None]
        # Whole numbers that floating point has not exactly would be rounded twice.
        is_large = np.maximum(whole.max(axis=1), -whole.min(axis=1)) > _EXACT
        for number in np.flatnonzero(is_large & (decimals > 0)):
            scaled[number] = _floats(restored(self._written[number], self.length))
        return scaled


def _floats(values: Sequence[Any]) -> Floats:
    found = np.array(values, dtype=np.float64)
    found[np.abs(found) > LARGEST] = np.nan
    return found


BLOCK_SAMPLES = 8_192
BLOCK_VALUES = 2**20
"""A block takes 8 MiB at most, or one row of the recording."""
_WINDOW_SAMPLES = 65_536
"""Samples of several recordings that are compared at once."""


class Damage:
    """The samples that could not be read, each counted once."""

    def __init__(self) -> None:
        self._found: dict[Key, SeqRanges] = {}

    def add(self, key: Key, first_seq: int, last_seq: int) -> None:
        """Add samples of one stream, which may have been added before."""
        self._found.setdefault(key, SeqRanges()).add(first_seq, last_seq)

    def ranges(self) -> list[tuple[Key, int, int]]:
        """Return all of them, by stream and number."""
        return [(key, first, last) for key, found in self._found.items() for first, last in found]

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(found.total for found in self._found.values())


def read_blocks(
    recordings: Sequence[RecordingRows], key: Key, selection: RowSelection, damage: Damage
) -> Iterator[Block]:
    """Return the selected samples of a stream in order, each once. Raises StorageError."""
    if len(recordings) == 1:
        yield from _read(recordings[0], key, selection, damage)
        return
    reaches = [reach for recording in recordings for reach in recording.reaches(key)]
    last = min(selection.last_seq, max((reach.last_seq for reach in reaches), default=-1))
    first = max(selection.first_seq, min((reach.first_seq for reach in reaches), default=0))
    while first <= last:
        window = msgspec.structs.replace(selection, first_seq=first, last_seq=min(last, first + _WINDOW_SAMPLES - 1))
        yield from _once([_read(recording, key, window, damage) for recording in recordings])
        first = window.last_seq + 1


def _once(parts: Sequence[Iterator[Block]]) -> list[Block]:
    seen = SeqRanges()
    found: list[Block] = []
    for part in parts:
        for block in part:
            found += [block.part(low, high) for low, high in seen.absent(block.seq, block.last_seq)]
            seen.add(block.seq, block.last_seq)
    return sorted(found, key=lambda block: block.seq)


def _read(recording: RecordingRows, key: Key, selection: RowSelection, damage: Damage) -> Iterator[Block]:
    """Return the selected samples of one recording; a damaged row is left out, with a line in the log."""
    columns: dict[tuple[str, ...], tuple[tuple[str, ...], list[int]]] = {}
    shapes: list[_Shape] = []
    position, samples, values = selection.first_seq, 0, 0

    def taken() -> Iterator[Block]:
        nonlocal position
        parts = [shape.decoded(key) for shape in shapes]
        shapes.clear()
        for block in _joined(parts):
            # A row may begin before what is wanted, or before what was read when rows were merged meanwhile.
            if block.last_seq >= position and block.seq <= selection.last_seq:
                part = block.part(position, min(block.last_seq, selection.last_seq))
                position = part.last_seq + 1
                yield from _timed(part, selection, damage)

    for first, last, body in recording.rows(key, selection):
        length = last - first + 1
        try:
            names, entries, _, start = directory(body)
            if names not in columns:
                columns[names] = _places(names, selection.series)
            chosen, places = columns[names]
            goes_on = bool(shapes) and shapes[-1].goes_on(first, length, chosen)
            shape = shapes[-1] if goes_on else _Shape(first, length, chosen)
            shape.add(body, entries, start, places)
        except _DAMAGED as error:
            logger.warning("left out: samples %d to %d of stream %s of node %s are damaged: %s",
                           first, last, key[1], key[0], error)  # fmt: skip
            damage.add(key, first, last)
            continue
        if not goes_on:
            shapes.append(shape)
        samples += length
        values += length * (2 + len(chosen))
        if values >= BLOCK_VALUES or samples >= BLOCK_SAMPLES:
            yield from taken()
            samples = values = 0
    yield from taken()


def _places(names: tuple[str, ...], wanted: Chooser | None) -> tuple[tuple[str, ...], list[int]]:
    """Return the wanted names, and for each column of a row its place among the decoded ones, -1 for none."""
    chosen = tuple(name for name in names if wanted is None or wanted(name))
    numbers = {name: number for number, name in enumerate(chosen, start=2)}
    return chosen, [0, 1, *(numbers.get(name, -1) for name in names)]


def _joined(parts: Sequence[Block]) -> Iterator[Block]:
    """Return blocks of samples that follow each other without a gap."""
    run: list[Block] = []
    for part in parts:
        if run and part.seq != run[-1].last_seq + 1:
            yield _whole(run)
            run = []
        run.append(part)
    if run:
        yield _whole(run)


def _whole(run: Sequence[Block]) -> Block:
    if len(run) == 1:
        return run[0]
    t, mono = np.concatenate([one.t for one in run]), np.concatenate([one.mono for one in run])
    names = dict.fromkeys(name for one in run for name in one.columns)
    columns = dict(zip(names, np.full((len(names), len(t)), np.nan), strict=True))
    at = 0
    for one in run:
        for name, values in one.columns.items():
            columns[name][at : at + len(values)] = values
        at += len(one.t)
    return run[0]._replace(t=t, mono=mono, columns=columns)


def _timed(block: Block, selection: RowSelection, damage: Damage) -> Iterator[Block]:
    """Return the parts of a block between two times; several where the clock was set in between."""
    is_dated = (block.t >= CALENDAR[0]) & (block.t <= CALENDAR[1]) & ~np.isnan(block.mono)
    if not is_dated.all():
        logger.warning("left out: %d of samples %d to %d of stream %s of node %s have impossible times",
                       np.count_nonzero(~is_dated), block.seq, block.last_seq, block.stream, block.node_id)  # fmt: skip
        for low, high in _runs(~is_dated):
            damage.add((block.node_id, block.stream, block.boot), block.seq + low, block.seq + high - 1)
    low_t = -np.inf if selection.since_t is None else selection.since_t
    inside = is_dated & (block.t >= low_t) & (block.t <= (np.inf if selection.until_t is None else selection.until_t))
    if inside.all():
        yield block
        return
    for low, high in _runs(inside):
        yield block.part(block.seq + low, block.seq + high - 1)


def _runs(chosen: NDArray[np.bool_]) -> list[list[int]]:
    """Return the begin and the end of each run of chosen samples."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    found: list[list[int]] = edges.reshape(-1, 2).tolist()
    return found


def usual_distance(apart: Floats) -> Floats:
    """Return for each distance between two samples the median of those around it, as a node may change its interval."""
    if len(apart) < NEIGHBOURS:
        return np.full(len(apart), np.median(apart))
    around = np.pad(apart, NEIGHBOURS // 2, mode="reflect")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(around, NEIGHBOURS), axis=1))
