"""Tables in the words of another tool: how each column follows from our metrics, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from fedmon.common.metrics.series import metric_name
from fedmon.report.blocks import Block, Floats
from fedmon.report.rates import Rates
from fedmon.report.source import Source
from fedmon.report.views.places import Instants, Moment, Place

if TYPE_CHECKING:
    import pyarrow as pa


Reader = Callable[[Instants], Floats]


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """The series of the machine and of the job that a quantity needs."""

    host: frozenset[str] = frozenset()
    job: frozenset[str] = frozenset()


class Quantity(Protocol):
    """A number that another tool reports."""

    def uses(self, place: Place) -> Uses | None:
        """Return which series it needs of those that a place has; None if it cannot be told."""
        ...

    def reader(self, place: Place) -> Reader:
        """Return the function that computes it for one place, from all instants in order; NaN is an unknown value."""
        ...


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of some series, times a factor; unknown when one of them is."""

    series: tuple[str, ...]
    times: float = 1.0
    is_of_job: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need all of them."""
        return _all(self.series, place, is_of_job=self.is_of_job)

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return the sum."""

        def read(at: Instants) -> Floats:
            values = [at.of_job(name) if self.is_of_job else at.of_host(name) for name in self.series]
            total: Floats = np.sum(values, axis=0) * self.times
            return total

        return read


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """A counter of the machine, all of its instances together or one series, that never falls.

    It begins with the sum of the instances, or with 0 if ``from_zero``, and grows by the amount each of them
    grew from one reading to the next: one that restarts or comes later adds nothing at that moment, one that is gone
    keeps its share. The sum is unknown while an instance that is still there was not read.
    """

    metric: str
    times: float = 1.0
    from_zero: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need every instance there is."""
        names = frozenset(name for name in place.of_host if self.metric in (name, metric_name(name)))
        return Uses(host=names) if names else None

    def reader(self, place: Place) -> Reader:
        """Return the sum over the instances."""
        uses = self.uses(place)
        names = sorted(uses.host if uses else ())
        parts = [_Instance(name, place.of_host[name], from_zero=self.from_zero) for name in names]

        def read(at: Instants) -> Floats:
            values = np.stack([part.read(at) for part in parts])
            is_there = np.stack([part.is_there for part in parts]).any(axis=0)
            return np.where(is_there, values.sum(axis=0), np.nan) * self.times

        return read


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """A function of some series of the machine and of the job, in this order; NaN if one is unknown."""

    compute: Callable[..., Floats]
    host: tuple[str, ...] = ()
    job: tuple[str, ...] = ()

    def uses(self, place: Place) -> Uses | None:
        """Need all of them."""
        if not set(self.host) <= place.of_host.keys() or not set(self.job) <= place.of_job.keys():
            return None
        return Uses(host=frozenset(self.host), job=frozenset(self.job))

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return the result of the function."""

        def read(at: Instants) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                values = self.compute(*map(at.of_host, self.host), *map(at.of_job, self.job))
            return np.where(np.isfinite(values), values, np.nan)

        return read


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How much counters grew since the reading before, together; with ``clock`` only where that counter grew too.

    ``per_second`` divides by the growth of ``clock``, or by the time that passed.
    """

    series: tuple[str, ...]
    clock: str | None = None
    times: float = 1.0
    per_second: bool = False
    is_of_job: bool = False

    def uses(self, place: Place) -> Uses | None:
        """Need all of them, and the clock."""
        wanted = self.series if self.clock is None else (*self.series, self.clock)
        return _all(wanted, place, is_of_job=self.is_of_job)

    def reader(self, place: Place) -> Reader:  # noqa: ARG002
        """Return the growth."""
        rates = Rates()

        def read(at: Instants) -> Floats:
            columns = at.job if self.is_of_job else at.host
            names = self.series if self.clock is None else (*self.series, self.clock)
            if any(name not in columns for name in names):
                return np.full(len(at.t), np.nan)
            block = Block(at.node_id, at.boot, "", 0, at.t, at.mono, columns)
            found = {name: rates.of(block, name) for name in names}
            if self.clock is None:
                rows = [found[name].per_second if self.per_second else found[name].increase for name in self.series]
                total: Floats = np.sum(rows, axis=0) * self.times
                return total
            clock = found[self.clock].increase
            grown = np.sum([found[name].increase for name in self.series], axis=0)
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.where(clock > 0, (grown / clock if self.per_second else grown) * self.times, np.nan)

        return read


class _Instance:
    """One instance of a counter, followed over restarts."""

    def __init__(self, series: str, end: Moment, *, from_zero: bool) -> None:
        self._series, self._end, self._from_zero = series, end, from_zero
        self._last: float | None = None
        self._total = 0.0
        self._is_first = True
        self.is_there = np.zeros(0, dtype=bool)

    def read(self, at: Instants) -> Floats:
        """Return its count; NaN if it was missed, 0 before it came, and its last after it is gone."""
        raw = at.of_host(self._series)
        self.is_there = ~np.isnan(raw)
        known = np.flatnonzero(self.is_there)
        total = np.full(len(raw), np.nan)
        if self._last is None:
            total[: known[0] if len(known) else len(raw)] = 0.0
        if len(known):
            readings = raw[known]
            if self._last is None:
                # What is there from the begin counts as it is, what comes later from then on.
                begins = self._is_first and known[0] == 0 and not self._from_zero
                self._last, self._total = float(readings[0]), float(readings[0]) if begins else 0.0
            grown = np.diff(readings, prepend=self._last)
            total[known] = self._total + np.cumsum(np.where(grown > 0, grown, 0.0))
            self._last, self._total = float(readings[-1]), float(total[known[-1]])
        self._is_first = self._is_first and not len(raw)
        is_gone = (at.mono > self._end[1]) if at.boot == self._end[0] else np.full(len(raw), at.boot > self._end[0])
        total[np.isnan(total) & is_gone] = self._total
        return total


def _all(names: Collection[str], place: Place, *, is_of_job: bool) -> Uses | None:
    known = place.of_job if is_of_job else place.of_host
    if any(name not in known for name in names):
        return None
    return Uses(job=frozenset(names)) if is_of_job else Uses(host=frozenset(names))


VIEW = "fedmon.view"
"""The key of a schema's metadata which says that columns are not called after series."""
LABELS: Mapping[str, str] = {"system": "System", "partition": "Partition", "env": "Environment", "name": "Name"}
"""Columns of the owner's words for a run."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column: ``path`` are its keys in JSON, from the outermost, ``header`` its name in tables.

    In tables the value of JSON is multiplied by ``table_times``, for columns that had another unit there. ``is_whole``
    says that the quantity has no fractions.
    """

    path: tuple[str, ...]
    header: str
    quantity: Quantity
    table_times: float = 1.0
    is_whole: bool = True


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one host or pseudo host, called ``name``, with the columns that were measured there."""

    name: str
    place: Place
    columns: tuple[Column, ...]


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the columns for place and time; an empty name leaves one out."""

    host: str
    seconds: str = ""
    time: str
    job: str


class ViewTable:
    """A Table (see `fedmon.report.frames`) of sections, one after the other; within one, rows are by time."""

    def __init__(self, name: str, names: Names, source: Source, sections: Sequence[Section]) -> None:
        self.name = name
        self.sections = tuple(sections)
        self._names, self._source = names, source
        headers = (column.header for section in self.sections for column in section.columns)
        self.headers = list(dict.fromkeys(headers))
        self._labels = [label for label in LABELS if any(section.place.host.labels.get(label) for section in sections)]
        self._has_job = any(section.place.job is not None for section in sections)

    @property
    def rows(self) -> int:
        """How many rows there will be at most."""
        return sum(section.place.rows for section in self.sections)

    @property
    def schema(self) -> pa.Schema:
        """The columns: where and when, the owner's labels, then all metrics that any host measured."""
        import pyarrow as pa

        fields = [pa.field(self._names.host, pa.string())]
        if self._names.seconds:
            fields.append(pa.field(self._names.seconds, pa.int64()))
        fields.append(pa.field(self._names.time, pa.timestamp("us", tz="UTC")))
        words = [*([self._names.job] if self._has_job else []), *(LABELS[label] for label in self._labels)]
        fields += [pa.field(word, pa.string()) for word in words]
        fields += [pa.field(header, pa.float64()) for header in self.headers]
        return pa.schema(fields, metadata={VIEW: self.name})

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows. Raises StorageError when a recording cannot be read."""
        import pyarrow as pa

        schema = self.schema
        for section in self.sections:
            labels = section.place.host.labels
            words = [
                *([section.place.job] if self._has_job else []),
                *(labels.get(one) or None for one in self._labels),
            ]
            for at, values in read(self._source, section):
                count = len(at.t)
                arrays = [pa.repeat(pa.scalar(section.name, pa.string()), count)]
                if self._names.seconds:
                    arrays.append(pa.array(np.floor(at.t).astype(np.int64)))
                arrays.append(pa.array(np.round(at.t * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC")))
                arrays += [pa.repeat(pa.scalar(word, pa.string()), count) for word in words]
                shown = {
                    column.header: one * column.table_times for column, one in zip(section.columns, values, strict=True)
                }
                missing = np.full(count, np.nan)
                arrays += [pa.array(shown.get(one, missing), pa.float64(), from_pandas=True) for one in self.headers]
                yield pa.record_batch(arrays, schema=schema)


def measured(columns: Sequence[Column], place: Place) -> tuple[Column, ...]:
    """Return the columns that can be told of a place; of several ways to tell one, the first."""
    found: dict[tuple[str, ...], Column] = {}
    for column in columns:
        if column.quantity.uses(place) is not None:
            found.setdefault(column.path, column)
    return tuple(found.values())


def read(source: Source, section: Section) -> Iterator[tuple[Instants, list[Floats]]]:
    """Return the instants of a section with the values of each of its columns; NaN is a value that is not known."""
    uses = [use for column in section.columns if (use := column.quantity.uses(section.place)) is not None]
    host = frozenset[str]().union(*(use.host for use in uses))
    job = frozenset[str]().union(*(use.job for use in uses))
    readers = [column.quantity.reader(section.place) for column in section.columns]
    for at in section.place.instants(source, host, job):
        yield at, [reader(at) for reader in readers]
