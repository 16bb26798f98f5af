"""The columns of one table in an HDF5 file, filled chunk by chunk."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_CHUNK = 16_384
_LEVEL = 1
_THREADS = 2
_UNUSABLE = re.compile(r"[%/\x00-\x1f\x7f]|\.+$")
_NO_TIME = np.iinfo(np.int64).min
_UNITS = "microseconds since 1970-01-01T00:00:00Z"

Values = NDArray[Any]


class Group:
    """Fills a group with a table; for one thread, which lets others compress."""

    def __init__(self, group: h5py.Group, schema: pa.Schema) -> None:
        self._digest = hashlib.sha256(repr(schema.names).encode())
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fedmon-hdf5")
        group.attrs.create("columns", attribute_texts(schema.names), dtype=h5py.string_dtype())
        self._columns: list[_Numbers | _Texts] = [
            _Texts(group, field) if pa.types.is_string(field.type) else _Numbers(group, field, self._pool)
            for field in schema
        ]
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._schema = schema

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
        """Write what is left, and return a digest of all that was written."""
        try:
            if self._rows:
                self._write(pa.Table.from_batches(self._waiting))
            for column in self._columns:
                column.finish(self._digest)
        finally:
            self._pool.shutdown(cancel_futures=True)
        return self._digest.hexdigest()

    def _write(self, rows: pa.Table) -> None:
        for column, values in zip(self._columns, rows.columns, strict=True):
            column.add(values)
        for column in self._columns:
            column.flush(self._digest)


class _Numbers:
    """Numbers or times; what is compressed goes to the file as it is."""

    def __init__(self, group: h5py.Group, field: pa.Field, pool: ThreadPoolExecutor) -> None:
        self._is_time = pa.types.is_timestamp(field.type)
        self._type = np.dtype("<i8" if self._is_time else "<f8")
        self._set = group.create_dataset(
            _usable(field.name),
            shape=(0,),
            maxshape=(None,),
            chunks=(_CHUNK,),
            dtype=self._type,
            compression="gzip",
            compression_opts=_LEVEL,
            shuffle=True,
        )
        self._set.attrs["name"] = attribute_texts([field.name])[0]
        if self._is_time:
            self._set.attrs["units"] = _UNITS
        self._pool = pool
        self._rows = 0
        self._same: dict[bytes, bytes] = {}
        self._next: tuple[int, Future[bytes] | bytes] | None = None

    def add(self, values: pa.ChunkedArray) -> None:
        chunk = np.empty(_CHUNK, dtype=self._type)
        chunk[len(values) :] = 0
        if self._is_time:
            chunk[: len(values)] = values.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
        else:
            chunk[: len(values)] = values.cast(pa.float64()).to_numpy()
        bits = chunk.view(np.int64)
        if len(values) == _CHUNK and bits[0] == bits[-1] and bool((bits == bits[0]).all()):
            first = chunk[:1].tobytes()
            if first not in self._same:
                self._same[first] = _compressed(chunk)
            self._next = len(values), self._same[first]
        else:
            self._next = len(values), self._pool.submit(_compressed, chunk)

    def flush(self, digest: Any) -> None:
        if self._next is None:
            return
        length, compressed = self._next
        body = compressed if isinstance(compressed, bytes) else compressed.result()
        # The library's own numbers of rows are slow to ask for, and there are many columns.
        self._set.id.set_extent((self._rows + length,))
        self._set.id.write_direct_chunk((self._rows,), body)
        self._rows += length
        digest.update(body)
        self._next = None

    def finish(self, digest: Any) -> None:
        """Have nothing left to write."""


class _Texts:
    """Texts of a fixed length, which is that of the longest."""

    def __init__(self, group: h5py.Group, field: pa.Field) -> None:
        self._group, self._name = group, field.name
        self._set = self._made(1, 0)

    def add(self, values: pa.ChunkedArray) -> None:
        kinds = values.combine_chunks().dictionary_encode()
        texts = [(text or "").encode() for text in kinds.dictionary.to_pylist()]
        longest = max((len(text) for text in texts), default=0)
        if longest > self._set.dtype.itemsize:
            self._widen(longest)
        known = np.array([*texts, b""], dtype=f"S{max(1, longest)}")
        places = kinds.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        at = len(self._set)
        self._set.resize((at + len(values),))
        self._set[at:] = known[places].astype(self._set.dtype)

    def flush(self, digest: Any) -> None:
        """Have written everything."""

    def finish(self, digest: Any) -> None:
        for at in range(0, len(self._set), _CHUNK):
            digest.update(self._set[at : at + _CHUNK].tobytes())

    def _made(self, width: int, rows: int) -> h5py.Dataset:
        made = self._group.create_dataset(
            _usable(self._name),
            shape=(rows,),
            maxshape=(None,),
            chunks=(_CHUNK,),
            dtype=h5py.string_dtype("utf-8", width),
            compression="gzip",
            compression_opts=_LEVEL,
        )
        made.attrs["name"] = attribute_texts([self._name])[0]
        return made

    def _widen(self, width: int) -> None:
        old = self._set
        del self._group[_usable(self._name)]
        self._set = self._made(width, len(old))
        for at in range(0, len(old), _CHUNK):
            self._set[at : at + _CHUNK] = old[at : at + _CHUNK].astype(self._set.dtype)


def attribute_texts(names: Sequence[str]) -> list[str]:
    """Return names as an attribute can hold them, which is without NUL."""
    return [name.replace("\0", "%00") for name in names]


def _usable(name: str) -> str:
    usable = _UNUSABLE.sub(lambda found: "".join(f"%{ord(character):02X}" for character in found[0]), name)
    return usable or "%"


def _compressed(chunk: Values) -> bytes:
    """Return a chunk as HDF5's filters shuffle and deflate make it."""
    return zlib.compress(chunk.view(np.uint8).reshape(-1, chunk.itemsize).T.tobytes(), _LEVEL)
