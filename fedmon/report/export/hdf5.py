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
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.common.files import TargetExistsError, replacing, storage_errors, target_of
from fedmon.report.export import Table
from fedmon.report.export.files import PatientFile

_KEY = re.compile(r"[A-Za-z0-9_.@+-]{1,120}")
_NEW = "new table"
_DIGEST = "digest"

OnRows = Callable[[int], None]


class _SameError(Exception):
    """The file has this table already."""


def write_hdf5(table: Table, path: Path, *, key: str, replace: bool = False, on_rows: OnRows = lambda _: None) -> None:
    """Add a table to a file as the group ``<name>_<key>``; the rest of the file stays.

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
            raise StorageError(f"cannot append to {path}: not a writable HDF5 file: {error}") from error
        with file:
            yield file, raw
        raw.check()


def _add(table: Table, file: h5py.File, name: str, *, path: Path, replace: bool, on_rows: OnRows) -> None:
    """Raise ConflictError where another table has the name, and _SameError where this one has it."""
    old = file.get(name)
    if old is not None and not replace and list(old.attrs.get("columns", ())) != attribute_texts(table.schema.names):
        raise _conflict(path, name)
    group = file.create_group(_NEW, track_order=True)
    columns = TableGroup(group, table.schema)
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
_GZIP: dict[str, Any] = {"maxshape": (None,), "chunks": (_CHUNK,), "compression": "gzip", "compression_opts": 1}
_UNUSABLE = re.compile(r"[%/\x00-\x1f\x7f]|\.+$|^[ab](?=(xis[01]|lock[0-9]+_(items|values))$)")
_NO_TIME = np.iinfo(np.int64).min
_NO_NAME = np.bytes_(b"N.")
"""The pickle of None, by which pandas and PyTables mark missing names."""
_LAST_US = np.iinfo(np.int64).max // 1000
_PANDAS = {"pandas_type": "frame", "pandas_version": "0.15.2"}
_UNITS = "microseconds since 1970-01-01T00:00:00Z"

Values = NDArray[Any]


class TableGroup:
    """Fills a group with a table; for one thread.

    Beside a dataset for each column the group has the parts of a frame in the layout "fixed" of `pandas.read_hdf`: a
    block for each column, whose numbers are the column's dataset under a second name.
    Source: pandas 2.2 to 3.1, io/pytables.py, BlockManagerFixed.
    """

    def __init__(self, group: h5py.Group, schema: pa.Schema) -> None:
        self._digest = hashlib.sha256(repr((_PANDAS, schema.names)).encode())
        group.attrs.create("columns", attribute_texts(schema.names), dtype=h5py.string_dtype())
        self._group, self._schema = group, schema
        self._index = _numbers(group, "axis1", "<i8")
        self._columns = [_column(group, number, field) for number, field in enumerate(schema)]
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._written = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        while self._rows >= _CHUNK:
            whole = pa.Table.from_batches(self._waiting)
            self._write(whole.slice(0, _CHUNK))
            self._waiting = whole.slice(_CHUNK).to_batches()
            self._rows -= _CHUNK

    def finish(self) -> str:
        """Write the rest, and return a digest of all written bytes."""
        if self._rows:
            self._write(pa.Table.from_batches(self._waiting))
        for number, column in enumerate(self._columns):
            self._digest.update(column.finish(f"block{number}_values"))
        self._describe()
        return self._digest.hexdigest()

    def _write(self, rows: pa.Table) -> None:
        _append(self._index, np.arange(self._written, self._written + len(rows)))
        self._written += len(rows)
        for column, values in zip(self._columns, rows.columns, strict=True):
            self._digest.update(column.add(values).tobytes())

    def _describe(self) -> None:
        """Add the attributes that make the group a frame of pandas."""
        names = attribute_texts(self._schema.names)
        self._index.attrs["name"] = _NO_NAME
        _set_texts(self._index, kind="integer")
        _index(self._group, "axis0", names)
        for number, name in enumerate(names):
            _index(self._group, f"block{number}_items", [name])
        _set_texts(self._group, axis1_variety="regular", encoding="UTF-8", errors="strict", **_PANDAS)
        self._group.attrs["ndim"], self._group.attrs["nblocks"] = 2, len(names)


class _Column(Protocol):
    def add(self, values: pa.ChunkedArray) -> Values:
        """Write values, and return them as they are written."""

    def finish(self, block: str) -> bytes:
        """Make the column a block of pandas of this name, and return the other written parts."""


def _column(group: h5py.Group, number: int, field: pa.Field) -> _Column:
    if pa.types.is_string(field.type):
        return _Texts(group, field.name)
    if pa.types.is_timestamp(field.type):
        return _Times(group, field.name, f"block{number}_values")
    return _Floats(group, field.name)


def _numbers(group: h5py.Group, name: str, dtype: str) -> h5py.Dataset:
    return group.create_dataset(name, shape=(0,), dtype=dtype, shuffle=True, **_GZIP)


def _append(to: h5py.Dataset, values: Values) -> None:
    at = len(to)
    to.resize((at + len(values),))
    to[at:] = values


class _Floats:
    """Numbers, NaN if there is none."""

    def __init__(self, group: h5py.Group, name: str) -> None:
        self._group, self._set = group, _numbers(group, _usable(name), "<f8")
        self._set.attrs["name"] = attribute_texts([name])[0]

    def add(self, values: pa.ChunkedArray) -> Values:
        numbers: Values = values.cast(pa.float64()).to_numpy()
        _append(self._set, numbers)
        return numbers

    def finish(self, block: str) -> bytes:
        self._group[block] = self._set
        return b""


class _Times:
    """Times in microseconds, and once more as pandas needs them, which is in nanoseconds."""

    def __init__(self, group: h5py.Group, name: str, block: str) -> None:
        self._own, self._block = _numbers(group, _usable(name), "<i8"), _numbers(group, block, "<i8")
        self._own.attrs["name"], self._own.attrs["units"] = attribute_texts([name])[0], _UNITS

    def add(self, values: pa.ChunkedArray) -> Values:
        times: Values = values.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
        _append(self._own, times)
        _append(self._block, np.where(abs(times // 2) <= _LAST_US // 2, times * 1000, _NO_TIME))
        return times

    def finish(self, _block: str) -> bytes:
        self._block.attrs["name"] = _NO_NAME
        _set_texts(self._block, value_type="datetime64[ns]", tz="UTC")
        return b""


class _Texts:
    """Texts of a fixed length, which is that of the longest; pandas gets them as it writes texts, which is a pickle."""

    def __init__(self, group: h5py.Group, name: str) -> None:
        self._group, self._name = group, name
        self._kinds: dict[str | None, int] = {}
        self._places: list[bytes] = []

    def add(self, values: pa.ChunkedArray) -> Values:
        """Keep which text stands in each row; they are written at the end, when the longest is known."""
        kinds = values.combine_chunks().dictionary_encode()
        words = [*kinds.dictionary.to_pylist(), None]
        places = kinds.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
        known = np.array([self._kinds.setdefault(word, len(self._kinds)) for word in words], dtype="<i4")
        numbers: Values = known[places]
        self._places.append(zlib.compress(numbers.tobytes(), 1))
        return numbers

    def finish(self, block: str) -> bytes:
        texts = [(text or "").encode() for text in self._kinds]
        known = np.array(texts, dtype=f"S{max([1, *map(len, texts)])}")
        rows = h5py.string_dtype("utf-8", known.dtype.itemsize)
        made = self._group.create_dataset(_usable(self._name), shape=(0,), dtype=rows, **_GZIP)
        made.attrs["name"] = attribute_texts([self._name])[0]
        parts = [np.frombuffer(zlib.decompress(part), dtype="<i4") for part in self._places]
        for part in parts:
            _append(made, known[part].astype(made.dtype))
        size = np.min_scalar_type(len(self._kinds))
        small = [part.astype(size) for part in parts]
        whole = self._group.create_dataset(block, shape=(1,), dtype=h5py.vlen_dtype(np.uint8))
        whole[0] = np.frombuffer(_texts_of_pandas(self._kinds, small, size), dtype=np.uint8)
        whole.attrs["name"] = _NO_NAME
        _set_texts(whole, CLASS="VLARRAY", PSEUDOATOM="object", VERSION="1.4", TITLE="")
        return b"\0".join(texts)


def _texts_of_pandas(kinds: Iterable[str | None], parts: Sequence[Values], size: np.dtype[Any]) -> bytes:
    """Return texts as pandas stores them, which is a pickle of an array of objects; ``parts`` number the kinds.

    It says ``take(array([...kinds], "O"), frombuffer(parts, size))``, so that each text is in it once and a row takes a
    byte or two. Source: Python, pickletools.py, on the opcodes.
    """

    def word(text: str | None) -> bytes:
        raw = (text or "").encode()
        return b"N" if text is None else b"X" + struct.pack("<I", len(raw)) + raw

    length = sum(part.nbytes for part in parts)
    return b"".join(
        (
            *(b"\x80\x04cnumpy\ntake\n(cnumpy\narray\n((", *map(word, kinds), b"l", word("O"), b"tR"),
            *(
                b"cnumpy\nfrombuffer\n(\x8e",
                struct.pack("<Q", length),
                *(part.tobytes() for part in parts),
                word(size.str),
                b"tRtR.",
            ),
        )
    )


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
