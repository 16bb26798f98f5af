"""A table as a file of comma-separated values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, runtime_checkable

from fedmon.report.export import csv_text
from fedmon.report.table import Table


@runtime_checkable
class MadeAsText(Protocol):
    """A table that makes its lines itself, where several processes share the work."""

    def csv(self) -> Iterator[tuple[int, memoryview]]:
        """Return lines, and how many rows they are."""
        ...


def write_csv(table: Table, file: BinaryIO, *, on_rows: Callable[[int], None] = lambda _: None) -> None:
    """Write a line of names and a line for each row; what is not known is empty."""
    file.write(csv_text.header(table.schema))
    if isinstance(table, MadeAsText):
        for rows, lines in table.csv():
            file.write(lines)
            on_rows(rows)
        return
    for batch in table.batches():
        file.write(csv_text.text([batch]))
        on_rows(batch.num_rows)
