"""Tables as Parquet, Feather, ORC, JSON lines and pickled data frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet

from fedmon.report.export import Table

if TYPE_CHECKING:
    import pandas as pd


_GROUP_VALUES = 4 * 2**20
"""Values of one group in a file, 32 MB before compression."""
_LEVEL = 1


def write_parquet(table: Table, file: BinaryIO) -> None:
    """Write Parquet, compressed by zstd."""
    schema = table.schema
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with pa.parquet.ParquetWriter(
        file, schema, compression="zstd", compression_level=_LEVEL, use_dictionary=texts or False
    ) as writer:
        for group in _groups(table):
            writer.write_table(group, row_group_size=max(1, len(group)))


def write_feather(table: Table, file: BinaryIO) -> None:
    """Write Feather version 2, which is Arrow's file format, compressed by zstd."""
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=_LEVEL))
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        for group in _groups(table):
            writer.write_table(group.combine_chunks())


def write_orc(table: Table, file: BinaryIO) -> None:
    """Write ORC, compressed by zstd; a name of a column cannot have a NUL there, and has %00 instead."""
    names = [name.replace("\0", "%00") for name in table.schema.names]
    with pa.orc.ORCWriter(file, compression="zstd", file_version="0.12") as writer:
        # Without an empty table, a file without rows would lack its columns.
        for group in itertools.chain([table.schema.empty_table()], _groups(table)):
            writer.write(group.rename_columns(names))


def _groups(table: Table) -> Iterator[pa.Table]:
    """Return the rows in tables of a size at which columns compress well."""
    schema = table.schema
    most = max(1, _GROUP_VALUES // max(1, len(schema)))
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in table.batches():
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= most:
            yield pa.Table.from_batches(waiting, schema=schema)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting, schema=schema)


_ROWS = 4096


def write_json_lines(table: Table, file: BinaryIO) -> None:
    """Write an object for each row of a table, wide or tidy."""
    encoder = msgspec.json.Encoder()
    names = table.schema.names
    for batch in table.batches():
        for first in range(0, batch.num_rows, _ROWS):
            part = batch.slice(first, _ROWS)
            columns = [_plain(column) for column in part.columns]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            file.write(encoder.encode_lines(rows))


def _plain(column: pa.Array) -> list[Any]:
    """Return values that JSON has; numbers that are none become null when they are encoded."""
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
    values: list[Any] = column.to_pylist()
    return values


def write_pickle(table: Table, file: BinaryIO) -> None:
    """Write a data frame, which is in memory as a whole while it is written."""
    data_frame(table).to_pickle(file, compression=None)


def data_frame(table: Table) -> pd.DataFrame:
    """Return all rows of a table; missing numbers are NaN. Raises StorageError."""
    whole = pa.Table.from_batches(table.batches(), schema=table.schema)
    # Each column is given back as soon as it is converted.
    frame: pd.DataFrame = whole.to_pandas(self_destruct=True)
    return frame
