"""Tables in the words of another tool: places of recordings, and how each column follows from metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

from fedmon.common.metrics.series import metric_name
from fedmon.common.text import natural
from fedmon.report.blocks import Floats
from fedmon.report.export import VIEW
from fedmon.report.selection import ORIGIN, Plan, SpanReader, find_job, known_jobs, plan
from fedmon.report.source import HOST, JOB, Host, Source

if TYPE_CHECKING:
    import pyarrow as pa


class Instants(NamedTuple):
    """All samples of one job on one machine, by boot and monotonic time; all arrays are of the same length.

    ``t`` is Unix and ``mono`` monotonic time in seconds. ``host`` and ``job`` are the series of the machine and of the
    job that have any value; NaN is a value that is not there.
    """

    t: Floats
    mono: Floats
    boot: Floats
    host: Mapping[str, Floats]
    job: Mapping[str, Floats]

    @property
    def interval_s(self) -> float | None:
        """The usual distance of two samples in seconds; None with fewer than two."""
        apart = np.diff(self.mono)[np.diff(self.boot) == 0]
        return round(float(np.median(apart)), 3) if len(apart) else None

    def rows(self, names: Sequence[str], *, is_of_job: bool) -> Floats | None:
        """Return series of the machine, or of the job if ``is_of_job`` or named `job_*`; None if one is missing."""
        found = [(self.job if is_of_job or name.startswith("job_") else self.host).get(name) for name in names]
        return None if any(row is None for row in found) else np.array(found)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one machine, or a machine on which there is no job; ``plan`` is how it is read."""

    host: Host
    job: str | None
    plan: Plan

    def instants(self, source: Source) -> Instants:
        """Read it all. Raises StorageError."""
        reader = SpanReader(source.readers, self.plan, source.damage)
        parts = [reader.read(span) for span in self.plan.spans]
        t = np.concatenate([np.zeros(0), *(part.t for part in parts)])

        def read(number: int) -> Floats:
            return np.concatenate([np.zeros(0), *(part.values[number] for part in parts)])

        boot, mono = read(0), read(2)
        order = np.lexsort((mono, boot))
        found: dict[str, dict[str, Floats]] = {}
        for number, column in enumerate(self.plan.columns):
            row = read(number)  # one by one: all of them at once are twice in memory
            if not np.isnan(row).all():
                found.setdefault(column.stream, {})[column.series] = row[order]
        job = found.get(f"{JOB}{self.job}", {})
        return Instants(t[order], mono[order], boot[order], found.get(HOST, {}), job)


def survey(source: Source, job: str | None, *, metrics: Sequence[str]) -> list[Place]:
    """Return every place of one job, or of all, by job and host; ``metrics`` are names or globs.

    ``job`` is its name at its scheduler or in its stream. Raises NotFoundError when there is nothing of that job.
    """
    key = None if job is None else find_job(source, job)
    places: list[Place] = []
    seen: set[str] = set()
    for one in known_jobs(source) if key is None else [key]:
        nodes = {each.node_id for each in source.streams if each.stream == JOB + one}
        # A host that knows the job and has no sample of it is shown with all of its own.
        known = {host.node_id for host in source.hosts if one in host.jobs} - nodes
        places += [*_places(source, one, nodes, metrics), *_places(source, None, known, metrics, called=one)]
        seen |= nodes | known
    if key is None:
        places += _places(source, None, {host.node_id for host in source.hosts} - seen, metrics)
    return sorted(places, key=lambda place: (natural(place.job or ""), natural(place.host.name)))


def _places(
    source: Source, job: str | None, nodes: set[str], metrics: Sequence[str], *, called: str | None = None
) -> Iterator[Place]:
    if not nodes:
        return
    made = plan(source, metrics=metrics, job=job, rates=False)
    columns = (*ORIGIN, *(column for column in made.columns if column.stream in (HOST, f"{JOB}{job}")))
    for host in source.hosts:
        if host.node_id in nodes:
            spans = tuple(span for span in made.spans if span.node_id == host.node_id)
            yield Place(host=host, job=job or called, plan=msgspec.structs.replace(made, columns=columns, spans=spans))


class ViewQuantity(Protocol):
    """A number that another tool reports."""

    def values(self, at: Instants) -> Floats | None:
        """Compute it for a place; NaN is an unknown value. None if it cannot be told at all."""


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """A function of some series, by default their sum, times a factor; NaN if one is unknown."""

    series: tuple[str, ...]
    compute: Callable[..., Floats] = lambda *rows: np.sum(rows, axis=0)
    times: float = 1.0
    is_of_job: bool = False

    def values(self, at: Instants) -> Floats | None:
        """Return the result of the function."""
        rows = at.rows(self.series, is_of_job=self.is_of_job)
        if rows is None:
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self.compute(*rows) * self.times
        return np.where(np.isfinite(found), found, np.nan)


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of the machine, all of its instances together or one series, that never falls.

    It begins with the sum of the instances, or with 0 if ``from_zero``, and grows by the amount each of them
    grew from one reading to the next: one that restarts or comes later adds nothing at that moment, one that is gone
    keeps its share. The sum is unknown while an instance that is still there was not read.
    """

    metric: str
    times: float = 1.0
    from_zero: bool = False

    def values(self, at: Instants) -> Floats | None:
        """Return the sum over the instances."""
        found = [row for name, row in at.host.items() if self.metric in (name, metric_name(name))]
        if not found:
            return None
        is_there = (~np.isnan(found)).any(axis=0)
        return np.where(is_there, np.sum([self._counted(row) for row in found], axis=0), np.nan) * self.times

    def _counted(self, readings: Floats) -> Floats:
        """Return the count of one instance: 0 before it came, NaN if it was missed, and its last after it is gone."""
        known = np.flatnonzero(~np.isnan(readings))
        begin = 0.0 if self.from_zero or known[0] else readings[0]
        total = np.full(len(readings), np.nan)
        total[: known[0]] = 0.0
        total[known] = begin + np.cumsum(np.maximum(np.diff(readings[known], prepend=readings[known[0]]), 0.0))
        total[known[-1] :] = total[known[-1]]
        return total


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How much counters grew since the reading before, together; with ``clock`` only where that counter grew too.

    ``per_second`` divides by the growth of ``clock``, or by the time that passed.
    """

    series: tuple[str, ...]
    clock: str | None = None
    times: float = 1.0
    per_second: bool = False
    is_of_job: bool = False

    def values(self, at: Instants) -> Floats | None:
        """Return the growth."""
        names = self.series if self.clock is None else (*self.series, self.clock)
        rows = at.rows(names, is_of_job=self.is_of_job)
        if rows is None:
            return None
        times = at.mono if self.clock is None else rows[-1]
        known = np.flatnonzero(~np.isnan(rows).any(axis=0))
        steps, passed = np.diff(rows[: len(self.series), known]), np.diff(times[known])
        # A counter that went back was restarted; its count in between is unknown.
        is_growth = (steps >= 0).all(axis=0) & (passed > 0) & (np.diff(at.boot[known]) == 0)
        grown = np.full(len(at.t), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            total = steps.sum(axis=0) * self.times / (passed if self.per_second else 1.0)
        grown[known[1:]] = np.where(is_growth, total, np.nan)
        return grown


LABELS: Mapping[str, str] = {"system": "System", "partition": "Partition", "env": "Environment", "name": "Name"}
"""Columns of the owner's words for a run."""


class ViewColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column: ``path`` are its keys in JSON, from the outermost, ``header`` its name in tables.

    In tables the value of JSON is multiplied by ``table_times``, for columns that had another unit there. ``is_whole``
    says that the quantity has no fractions.
    """

    path: tuple[str, ...]
    header: str
    quantity: ViewQuantity
    table_times: float = 1.0
    is_whole: bool = True


class ViewSection(msgspec.Struct, frozen=True, kw_only=True):
    """The ``rows`` of one host or pseudo host, called ``name``, with the columns that were measured there.

    ``interval_s`` is the usual distance of two samples.
    """

    name: str
    place: Place
    columns: tuple[ViewColumn, ...]
    rows: int
    interval_s: float | None

    def read(self, at: Instants) -> Iterator[tuple[ViewColumn, Floats]]:
        """Return each column with its values at the instants of its place."""
        missing = np.full(len(at.t), np.nan)
        for column in self.columns:
            values = column.quantity.values(at)
            yield column, missing if values is None else values


def section(name: str, place: Place, columns: Iterable[ViewColumn], at: Instants) -> Iterator[ViewSection]:
    """Yield the section of a place if any column can be told of it; of several ways to tell one, the first."""
    found: dict[tuple[str, ...], ViewColumn] = {}
    for column in columns:
        if column.path not in found and column.quantity.values(at) is not None:
            found[column.path] = column
    if found:
        yield ViewSection(name=name, place=place, columns=tuple(found.values()), rows=len(at.t),
                          interval_s=at.interval_s)  # fmt: skip


def by_place(source: Source, sections: Sequence[ViewSection]) -> Iterator[tuple[ViewSection, Instants]]:
    """Return sections with the instants of their place, which are read once for neighbours."""
    for _, same in itertools.groupby(sections, key=lambda one: id(one.place)):
        first = next(same)
        at = first.place.instants(source)
        yield from ((one, at) for one in (first, *same))


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the columns for place and time; an empty name leaves one out."""

    host: str
    seconds: str = ""
    time: str
    job: str


class ViewTable:
    """A Table (see `fedmon.report.frames`) of sections, one after the other; within one, rows are by time."""

    def __init__(self, name: str, names: Names, source: Source, sections: Sequence[ViewSection]) -> None:
        self.name = name
        self.sections = tuple(sections)
        self._names, self._source = names, source
        self.headers = list(dict.fromkeys(column.header for section in self.sections for column in section.columns))
        said = {name for section in self.sections for name, text in self._said(section).items() if text}
        self._texts = [name for name in (names.job, *LABELS.values()) if name in said]

    @property
    def rows(self) -> int:
        """How many rows there will be."""
        return sum(section.rows for section in self.sections)

    @property
    def schema(self) -> pa.Schema:
        """The columns: where and when, the owner's labels, then all metrics that any host measured."""
        import pyarrow as pa

        seconds = [(self._names.seconds, pa.int64())] if self._names.seconds else []
        fields = [(self._names.host, pa.string()), *seconds, (self._names.time, pa.timestamp("us", tz="UTC"))]
        fields += [(name, pa.string()) for name in self._texts]
        fields += [(name, pa.float64()) for name in self.headers]
        return pa.schema(fields, metadata={VIEW: self.name})

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows. Raises StorageError when a recording cannot be read."""
        import pyarrow as pa

        schema = self.schema
        for section, at in by_place(self._source, self.sections):
            count = len(at.t)
            found: dict[str, pa.Array] = {
                column.header: pa.array(values * column.table_times, from_pandas=True)
                for column, values in section.read(at)
            }
            found |= {
                name: pa.repeat(pa.scalar(text, pa.string()), count) for name, text in self._said(section).items()
            }
            found[self._names.seconds] = pa.array(np.floor(at.t).astype(np.int64))
            found[self._names.time] = pa.array(
                np.round(at.t * 1e6).astype(np.int64), schema.field(self._names.time).type
            )
            missing = pa.nulls(count, pa.float64())
            yield pa.record_batch([found.get(name, missing) for name in schema.names], schema=schema)

    def _said(self, section: ViewSection) -> dict[str, str | None]:
        """Return the text columns of a section's rows."""
        labels = section.place.host.labels
        said = {word: labels.get(label) or None for label, word in LABELS.items()}
        return {self._names.host: section.name, self._names.job: section.place.job} | said
