"""Tables as Parquet, Feather and ORC, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

from fedmon.report.table import Table

_GROUP_VALUES = 4 * 2**20
"""So many values lie together in a file, 32 MB before they are compressed."""
_LEVEL = 1

OnRows = Callable[[int], None]


def write_parquet(table: Table, file: BinaryIO, *, on_rows: OnRows = lambda _: None) -> None:
    """Write Parquet, compressed by zstd."""
    schema = table.schema
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with pa.parquet.ParquetWriter(
        file, schema, compression="zstd", compression_level=_LEVEL, use_dictionary=texts or False
    ) as writer:
        for group in _groups(table, on_rows):
            writer.write_table(group, row_group_size=max(1, len(group)))


def write_feather(table: Table, file: BinaryIO, *, on_rows: OnRows = lambda _: None) -> None:
    """Write Feather version 2, which is Arrow's file format, compressed by zstd."""
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=_LEVEL))
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        for group in _groups(table, on_rows):
            writer.write_table(group.combine_chunks())


def write_orc(table: Table, file: BinaryIO, *, on_rows: OnRows = lambda _: None) -> None:
    """Write ORC, compressed by zstd; a name of a column cannot have a NUL there, and has %00 instead."""
    with pa.orc.ORCWriter(file, compression="zstd", file_version="0.12") as writer:
        written = 0
        for group in _groups(table, on_rows):
            writer.write(group.rename_columns([name.replace("\0", "%00") for name in group.schema.names]))
            written += len(group)
        if not written:
            writer.write(table.schema.empty_table())


def _groups(table: Table, on_rows: OnRows) -> Iterator[pa.Table]:
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
            on_rows(rows)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting, schema=schema)
        on_rows(rows)
