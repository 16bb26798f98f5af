"""A table in the words of another tool: its columns, computed from recordings while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fedmon.report.block import Floats
from fedmon.report.source import Source
from fedmon.report.views.instants import Instants
from fedmon.report.views.quantity import Quantity
from fedmon.report.views.survey import Place

if TYPE_CHECKING:
    import pyarrow as pa

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
    """What the columns of a table are called that say where and when; an empty name leaves one out."""

    host: str
    seconds: str = ""
    time: str
    job: str


class ViewTable:
    """A Table (see `fedmon.report.table`) of sections, one after the other; within one, rows are by time."""

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
        """The columns: where and when, the owner's labels, then what was measured anywhere."""
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
