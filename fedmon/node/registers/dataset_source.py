"""The data at the path of a dataset: whether it can be offered, its shape, and the types of a table's columns.

The names of types are those of pandas: ``int64``, ``float64``, ``bool`` and ``object`` (texts, dates, and columns that
mix kinds). As there, an integer column with gaps is ``float64``, a truth column with gaps is ``object``, a column of
nothing but gaps is ``float64``, and integers beyond 64 bits are ``object``.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.plan.dataset import GAPS, TRUTHS, read_table

TABLES = frozenset({"csv", "tabular"})
FOLDERS = frozenset({"images", "medical-folder"})
Kind = Literal["gap", "truth", "integer", "float", "text"]

MAX_COLUMNS = 100_000

_IMAGE_SUFFIXES = (".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".nii", ".nii.gz", ".png", ".tif", ".tiff", ".webp")
_CHUNK_CELLS = 200_000
_NUMBER = re.compile(r"\s*[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|infinity)\s*", re.IGNORECASE | re.ASCII)


class DatasetShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a dataset (rows and columns, or the number of images or subjects) and its columns' types.

    ``path`` is where its path led then: a link that is put into it later must not lead a plan elsewhere.
    """

    path: str
    shape: list[int] | None = None
    dtypes: dict[str, str] | None = None


def measure(path: Path, data_type: str) -> DatasetShape:
    """Return shape and types of the data at a path; safe from any thread.

    A csv or tabular file is read through; the images of a folder and of its subfolders are counted; of a medical
    folder the subjects (subfolders) are counted; of other types only the presence is checked. Raises InvalidInputError
    when there is nothing at ``path``, or nothing of that type.
    """
    try:
        path = path.expanduser().resolve()
        str(path).encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInputError(f"the path {str(path)!r} cannot be used: {error}") from error
    try:
        if not path.exists():
            raise InvalidInputError(f"{path} not found: name an existing file or folder")
        if data_type in TABLES:
            if not path.is_file():
                raise InvalidInputError(f"{path} is not a file: a dataset of type {data_type} is one table")
            return measure_table(path)
        if data_type in FOLDERS:
            if not path.is_dir():
                raise InvalidInputError(f"{path} is not a folder: a dataset of type {data_type} needs one")
            count, wanted = (_images(path), "image") if data_type == "images" else (_subjects(path), "subject's folder")
            if not count:
                raise InvalidInputError(f"{wanted} not found in {path}")
            return DatasetShape(path=str(path), shape=[count])
        if not os.access(path, os.R_OK):
            raise InvalidInputError(f"{path} cannot be read by this user")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be looked at: {error.strerror}") from error
    return DatasetShape(path=str(path))


def measure_table(path: Path) -> DatasetShape:
    """Read a text table through once, row by row; takes seconds for files of hundreds of megabytes.

    The first row holds the names of the columns. UTF-8, with or without a byte order mark; the delimiter is comma,
    semicolon, tab or bar. Raises InvalidInputError naming file, line and cause when this is not such a table.
    """
    what = f"the table {path}"
    table = read_table(path, what)
    names = next(table)
    if "\0" in "".join(names):  # values in UTF-16 would be taken for names
        raise InvalidInputError(f"{what} holds a NUL character in its first row: it is not UTF-8 text")
    if len(names) > MAX_COLUMNS:
        raise InvalidInputError(f"{what} has {len(names)} columns, more than {MAX_COLUMNS}")
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if len(numbers) * 2 > len(names) and names != [str(number) for number in range(len(names))]:
        shown = ", ".join(names[:4])
        raise InvalidInputError(f"the first row of {what} looks like values ({shown}): put names of columns there")
    if "" in names:
        raise InvalidInputError(f"{what} has no name for column {names.index('') + 1} in its first row")
    kinds: list[set[Kind]] = [set() for _ in names]
    count = 0
    while chunk := list(itertools.islice(table, max(1, _CHUNK_CELLS // len(names)))):
        count += len(chunk)
        for known, values in zip(kinds, zip(*chunk, strict=True), strict=True):
            if "text" not in known:
                known.update(_kinds_of(set(values)))
    if not count:
        raise InvalidInputError(f"{what} has names of columns but no rows")
    dtypes = dict(zip(names, map(_dtype, kinds), strict=True))
    return DatasetShape(path=str(path), shape=[count, len(names)], dtypes=dtypes)


def _kinds_of(values: set[str]) -> Iterator[Kind]:
    """Yield the kinds of values in a part of a column."""
    present = values - GAPS
    if len(present) < len(values):
        yield "gap"
    others = present - TRUTHS.keys()
    if len(others) < len(present):
        yield "truth"
    joined = "".join(others)
    if "_" in joined or not joined.isascii():  # int() and float() take underscores, and the digits of every script
        yield "text"
    elif others:
        yield _kind_of_numbers(others)


def _kind_of_numbers(values: set[str]) -> Kind:
    with contextlib.suppress(ValueError):
        numbers = list(map(int, values))
        return "integer" if min(numbers) >= -(2**63) and max(numbers) < 2**63 else "text"
    with contextlib.suppress(ValueError):
        collections.deque(map(float, values), maxlen=0)
        return "float"
    return "text"


def _dtype(kinds: set[Kind]) -> str:
    """Return the type that all kinds of values in a column fit."""
    if "text" in kinds or ("truth" in kinds and len(kinds) > 1):
        return "object"
    if "truth" in kinds:
        return "bool"
    return "int64" if kinds == {"integer"} else "float64"


def _images(folder: Path) -> int:
    files = (name for _, _, names in os.walk(folder, onerror=_raise) for name in names)
    return sum(name.lower().endswith(_IMAGE_SUFFIXES) for name in files)


def _subjects(folder: Path) -> int:
    return sum(path.is_dir() and not path.name.startswith(".") for path in folder.iterdir())


def _raise(error: OSError) -> None:
    raise error
