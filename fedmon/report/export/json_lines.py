"""JSON lines: an object for each row, with the columns as keys; what is not known is null.

Times are RFC 3339 in UTC with microseconds. Source: jsonlines.org and RFC 8259.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from fedmon.report.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 4096


def write_json_lines(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a table, wide or tidy; ``on_rows`` is told how many rows were written since the last call."""
    encoder = msgspec.json.Encoder()
    names = table.schema.names
    for batch in table.batches():
        for first in range(0, batch.num_rows, _ROWS):
            part = batch.slice(first, _ROWS)
            columns = [_plain(column) for column in part.columns]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            file.write(encoder.encode_lines(rows))
            on_rows(part.num_rows)


def _plain(column: pa.Array) -> list[Any]:
    """Return values that JSON has; numbers that are none become null when they are encoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column.cast(pa.timestamp("us", tz="UTC")), format="%Y-%m-%dT%H:%M:%SZ")
    elif pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist()
    return values
