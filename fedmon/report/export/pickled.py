"""A table as a pickled data frame of pandas. Reading a pickle runs what is in it: take it from nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from fedmon.report.data_frame import data_frame
from fedmon.report.table import Table


def write_pickle(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a data frame, which lies in memory whole while it is written."""
    data_frame(table, on_rows=on_rows).to_pickle(file, compression=None)
