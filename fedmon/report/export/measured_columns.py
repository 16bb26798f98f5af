"""The columns of a table as formats of time series need them: where and when, words, and what each number counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import split_series
from fedmon.common.metrics.table import METRICS, Metric

if TYPE_CHECKING:
    import pyarrow as pa

_TIDY = frozenset({"metric", "labels", "value"})
_OTHER = re.compile(r"[^a-zA-Z0-9]+")
_PER_SECOND = "_per_second"
_VIEW = b"fedmon.view"
"""The key of a schema's metadata where columns have names in words, whatever these look like."""


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A column of numbers: at ``index``, of one ``metric`` with ``labels``; ``row`` is its entry in the metric table.

    ``is_rate`` says that the column is how fast a counter of the table grows. ``is_series`` is False of a column that
    has a name in words, as views have them.
    """

    index: int
    name: str
    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    row: Metric | None = None
    is_rate: bool = False
    is_series: bool = True


class RowRun(msgspec.Struct, frozen=True, kw_only=True):
    """Rows ``first`` up to, not including, ``end`` of a batch, which have the same ``words``."""

    first: int
    end: int
    words: tuple[tuple[str, str], ...]


class MeasuredColumns:
    """What the columns of a schema are. Raises InvalidInputError for a table that is no table of series."""

    def __init__(self, schema: pa.Schema, *, format: str) -> None:  # noqa: A002 - what everybody calls it
        import pyarrow as pa

        if set(schema.names) >= _TIDY:
            raise InvalidInputError(f"{format} is made of the wide table, which has a column for each series")
        times = [number for number, field in enumerate(schema) if pa.types.is_timestamp(field.type)]
        if not times:
            raise InvalidInputError(f"{format} needs a column with the time")
        self.time = times[0]
        self.words = [number for number, field in enumerate(schema) if pa.types.is_string(field.type)]
        self._names = [_OTHER.sub("_", schema.names[number]).strip("_").lower() for number in self.words]
        is_view = _VIEW in (schema.metadata or {})
        self.numbers = [
            _number(number, schema.names[number], is_view=is_view)
            for number, field in enumerate(schema)
            if pa.types.is_floating(field.type)
        ]

    def runs(self, batch: pa.RecordBatch) -> Iterator[RowRun]:
        """Return the rows of a batch by what their words are, in order; words that are absent or empty are left out."""
        rows = batch.num_rows
        columns = [_changes(batch.column(number)) for number in self.words]
        starts = sorted({0}.union(*columns)) if rows else []
        for first, end in zip(starts, [*starts[1:], rows], strict=True):
            said = ((name, batch.column(at)[first].as_py()) for name, at in zip(self._names, self.words, strict=True))
            yield RowRun(first=first, end=end, words=tuple((name, word) for name, word in said if word))


def _changes(words: pa.Array) -> set[int]:
    """Return the rows whose word is another than that of the row before."""
    encoded = words.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    return {int(row) + 1 for row in (encoded[1:] != encoded[:-1]).nonzero()[0]}


def _number(index: int, name: str, *, is_view: bool) -> Number:
    try:
        metric, labels = split_series("" if is_view else name)
    except ValueError:
        plain = _OTHER.sub("_", name).strip("_").lower()
        metric = plain if plain[:1].isalpha() else f"value_{plain}"
        return Number(index=index, name=name, metric=metric, is_series=False)
    row = METRICS.get(metric)
    is_rate = row is None and metric.endswith(_PER_SECOND) and f"{metric.removesuffix(_PER_SECOND)}_total" in METRICS
    if is_rate:
        row = METRICS[f"{metric.removesuffix(_PER_SECOND)}_total"]
    return Number(index=index, name=name, metric=metric, labels=tuple(labels.items()), row=row, is_rate=is_rate)
