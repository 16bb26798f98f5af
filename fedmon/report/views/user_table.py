"""The values that programs reported of themselves, each under its own name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedmon.common.metrics.sample import is_user_stream
from fedmon.common.metrics.series import metric_name, split_series
from fedmon.report.block import Block
from fedmon.report.source import Source
from fedmon.report.views.view_table import VIEW

if TYPE_CHECKING:
    import pyarrow as pa

_VALUE = "user_value"


class UserTable:
    """A Table (see `fedmon.report.table`) with a row for each moment at which a program reported something."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self._source = source
        self._streams = sorted({(one.node_id, one.stream) for one in source.streams if is_user_stream(one.stream)})
        self.rows = sum(one.samples for one in source.streams if is_user_stream(one.stream))
        found = {each for block in self._blocks() for each in block.columns} if self.rows else set()
        names = sorted({_name(each) for each in found})
        # Where and when have columns already; a value of the same name is told apart by what it is.
        self._headers = {each: f"user {each}" if each in ("host", "time") else each for each in names}

    @property
    def schema(self) -> pa.Schema:
        """The columns: where, when, and a value of each name."""
        import pyarrow as pa

        fields = [pa.field("host", pa.string()), pa.field("time", pa.timestamp("us", tz="UTC"))]
        fields += [pa.field(header, pa.float64()) for header in self._headers.values()]
        return pa.schema(fields, metadata={VIEW: self.name})

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, by node and stream, in the order in which they were reported."""
        import pyarrow as pa

        schema = self.schema
        for block in self._blocks():
            values = {name: np.full(len(block.t), np.nan) for name in self._headers}
            for series, column in block.columns.items():
                # One name may come from several jobs, never in one sample.
                values[_name(series)] = np.where(np.isnan(column), values[_name(series)], column)
            host = pa.repeat(pa.scalar(self._source.host(block.node_id).name, pa.string()), len(block.t))
            time = pa.array(np.round(block.t * 1e6).astype(np.int64), pa.timestamp("us", tz="UTC"))
            columns = [pa.array(values[name], pa.float64(), from_pandas=True) for name in self._headers]
            yield pa.record_batch([host, time, *columns], schema=schema)

    def _blocks(self) -> Iterator[Block]:
        for node_id, stream in self._streams:
            wanted = self._source.blocks(
                node_id=node_id, stream=stream, series=lambda series: metric_name(series) == _VALUE
            )
            yield from wanted


def _name(series: str) -> str:
    return split_series(series)[1].get("name", "")
