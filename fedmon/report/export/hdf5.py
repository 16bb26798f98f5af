"""Tables in an HDF5 file: a group for each, which pandas reads, and in it a dataset for each column, compressed.

Numbers are doubles with NaN for unknown values, times are whole microseconds since 1970 in UTC (the attribute
``units`` says so in the words of the CF conventions; the smallest number is no time), texts are UTF-8 of a fixed
length. A name that HDF5 cannot have, because of a slash in it, is written as in web addresses (%2F); the attribute
``name`` holds it as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.files import TargetExistsError, replacing, storage_errors, target_of
from fedmon.report.export import Table
from fedmon.report.export.files import PatientFile, stored

_KEY = re.compile(r"[A-Za-z0-9_.@+-]{1,120}")
_DIGEST = "digest"


def write_hdf5(table: Table, path: Path, *, key: str, replace: bool = False) -> None:
    """Add a table to a file as the group ``<name>_<key>``; the rest of the file stays.

    Who writes to the same file waits until this is done. Where the same table lies there already, nothing changes.
    Raises ConflictError where another one does, unless ``replace``; InvalidInputError, StorageError.
    """
    if not _KEY.fullmatch(key):
        raise InvalidInputError(f"key {key[:80]!r} is not usable: letters, digits and _.@+- make one")
    name, target = f"{table.name}_{key}", target_of(path)
    with locked(target) as old:
        if old is not None and not h5py.is_hdf5(target):
            raise StorageError(f"cannot append to {path}: not a writable HDF5 file")
    with storage_errors(path), stored(table.schema, table.batches(), target.parent) as rows:
        digest = _digest(rows)
        while True:
            with locked(target) as old, contextlib.suppress(TargetExistsError):
                known = None if old is None else _digest_in(old, name)
                if known == digest:
                    return
                if known is not None and not replace:
                    raise ConflictError(
                        f"{path} has another table {name} already: choose another --key, or say --replace"
                    )
                # The library wants the real path of what it opens itself, and what is written here has none yet.
                with replacing(path, only_new=old is None) as new, PatientFile(new) as raw:
                    if old is not None:
                        shutil.copyfileobj(old, raw, 2**20)
                        raw.check()
                    with h5py.File(raw, "w" if old is None else "r+") as file:
                        if name in file:
                            del file[name]
                        group = file.create_group(name, track_order=True)
                        _fill(group, rows, raw.check)
                        group.attrs[_DIGEST] = digest
                    raw.check()
                return


def _digest_in(file: BinaryIO, name: str) -> str | None:
    """Return the digest of a table in a file, empty if it has none; None without the table."""
    with h5py.File(file, "r") as opened:
        found = opened[name].attrs.get(_DIGEST, "") if name in opened else None
    file.seek(0)
    return found


@contextlib.contextmanager
def locked(path: Path) -> Iterator[BinaryIO | None]:
    """Give a file with an exclusive lock, opened for reading, or None if it is missing; waits for its turn.

    The lock is one of the open file, so it also holds between threads, and does not affect readers. Raises
    StorageError.
    """
    with contextlib.ExitStack() as stack:
        while True:
            with storage_errors(path):
                try:
                    file = stack.enter_context(path.open("r+b"))
                except FileNotFoundError:
                    break
                fcntl.flock(file, fcntl.LOCK_EX)
                # Whoever held the lock before has put another file in its place.
                if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return
                stack.close()
        yield None


_CHUNK = 16_384
_UNUSABLE = re.compile(r"[%/\x00-\x1f\x7f]|\.+$|^[ab](?=(xis[01]|lock[0-9]+_(items|values))$)")
_NO_TIME = np.iinfo(np.int64).min
_NO_NAME = np.bytes_(b"N.")
"""The pickle of None, by which pandas and PyTables mark missing names."""
_LAST_US = np.iinfo(np.int64).max // 1000
_PANDAS = {"pandas_type": "frame", "pandas_version": "0.15.2"}
_UNITS = "microseconds since 1970-01-01T00:00:00Z"

Values = NDArray[Any]


def _digest(rows: pa.Table) -> str:
    """Return a digest of a table, the same for ever, as files keep it: of its rows piece by piece, then of its texts.

    Texts are numbered in the order in which they come, and no text after those of the first piece.
    """
    digest = hashlib.sha256(repr((_PANDAS, rows.schema.names)).encode())
    texts: dict[int, dict[str | None, int]]
    texts = {at: {} for at, field in enumerate(rows.schema) if pa.types.is_string(field.type)}
    for first in range(0, len(rows), _CHUNK):
        for at, column in enumerate(rows.slice(first, _CHUNK).columns):
            if (known := texts.get(at)) is None:
                digest.update(_numbers(column).to_numpy().tobytes())
            else:
                words, places = _encoded(column)
                digest.update(np.array([known.setdefault(word, len(known)) for word in words], "<i4")[places].tobytes())
    for known in texts.values():
        digest.update(b"\0".join((word or "").encode() for word in known))
    return digest.hexdigest()


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times in microseconds, or numbers, NaN if there is none."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).fill_null(_NO_TIME)
    return column.cast(pa.float64())


def _encoded(column: pa.ChunkedArray) -> tuple[list[str | None], Values]:
    """Return the different texts of a column and None at the end, and which of these stands in each row."""
    kinds = column.dictionary_encode().combine_chunks()
    words = [*kinds.dictionary.to_pylist(), None]
    return words, kinds.indices.fill_null(len(words) - 1).to_numpy()


def _fill(group: h5py.Group, rows: pa.Table, check: Callable[[], None]) -> None:
    """Fill a group with a table; ``check`` is called after each column.

    Beside a dataset for each column the group has the parts of a frame in the layout "fixed" of `pandas.read_hdf`: a
    block for each column, whose numbers are the column's dataset under a second name.
    Source: pandas 2.2 to 3.1, io/pytables.py, BlockManagerFixed.
    """
    names = attribute_texts(rows.schema.names)
    group.attrs.create("columns", names, dtype=h5py.string_dtype())
    for number, (field, column) in enumerate(zip(rows.schema, rows.columns, strict=True)):
        is_text, is_time = pa.types.is_string(field.type), pa.types.is_timestamp(field.type)
        write = _texts if is_text else _times if is_time else _floats
        write(group, _usable(field.name), f"block{number}_values", column)
        check()
        group[_usable(field.name)].attrs["name"] = names[number]
        _index(group, f"block{number}_items", [names[number]])
    _index(group, "axis0", names)
    index = _dataset(group, "axis1", "<i8", len(rows))
    index[:] = np.arange(len(rows))
    index.attrs["name"] = _NO_NAME
    _set_texts(index, kind="integer")
    _set_texts(group, axis1_variety="regular", encoding="UTF-8", errors="strict", **_PANDAS)
    group.attrs["ndim"], group.attrs["nblocks"] = 2, len(names)


def _dataset(group: h5py.Group, name: str, dtype: Any, rows: int) -> h5py.Dataset:
    return group.create_dataset(name, shape=(rows,), maxshape=(None,), chunks=(_CHUNK,), dtype=dtype, shuffle=True,
                                compression="gzip", compression_opts=1)  # fmt: skip


def _floats(group: h5py.Group, name: str, block: str, column: pa.ChunkedArray) -> None:
    """Write numbers, NaN if there is none."""
    group[block] = own = _dataset(group, name, "<f8", len(column))
    for first in range(0, len(column), _CHUNK):
        own[first : first + _CHUNK] = _numbers(column.slice(first, _CHUNK)).to_numpy()


def _times(group: h5py.Group, name: str, block: str, column: pa.ChunkedArray) -> None:
    """Write times in microseconds, and once more as pandas needs them, which is in nanoseconds."""
    times = _numbers(column).to_numpy()
    own, of_pandas = _dataset(group, name, "<i8", len(times)), _dataset(group, block, "<i8", len(times))
    own[:] = times
    of_pandas[:] = np.where(abs(times // 2) <= _LAST_US // 2, times * 1000, _NO_TIME)
    own.attrs["units"], of_pandas.attrs["name"] = _UNITS, _NO_NAME
    _set_texts(of_pandas, value_type="datetime64[ns]", tz="UTC")


def _texts(group: h5py.Group, name: str, block: str, column: pa.ChunkedArray) -> None:
    """Write texts of the length of the longest; pandas gets them as it writes texts, which is a pickle."""
    words, places = _encoded(column)
    texts = np.array([(word or "").encode() for word in words])
    own = _dataset(group, name, h5py.string_dtype("utf-8", max(1, texts.itemsize)), len(places))
    for first in range(0, len(places), _CHUNK):
        own[first : first + _CHUNK] = texts[places[first : first + _CHUNK]].astype(own.dtype)
    of_pandas = group.create_dataset(block, shape=(1,), dtype=h5py.vlen_dtype(np.uint8))
    # Under its old name, numpy before 1.26 finds the function too.
    raw = np.array(words, dtype=object)[places].dumps().replace(b"\x80\x02cnumpy._core.", b"\x80\x02cnumpy.core.", 1)
    of_pandas[0] = np.frombuffer(raw, dtype=np.uint8)
    of_pandas.attrs["name"] = _NO_NAME
    _set_texts(of_pandas, CLASS="VLARRAY", PSEUDOATOM="object", VERSION="1.4", TITLE="")


def _index(group: h5py.Group, name: str, texts: Sequence[str]) -> None:
    """Write an index of pandas."""
    made = group.create_dataset(name, data=np.array([text.encode() for text in texts], dtype=bytes))
    made.attrs["name"] = _NO_NAME
    _set_texts(made, kind="string")
    _set_texts(group, **{f"{name}_variety": "regular"})


def _set_texts(node: h5py.Group | h5py.Dataset, **words: str) -> None:
    """Set attributes of the type that PyTables reads as a text."""
    for name, text in words.items():
        node.attrs.create(name, text, dtype=h5py.string_dtype("utf-8", max(1, len(text))))


def attribute_texts(names: Sequence[str]) -> list[str]:
    """Return names as an attribute can hold them, which is without NUL."""
    return [name.replace("\0", "%00") for name in names]


def _usable(name: str) -> str:
    usable = _UNUSABLE.sub(lambda found: "".join(f"%{ord(character):02X}" for character in found[0]), name)
    return usable or "%"
