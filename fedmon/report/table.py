"""A table as every export takes it: columns with a type, and rows in batches, so that none must fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Table(Protocol):
    """Rows that can be gone through, more than once, and what each column is.

    ``name`` is a word for file names and keys, such as ``wide``. ``rows`` is how many there will be at most; it serves
    to show progress. Every batch has the columns of ``schema``.
    """

    @property
    def name(self) -> str:
        """A short word of letters, digits and underscores."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns, in order."""
        ...

    @property
    def rows(self) -> int:
        """How many rows there will be at most."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in order. Raises StorageError when a recording cannot be read."""
        ...
