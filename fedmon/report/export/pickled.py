"""A table as a pickled data frame of pandas. Reading a pickle runs what is in it: take it from nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import pandas as pd
import pyarrow as pa

from fedmon.report.table import Table


def write_pickle(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a data frame, which lies in memory whole while it is written."""
    batches: list[pa.RecordBatch] = []
    for batch in table.batches():
        batches.append(batch)
        on_rows(batch.num_rows)
    whole = pa.Table.from_batches(batches, schema=table.schema)
    batches.clear()
    made: pd.DataFrame = whole.to_pandas(split_blocks=True, self_destruct=True)
    del whole
    made.to_pickle(file, compression=None)
