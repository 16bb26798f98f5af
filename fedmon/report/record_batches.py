"""Rows of a span as Arrow record batches, wide or tidy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.table import METRICS, Kind
from fedmon.report.block import Floats
from fedmon.report.layout import Column, Layout, is_counter
from fedmon.report.span_reader import SpanRows
from fedmon.report.spans import Span

TIME = pa.timestamp("us", tz="UTC")
_TIDY_ROWS = 65_536
_EARLIEST_S, _LATEST_S = -62_135_596_800.0, 253_402_300_799.0
"""Years 1 to 9999: other times have no date in most libraries."""


def schema(layout: Layout, *, is_tidy: bool) -> pa.Schema:
    """Return the columns of a table; values are floating point numbers, whatever was recorded."""
    fields = [("host", pa.string()), ("time", TIME), *((label, pa.string()) for label in layout.labels)]
    if is_tidy:
        fields += [(name, pa.string()) for name in ("stream", "metric", "labels", "unit", "kind")]
        fields += [("value", pa.float64()), *([("rate", pa.float64())] if layout.rates else [])]
    else:
        fields += [(column.name, pa.float64()) for column in layout.columns]
    return pa.schema(fields)


def batches(layout: Layout, span: Span, rows: SpanRows, *, is_tidy: bool) -> Iterator[pa.RecordBatch]:
    """Return the rows of a span."""
    if is_tidy:
        yield from _tidy(layout, span, rows)
    elif len(rows.t):
        arrays = _heads(layout, span, rows.t)
        arrays += [pa.array(values, from_pandas=True) for values in rows.values]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema(layout, is_tidy=False))


def _tidy(layout: Layout, span: Span, rows: SpanRows) -> Iterator[pa.RecordBatch]:
    values = [number for number, column in enumerate(layout.columns) if not column.is_rate]
    if not values:
        return
    rates = {(column.stream, column.series): number for number, column in enumerate(layout.columns) if column.is_rate}
    of_rate = [rates.get((layout.columns[at].stream, layout.columns[at].series), -1) for at in values]
    texts = [_texts(layout.columns[at]) for at in values]
    made = schema(layout, is_tidy=True)
    step = max(1, _TIDY_ROWS // len(values))
    for first in range(0, len(rows.t), step):
        table = rows.values[values, first : first + step].T
        row, at = np.nonzero(~np.isnan(table))
        arrays = _heads(layout, span, rows.t[first : first + step][row])
        arrays += [_repeated([text[number] for text in texts], at) for number in range(5)]
        arrays.append(pa.array(table[row, at]))
        if layout.rates:
            grown = np.full((len(values) + 1, table.shape[0]), np.nan)
            for number, place in enumerate(of_rate):
                if place >= 0:
                    grown[number] = rows.values[place, first : first + step]
            arrays.append(pa.array(grown[at, row], from_pandas=True))
        if len(row):
            yield pa.RecordBatch.from_arrays(arrays, schema=made)


def _texts(column: Column) -> tuple[str, str | None, str | None, str | None, str | None]:
    """Return stream, metric, labels, unit and kind of a column."""
    metric = METRICS.get(metric_name(column.series))
    kind = metric.kind if metric is not None else Kind.COUNTER if is_counter(column.series) else None
    name, _, labels = column.name.partition("{")
    return (
        column.stream,
        name,
        labels.removesuffix("}") or None,
        metric.unit.value if metric is not None else None,
        kind.value if kind is not None else None,
    )


def _heads(layout: Layout, span: Span, t: Floats) -> list[pa.Array]:
    owner = layout.owners[span.node_id]
    same = np.zeros(len(t), dtype=np.intp)
    arrays = [_repeated([owner.host], same), _times(t)]
    for label in layout.labels:
        places = same if label != "job" else _outside(owner.job_times, t)
        arrays.append(_repeated([owner.labels.get(label), None], places))
    return arrays


def _outside(times: Sequence[tuple[float, float]], t: Floats) -> NDArray[np.intp]:
    """Return 0 for each time that lies in one of these, and 1 for all others."""
    found = np.ones(len(t), dtype=np.intp)
    for low, high in times:
        found[(t >= low) & (t <= high)] = 0
    return found


def _repeated(texts: Sequence[str | None], places: NDArray[np.intp]) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(places))


def _times(t: Floats) -> pa.Array:
    """Return times in microseconds; one that no calendar has is null."""
    with np.errstate(invalid="ignore"):
        has_date = (t >= _EARLIEST_S) & (t <= _LATEST_S)
    moments = np.rint(np.where(has_date, t, 0.0) * 1e6).astype(np.int64)
    return pa.array(moments, pa.int64(), mask=None if has_date.all() else ~has_date).cast(TIME)
