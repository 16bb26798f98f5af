"""Tables in an HDF5 file: a group for each, which pandas reads, and in it a dataset for each column, compressed.

Numbers are doubles with NaN for what is not known, times are whole microseconds since 1970 in UTC (the attribute
``units`` says so in the words of the CF conventions; the smallest number is no time), texts are UTF-8 of a fixed
length. A name that HDF5 cannot have, because of a slash in it, is written as in web addresses (%2F); the attribute
``name`` holds it as it is.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.files import TargetExistsError, replacing, storage_errors, target_of
from fedmon.report.export.file_lock import locked
from fedmon.report.export.hdf5_columns import Group, attribute_texts
from fedmon.report.export.patient_file import PatientFile
from fedmon.report.table import Table

_KEY = re.compile(r"[A-Za-z0-9_.@+-]{1,120}")
_NEW = "new table"
_DIGEST = "digest"

OnRows = Callable[[int], None]


class _SameError(Exception):
    """The file has this table already."""


def write_hdf5(table: Table, path: Path, *, key: str, replace: bool = False, on_rows: OnRows = lambda _: None) -> None:
    """Add a table to a file as the group ``<name>_<key>``; what else is in the file stays.

    Who writes to the same file waits until this is done. Where the same table lies there already, nothing changes.
    Raises ConflictError where another one does, unless ``replace``; InvalidInputError, StorageError.
    """
    if not _KEY.fullmatch(key):
        raise InvalidInputError(f"key {key[:80]!r} is not usable: letters, digits and _.@+- make one")
    name = f"{table.name}_{key}"
    while True:
        with locked(target_of(path)) as old, contextlib.suppress(_SameError, TargetExistsError):
            with replacing(path, only_new=old is None) as new:
                if old is not None:
                    with new.open("wb") as copy:
                        shutil.copyfileobj(old, copy, 2**20)
                with _opened(new, path, is_new=old is None) as (file, raw):

                    def counted(rows: int, raw: PatientFile = raw) -> None:
                        raw.check()
                        on_rows(rows)

                    _add(table, file, name, path=path, replace=replace, on_rows=counted)
            return
        if old is not None:
            return


@contextlib.contextmanager
def _opened(new: Path, path: Path, *, is_new: bool) -> Iterator[tuple[h5py.File, PatientFile]]:
    # The library wants the real path of what it opens itself, and what is written here has none yet.
    with storage_errors(path), PatientFile(new) as raw:
        try:
            file = h5py.File(raw, "w" if is_new else "r+")
        except OSError as error:
            raw.check()
            raise StorageError(f"cannot append to {path}: it is no HDF5 file that can be written: {error}") from error
        with file:
            yield file, raw
        raw.check()


def _add(table: Table, file: h5py.File, name: str, *, path: Path, replace: bool, on_rows: OnRows) -> None:
    """Raise ConflictError where another table has the name, and _SameError where this one has it."""
    old = file.get(name)
    if old is not None and not replace and list(old.attrs.get("columns", ())) != attribute_texts(table.schema.names):
        raise _conflict(path, name)
    group = file.create_group(_NEW, track_order=True)
    columns = Group(group, table.schema)
    for batch in table.batches():
        columns.add(batch)
        on_rows(batch.num_rows)
    group.attrs[_DIGEST] = columns.finish()
    if old is not None:
        if old.attrs.get(_DIGEST) == group.attrs[_DIGEST]:
            raise _SameError
        if not replace:
            raise _conflict(path, name)
        del file[name]
    file.move(_NEW, name)


def _conflict(path: Path, name: str) -> ConflictError:
    return ConflictError(f"{path} has another table {name} already: choose another --key, or say --replace")
