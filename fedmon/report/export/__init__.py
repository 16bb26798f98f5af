"""Tables into files of many formats; each file appears whole or not at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.report.export.atomic import replacing, storage_errors, target_of
from fedmon.report.extra import report_extra
from fedmon.report.table import Table

__all__ = ["FORMATS", "Format", "format_of", "write", "write_text"]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format: the endings of its files, the first being the usual one, and the function that writes it.

    ``is_text`` formats can also go to a pipe. ``is_appended`` ones keep what is in the file under other keys.
    """

    suffixes: tuple[str, ...]
    writer: str
    is_text: bool = False
    is_appended: bool = False

    @property
    def suffix(self) -> str:
        """The usual ending of a file."""
        return self.suffixes[0]

    def load(self) -> Callable[..., Any]:
        """Return the function that writes. Raises MissingExtraError."""
        module, _, name = self.writer.partition(":")
        with report_extra("an export"):
            found: Callable[..., Any] = getattr(importlib.import_module(f"fedmon.report.export.{module}"), name)
        return found


FORMATS: Mapping[str, Format] = {
    "csv": Format(suffixes=(".csv",), writer="csv_file:write_csv", is_text=True),
    "parquet": Format(suffixes=(".parquet", ".pq"), writer="arrow_files:write_parquet"),
    "feather": Format(suffixes=(".feather", ".arrow"), writer="arrow_files:write_feather"),
    "orc": Format(suffixes=(".orc",), writer="arrow_files:write_orc"),
    "hdf5": Format(suffixes=(".h5", ".hdf5", ".hdf"), writer="hdf5:write_hdf5", is_appended=True),
    "pickle": Format(suffixes=(".pkl", ".pickle"), writer="pickled:write_pickle"),
    "json-lines": Format(suffixes=(".jsonl", ".ndjson"), writer="json_lines:write_json_lines", is_text=True),
    "openmetrics": Format(suffixes=(".om", ".prom"), writer="openmetrics:write_openmetrics", is_text=True),
    "influx": Format(suffixes=(".line", ".lp"), writer="influx:write_influx", is_text=True),
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
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write a table to a file and return its path; without ``format`` the ending of the file says it.

    The file appears when it is complete, in place of one that is there; a failure leaves that as it was. In an HDF5
    file tables lie beside each other, each under ``<name>_<key>``: one that differs is replaced only with ``replace``.
    ``progress`` is told which part is done, from 0 to 1. Raises InvalidInputError, ConflictError, StorageError and
    MissingExtraError.
    """
    path = Path(path)
    chosen = _format(format or format_of(path))
    target_of(path)
    writer = chosen.load()
    on_rows = _counted(table, progress)
    if chosen.is_appended:
        writer(table, path, key=key or "all", replace=replace, on_rows=on_rows)
    else:
        with replacing(path) as new, storage_errors(path), new.open("wb") as file:
            writer(table, file, on_rows=on_rows)
    if progress is not None:
        progress(1.0)
    return path


def write_text(table: Table, stream: BinaryIO, *, format: str) -> None:  # noqa: A002
    """Write a table to a stream, in a format that is text.

    Raises InvalidInputError, StorageError and MissingExtraError.
    """
    chosen = _format(format)
    if not chosen.is_text:
        texts = ", ".join(name for name, one in FORMATS.items() if one.is_text)
        raise InvalidInputError(f"{format} is no text: name a file with --output, or choose one of {texts}")
    with storage_errors(Path("stdout")):
        chosen.load()(table, stream)
        stream.flush()


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise InvalidInputError(f"no format {name!r}: there are {', '.join(FORMATS)}")
    return FORMATS[name]


def _counted(table: Table, progress: Callable[[float], None] | None) -> Callable[[int], None]:
    done = 0

    def on_rows(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(min(1.0, done / max(1, table.rows)))

    return on_rows
