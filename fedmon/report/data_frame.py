"""A table as a data frame of pandas, built in place while its rows come."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.report.table import Table


def data_frame(table: Table, *, on_rows: Callable[[int], None] = lambda _: None) -> pd.DataFrame:
    """Return all rows of a table; missing numbers are NaN. Raises StorageError.

    Numbers go where pandas keeps them as they come, so that they are never in memory twice.
    """
    schema = table.schema
    count = next((at for at, field in enumerate(schema) if pa.types.is_floating(field.type)), len(schema))
    heads = schema.names[:count]
    if not all(field.type == pa.float64() for field in list(schema)[count:]):
        raise TypeError("columns that are no numbers stand in front of those that are")
    numbers = np.empty((len(schema) - count, table.rows))
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in table.batches():
        end = rows + batch.num_rows
        for place in range(len(numbers)):
            numbers[place, rows:end] = batch.column(count + place).to_numpy(zero_copy_only=False)
        # A part of a batch holds on to the memory of all of it, unless it is copied.
        waiting.append(batch.select(heads).take(pa.array(np.arange(batch.num_rows))))
        rows = end
        on_rows(batch.num_rows)
    made: pd.DataFrame = pa.Table.from_batches(waiting, schema=pa.schema(list(schema)[:count])).to_pandas()
    whole = pd.DataFrame(_shortened(numbers, rows).T, columns=schema.names[count:], index=made.index, copy=False)
    for place, name in enumerate(heads):  # to put two frames beside each other copies both
        whole.insert(place, name, made[name])
    return whole


def _shortened(numbers: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the begin of each row, moved together in place: a pickle of rows with gaps between them is a copy."""
    flat = numbers.reshape(-1)
    if length < numbers.shape[1]:
        for place in range(len(numbers)):
            flat[place * length : (place + 1) * length] = numbers[place, :length]
    return flat[: len(numbers) * length].reshape(len(numbers), length)
