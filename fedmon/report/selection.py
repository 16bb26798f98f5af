"""The part of a source that becomes a table: its columns in a fixed order, and spans of time, read one by one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.errors import ConflictError, NotFoundError
from fedmon.common.ids import MIN_PREFIX, made_at
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, is_counter
from fedmon.common.store.recording import RecordedStream
from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import Reach, RecordingRows, RowSelection, chooser
from fedmon.common.text import joined, natural, short_ids, sound
from fedmon.report.blocks import Block, Damage, Floats, labels_of, read_blocks
from fedmon.report.rates import PERF_CLOCK, Rates, clock_of, is_by_perf_clock
from fedmon.report.source import JOB, Host, Source

Order = tuple[tuple[int, int, str], ...]
LABELS = ("job", "system", "partition", "env", "name")
"""The labels of a run that become separate columns, in this order."""
_PLACES = {name: place for place, name in enumerate(METRICS)}
_TOTAL, _PER_SECOND = "_total", "_per_second"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One series of one stream, or its growth a second; ``name`` is its column's."""

    name: str
    stream: str
    series: str
    is_rate: bool = False


ORIGIN = tuple(Column(name=name, stream="", series=name) for name in ("boot", "seq", "mono"))
"""Columns that tell which sample a row is; ``seq`` is its number in the stream of the job, where there is one."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The text columns of the rows of one node; ``labels`` are those of the plan.

    The label ``job`` stands only in rows of the times in ``job_times``, in Unix seconds, both ends included.
    """

    host: str
    labels: dict[str, str] = {}
    job_times: list[tuple[float, float]] = []


def columns(found: Iterable[tuple[str, Iterable[str]]], *, rates: bool) -> tuple[Column, ...]:
    """Return the columns of the series of streams, in the order of the metric table, then by labels.

    Series that the table does not know come last. With several jobs, or where another stream has a series too, a
    job's series gets the label ``job``. With ``rates`` each counter is followed by its growth a second.
    """
    streams: dict[str, dict[str, None]] = {}
    for stream, names in found:
        streams.setdefault(stream, {}).update(dict.fromkeys(names))
    jobs = [stream for stream in streams if stream.startswith(JOB)]
    plain = {stream: set(names) for stream, names in streams.items() if stream not in jobs}
    made: list[tuple[Order, Column]] = []
    for stream in sorted(streams, key=lambda stream: (stream in jobs, natural(stream))):
        for series in streams[stream]:
            others = [one for one, names in plain.items() if one != stream and series in names]
            label: dict[str, str] = {}
            if stream in jobs and (len(jobs) > 1 or others):
                label = {"job": stream.removeprefix(JOB)}
            elif any(one < stream for one in others):
                label = {"stream": stream}
            made += [
                (_order(name, series), Column(name=name, stream=stream, series=series, is_rate=is_rate))
                for name, is_rate in _names(series, label, rates=rates)
            ]
    made.sort(key=lambda one: one[0])
    return tuple(_told_apart([column for _, column in made]))


def _labelled(series: str, label: Mapping[str, str]) -> str:
    """Return a series with labels more; one that it has already is added as ``of_<label>``."""
    for name, value in label.items():
        own = name if f'{name}="' not in series else f"of_{name}"
        series = f'{series[:-1]},{own}="{value}"}}' if "{" in series else f'{series}{{{own}="{value}"}}'
    return series


def _names(series: str, label: Mapping[str, str], *, rates: bool) -> list[tuple[str, bool]]:
    name = sound(_labelled(series, label))
    found = [(name, False)]
    if rates and is_counter(series):
        metric, brace, rest = name.partition("{")
        found.append((f"{metric.removesuffix(_TOTAL)}{_PER_SECOND}{brace}{rest}", True))
    return found


def _order(name: str, series: str) -> Order:
    metric = metric_name(series)
    place = _PLACES.get(metric)
    known = (0, place, "") if place is not None else (1, 0, metric)
    labels = name.partition("{")[2]
    return (known, *natural(labels), (-1, int(name.startswith(f"{metric.removesuffix(_TOTAL)}{_PER_SECOND}")), ""))


def _told_apart(made: list[Column]) -> list[Column]:
    """Return columns of which no two have the same name, should a plug-in call a series like the growth of another."""
    taken: set[str] = set()
    found: list[Column] = []
    for column in made:
        name, number = column.name, 1
        while name in taken:
            number += 1
            name = f"{column.name}_{number}"
        taken.add(name)
        found.append(msgspec.structs.replace(column, name=name))
    return found


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one node from ``since_t`` to ``until_t``, both included.

    ``ranges`` has the streams with samples among them, and the first and last number that may be. ``rows`` is how many
    there are at most.
    """

    node_id: str
    since_t: float
    until_t: float
    ranges: list[tuple[Key, int, int]]
    rows: int


def spans(
    node_id: str, reaches: Mapping[Key, Sequence[Reach]], *, since_t: float, until_t: float, rows: int
) -> Iterator[Span]:
    """Cut the recordings of one node into spans of about this number of rows, by time.

    ``reaches`` are the extents of the rows of its recordings. ``until_t`` is included.
    """
    tables = {key: _within(np.array(found, dtype=np.float64).reshape(-1, 4), since_t, until_t)
              for key, found in reaches.items()}  # fmt: skip
    begins = [since_t, *_cuts([*tables.values()], since_t, rows)]
    ends = [*(math.nextafter(cut, -math.inf) for cut in begins[1:]), until_t]
    for low, high in zip(begins, ends, strict=True):
        ranges: list[tuple[Key, int, int]] = []
        most = 0
        for key, table in tables.items():
            found = _within(table, low, high)
            if len(found):
                first_seq, last_seq = int(found[:, 0].min()), int(found[:, 1].max())
                ranges.append((key, first_seq, last_seq))
                most += last_seq - first_seq + 1
        if ranges:
            yield Span(node_id=node_id, since_t=low, until_t=high, ranges=ranges, rows=most)


def _within(reaches: Floats, since_t: float, until_t: float) -> Floats:
    """Return the extents of rows, which are those of `Reach`, that lie between two times in part."""
    is_whole = reaches[:, 1] >= reaches[:, 0]  # damage may leave anything
    return reaches[is_whole & (reaches[:, 3] >= since_t) & (reaches[:, 2] <= until_t)]


def _cuts(tables: Sequence[Floats], since_t: float, rows: int) -> list[float]:
    """Return times at which a row begins, with about this number of samples between them."""
    first_seq, last_seq, low_t, _ = np.concatenate([np.empty((0, 4)), *tables]).T
    order = np.argsort(low_t, kind="stable")
    lengths = (last_seq - first_seq + 1)[order]
    found: list[float] = []
    taken, last = 0.0, since_t
    for at, low in zip((np.cumsum(lengths) - lengths).tolist(), low_t[order].tolist(), strict=True):
        if at - taken >= rows and low > last:
            found.append(low)
            taken, last = at, low
    return found


_SPAN_ROWS = 4_096
_SPAN_VALUES = 2**20
_LATEST = 2.0**1023
"""Infinity has no place in JSON, and plans are sent to other processes."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a table is read: its columns, the facts known before a sample is read, and spans in the order of its rows."""

    columns: tuple[Column, ...]
    others: frozenset[str]
    """Series of other jobs: samples that have values of these alone are no rows."""
    labels: tuple[str, ...]
    owners: dict[str, Owner]
    rates: bool
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """How many rows there are at most."""
        return sum(span.rows for span in self.spans)


def plan(
    source: Source,
    *,
    metrics: Sequence[str] | None = None,
    job: str | None = None,
    rates: bool = True,
    since_t: float | None = None,
    until_t: float | None = None,
    origin: bool = False,
) -> Plan:
    """Look up the columns and times of a table; parameters as those of `fedmon.report.WideTable`.

    Raises NotFoundError for a job that is not there, and StorageError.
    """
    job = None if job is None else find_job(source, job)
    keys = source.keys
    if job is not None:
        nodes = {node_id for node_id, stream, _ in keys if stream == JOB + job}
        keys = [key for key in keys if key[0] in nodes and (not key[1].startswith(JOB) or key[1] == JOB + job)]
    wanted, is_own = chooser(metrics), of_job(source, job)
    filled = (
        {name for block in source.blocks() for name, values in block.columns.items() if not np.isnan(values).all()}
        if origin
        else None
    )
    found: dict[str, dict[Key, list[str]]] = defaultdict(dict)
    others: set[str] = set()
    for key in keys:
        names = dict.fromkeys(name for rows in source.readers_of(key) for name in rows.series(key))
        own = [name for name in names if is_own(name)]
        others.update(names.keys() - own)
        chosen = [name for name in own if (wanted is None or wanted(name)) and (filled is None or name in filled)]
        if chosen:
            found[key[0]][key] = chosen
    made = columns(((key[1], names) for each in found.values() for key, names in each.items()), rates=rates)
    if origin:
        made = (*ORIGIN, *made)
    rows = max(256, min(_SPAN_ROWS, _SPAN_VALUES // max(1, len(made))))
    jobs = {stream for _, stream, _ in keys if stream.startswith(JOB)}
    hosts = sorted(source.hosts, key=lambda host: (natural(host.name), host.node_id))
    runs: dict[str, list[RecordedStream]] = defaultdict(list)
    for one in source.streams:
        if jobs == {one.stream}:
            runs[one.node_id].append(one)
    owners = {host.node_id: _owner(host, runs[host.node_id]) for host in hosts}
    used = {label for owner in owners.values() for label in owner.labels}
    cut: list[Span] = []
    for host in hosts:
        reaches = {
            key: [reach for one in source.readers_of(key) for reach in one.reaches(key)] for key in found[host.node_id]
        }
        low, high = -_LATEST if since_t is None else since_t, _LATEST if until_t is None else until_t
        times = owners[host.node_id].job_times
        if job is not None and times:
            low, high = max(low, min(begin for begin, _ in times)), min(high, max(end for _, end in times))
        cut += spans(host.node_id, reaches, since_t=low, until_t=high, rows=rows)
    labels = tuple(label for label in LABELS if label in used)
    return Plan(columns=made, others=frozenset(others), labels=labels, owners=owners, rates=rates, spans=tuple(cut))


def known_jobs(source: Source) -> list[str]:
    """Name every job of which there are samples, or at least a description: runs last, in the order they were made."""
    known = {*source.job_ids, *(key for host in source.hosts for key in host.jobs)}
    return sorted(known, key=lambda key: ((2, 0, key),) if made_at(key) else natural(key))


def find_job(source: Source, job: str) -> str:
    """Return the key of a job by its key, its scheduler's id or the beginning of a run's id.

    Raises NotFoundError, and ConflictError if several fit.
    """
    known = known_jobs(source)
    if job in known:
        return job
    called = [key for key in known if any(str(host.jobs.get(key, {}).get("job_id")) == job for host in source.hosts)]
    if not called and len(job) >= MIN_PREFIX:
        called = [key for key in known if made_at(key) and key.startswith(job)]
    if len(called) == 1:
        return called[0]
    if called:
        raise ConflictError(f"{job!r} matches {len(called)} jobs: {named(called)}")
    raise NotFoundError(f"no job {job!r} in the recording; it has {named(known)}")


def of_job(source: Source, job: str | None) -> Callable[[str], bool]:
    """Return the filter of series for a job, or none: without the values that other jobs reported at the same time."""
    others = set() if job is None else set(known_jobs(source)) - {job}
    return lambda series: not series.startswith("user_") or labels_of(series).get("job") not in others


def named(ids: Sequence[str]) -> str:
    """Name the first of some jobs or hosts, those that are run ids by their beginnings."""
    return joined([*short_ids(ids).values()], most=9) or "none"


def _owner(host: Host, runs: Sequence[RecordedStream]) -> Owner:
    """Return the labels of a host's rows; if there is one job alone, also its id, while it ran there."""
    labels = {name: sound(text) for name, text in host.labels.items() if name in LABELS and text}
    times: dict[int, tuple[float, float]] = {}
    for one in runs:
        low, high = times.get(one.boot, (one.oldest_t, one.last_t))
        times[one.boot] = min(low, one.oldest_t), max(high, one.last_t)
        labels["job"] = sound(one.stream.removeprefix(JOB))
    return Owner(host=sound(host.name), labels=labels, job_times=list(times.values()))


class SpanRows(NamedTuple):
    """Rows of one node by time: Unix time of each, and a row of ``values`` for each column; NaN is no value."""

    t: Floats
    values: Floats


class SpanReader:
    """Reads spans of recordings into columns; for one thread.

    It keeps nothing from span to span: a rate at the begin of one is found by reading back to the value before.
    Samples that are left out are added to ``damage``. Raises StorageError.
    """

    def __init__(self, recordings: Sequence[RecordingRows], plan: Plan, damage: Damage) -> None:
        self._recordings, self._damage, self._others = recordings, damage, plan.others
        self._width = len(plan.columns)
        self._values: dict[str, dict[str, int]] = {}
        self._rates: dict[str, dict[str, int]] = {}
        for number, column in enumerate(plan.columns):
            places = self._rates if column.is_rate else self._values
            places.setdefault(column.stream, {})[column.series] = number
        self._origin = self._values.pop("", {})
        self._numbered = next((stream for stream in self._values if stream.startswith(JOB)), "host")

    def read(self, span: Span) -> SpanRows:
        """Return the rows of a span."""
        parts = [part for key, first, last in span.ranges for part in self._columns(span, key, first, last)]
        if not parts:
            return SpanRows(np.empty(0), np.empty((self._width, 0)))
        places, t, repeats = _rows([block for block, _ in parts])
        values, is_of_others = np.full((self._width, len(t)), np.nan), np.ones(len(t), dtype=np.bool_)
        begin = 0
        for block, columns in parts:
            rows = places[begin : begin + len(block.t)]
            begin += len(rows)
            # Writing to a slice is a copy of memory; writing to places one by one takes ten times as long.
            is_slice = bool((np.diff(rows) == 1).all())
            target = slice(int(rows[0]), int(rows[-1]) + 1) if is_slice else rows
            for place, column in columns.items():
                values[place, target] = column
            others = [block.columns[name] for name in block.columns.keys() & self._others]
            is_of_others[target] &= ~np.isnan(others).all(axis=0)
        return _joined(t, values, repeats, is_of_others)

    def _columns(
        self, span: Span, key: Key, first_seq: int, last_seq: int
    ) -> Iterator[tuple[Block, dict[int, Floats]]]:
        """Return the blocks of a stream in a span, and by place the columns that they fill."""
        stream = key[1]
        values, rates = self._values.get(stream, {}), self._rates.get(stream, {})
        wanted = values.keys() | rates.keys() | ({PERF_CLOCK} if any(map(is_by_perf_clock, rates)) else set())
        recordings = [recording for recording in self._recordings if recording.holds(key)]
        selection = RowSelection(first_seq=first_seq, last_seq=last_seq, since_t=span.since_t, until_t=span.until_t,
                                 series=(wanted | self._others).__contains__)  # fmt: skip
        growth, end = Rates(), -1
        for block in read_blocks(recordings, key, selection, self._damage):
            if rates and block.seq != end + 1:
                _begin(growth, recordings, key, block, [name for name in rates if name in block.columns], end)
            end = block.last_seq
            columns = {values[name]: column for name, column in block.columns.items() if name in values}
            columns |= {place: growth.of(block, name) for name, place in rates.items() if name in block.columns}
            if self._origin:
                told = {"boot": np.full(len(block.t), float(block.boot)), "mono": block.mono}
                if stream == self._numbered:
                    told["seq"] = np.arange(block.seq, block.last_seq + 1, dtype=np.float64)
                columns |= {self._origin[name]: each for name, each in told.items()}
            yield block, columns


def _rows(blocks: Sequence[Block]) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp]]:
    """Return the row of each sample, the time of each row, and the rows of the same instant as the one before.

    Samples of one boot share a row when they have both clocks in common, unless they are of one stream.
    """
    t = np.concatenate([block.t for block in blocks])
    if len(blocks) == 1 and bool((np.diff(t) > 0).all()):
        return np.arange(len(t)), t, np.zeros(0, dtype=np.intp)
    lengths = [len(block.t) for block in blocks]
    streams = {block.stream: number for number, block in enumerate(blocks)}
    mono = np.concatenate([block.mono for block in blocks])
    boot = np.repeat([block.boot for block in blocks], lengths)
    stream = np.repeat([streams[block.stream] for block in blocks], lengths)
    order = np.lexsort((stream, mono, boot, t))
    again = np.zeros(len(t), dtype=np.intp)
    again[order[1:]] = ~_changes(order, t, boot, mono, stream)
    if again.any():  # numbers the samples that a stream has of one instant
        at = np.cumsum(again[order])
        again[order] = at - np.maximum.accumulate(np.where(again[order] == 0, at, 0))
        order = np.lexsort((again, mono, boot, t))
    new = np.concatenate([[True], _changes(order, t, boot, mono, again)])
    places = np.empty(len(t), dtype=np.intp)
    places[order] = np.cumsum(new) - 1
    return places, t[order][new], np.flatnonzero(again[order][new])


def _joined(t: Floats, values: Floats, repeats: NDArray[np.intp], is_of_others: NDArray[np.bool_]) -> SpanRows:
    """Put ``repeats`` into the row before, unless that has a value of the same column already.

    A program that reports many values at once sends several samples of one instant. Rows of others without one go.
    """
    kept = np.ones(len(t), dtype=bool)
    into = 0
    for row in repeats.tolist():
        into = row - 1 if kept[row - 1] else into
        known = ~np.isnan(values[:, row])
        if np.isnan(values[known, into]).all():
            values[known, into] = values[known, row]
            kept[row] = False
    kept[is_of_others] &= ~np.isnan(values[:, is_of_others]).all(axis=0)
    return SpanRows(t, values) if kept.all() else SpanRows(t[kept], values[:, kept])


def _changes(order: NDArray[np.intp], *keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell of each sample in order but the first whether one of these differs from the one before."""
    changed: NDArray[np.bool_] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return changed


def _begin(
    growth: Rates, recordings: Sequence[RecordingRows], key: Key, block: Block, names: Sequence[str], read_to: int
) -> None:
    """Set the readings of counters before a block, at any distance; up to ``read_to`` they are known already."""
    wanted = {name for name in names if not np.isnan(block.columns[name]).all()}
    position = block.seq
    while wanted and position > read_to + 1:
        rows = [row for one in recordings if (row := one.before(key, position)) is not None]
        if not rows:
            return
        first, last = max(rows, key=lambda row: min(row[1], position - 1))
        if min(last, position - 1) <= read_to:
            return
        chosen = {*wanted, PERF_CLOCK}.__contains__
        selection = RowSelection(first_seq=first, last_seq=position - 1, series=chosen)
        for before in reversed(list(read_blocks(recordings, key, selection, Damage()))):
            for name in wanted & before.columns.keys():
                values, times = before.columns[name], clock_of(name, before.columns, before.mono)
                known = np.flatnonzero(~(np.isnan(values) | np.isnan(times)))
                if len(known):
                    growth.begin(block, name, float(times[known[-1]]), float(values[known[-1]]))
                    wanted.discard(name)
        position = first
