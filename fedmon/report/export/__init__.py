"""Tables into files of many formats; each file appears whole or not at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.files import replacing, storage_errors, target_of
from fedmon.report.extra import report_extra

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMATS", "VIEW", "Format", "Table", "format_named", "format_of", "write", "write_text"]

T = TypeVar("T")
VIEW = "fedmon.view"
"""The key of a schema's metadata which says that columns are not called after series."""


class Table(Protocol):
    """Rows that can be read more than once, and the role of each column."""

    @property
    def name(self) -> str:
        """A short word of letters, digits and underscores for file names and keys, such as ``wide``."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, in order."""

    @property
    def rows(self) -> int:
        """How many rows there will be at most."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in order. Raises StorageError when a recording cannot be read."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format: the endings of its files, the first being the usual one, and the function that writes it.

    ``is_text`` formats can also go to a pipe. ``is_appended`` ones keep the tables of the file under other keys.
    """

    suffixes: tuple[str, ...]
    writer: str
    is_text: bool = False
    is_appended: bool = False

    def load(self) -> Callable[..., Any]:
        """Return the function that writes. Raises MissingExtraError."""
        module, _, name = self.writer.partition(":")
        with report_extra("an export"):
            found: Callable[..., Any] = getattr(importlib.import_module(f"fedmon.report.export.{module}"), name)
        return found


FORMATS: Mapping[str, Format] = {
    "csv": Format(suffixes=(".csv",), writer="csv:write_csv", is_text=True),
    "parquet": Format(suffixes=(".parquet", ".pq"), writer="tables:write_parquet"),
    "feather": Format(suffixes=(".feather", ".arrow"), writer="tables:write_feather"),
    "orc": Format(suffixes=(".orc",), writer="tables:write_orc"),
    "hdf5": Format(suffixes=(".h5", ".hdf5", ".hdf"), writer="hdf5:write_hdf5", is_appended=True),
    "pickle": Format(suffixes=(".pkl", ".pickle"), writer="tables:write_pickle"),
    "json-lines": Format(suffixes=(".jsonl", ".ndjson"), writer="tables:write_json_lines", is_text=True),
    "openmetrics": Format(suffixes=(".om", ".prom"), writer="text_series:write_openmetrics", is_text=True),
    "influx": Format(suffixes=(".line", ".lp"), writer="text_series:write_influx", is_text=True),
}


def format_of(path: Path) -> str:
    """Return the format that the ending of a file stands for. Raises InvalidInputError."""
    for name, one in FORMATS.items():
        if path.suffix.lower() in one.suffixes:
            return name
    raise InvalidInputError(
        f"{path.name or path} does not end like a format of ours: say --format, one of {', '.join(FORMATS)}"
    )


def write(
    table: Table,
    path: Path | str,
    *,
    format: str | None = None,  # noqa: A002 - what everybody calls it
    key: str | None = None,
    replace: bool = False,
) -> int:
    """Write a table to a file and return the number of rows; without ``format`` the ending of the file says it.

    The file appears when it is complete, in place of one that is there; a failure leaves that as it was. In an HDF5
    file tables lie beside each other, each under ``<name>_<key>``: one that differs is replaced only with ``replace``.
    Raises InvalidInputError, ConflictError, StorageError and MissingExtraError.
    """
    path = Path(path)
    chosen = format_named(format or format_of(path))
    target_of(path)
    writer, counted = chosen.load(), CountedTable(table)
    from fedmon.report.export.files import PatientFile  # it needs pyarrow, and a help does not

    if chosen.is_appended:
        writer(counted, path, key=key or "all", replace=replace)
    else:
        with replacing(path) as new, storage_errors(path), PatientFile(new) as file:
            counted.check = file.check
            writer(counted, file)
            file.check()
    return counted.taken


def write_text(table: Table, stream: BinaryIO, *, format: str) -> None:  # noqa: A002
    """Write a table to a stream, in a format that is text.

    Raises InvalidInputError, StorageError and MissingExtraError.
    """
    chosen = format_named(format)
    if not chosen.is_text:
        texts = ", ".join(name for name, one in FORMATS.items() if one.is_text)
        raise InvalidInputError(f"{format} is not a text format: name a file with --output, or choose one of {texts}")
    with storage_errors(Path("stdout")):
        chosen.load()(CountedTable(table), stream)
        stream.flush()


def format_named(name: str) -> Format:
    """Return one of FORMATS. Raises InvalidInputError."""
    if name not in FORMATS:
        raise InvalidInputError(f"no format {name!r}: there are {', '.join(FORMATS)}")
    return FORMATS[name]


class CountedTable:
    """A table that counts the rows taken from it, and ends when ``check`` raises."""

    def __init__(self, table: Table) -> None:
        self.name, self.schema, self.rows, self.taken = table.name, table.schema, table.rows, 0
        self.check: Callable[[], None] = lambda: None
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in order."""
        return self._each((batch.num_rows, batch) for batch in self._table.batches())

    def lines(self, text: Callable[[Sequence[pa.RecordBatch]], memoryview]) -> Iterator[memoryview]:
        """Return the rows as lines that ``text`` makes, or the table itself, where several processes share the work."""
        made = getattr(self._table, "csv", None)
        return self._each(made() if made else ((one.num_rows, text([one])) for one in self._table.batches()))

    def _each(self, pieces: Iterable[tuple[int, T]]) -> Iterator[T]:
        for rows, piece in pieces:
            yield piece
            self.taken += rows
            self.check()
