"""Numbers that come row by row and are wanted column by column, kept in a file of no name meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=np.generic)
_BUFFERED_BYTES = 32 * 1024**2
"""So much stays in memory before it is written."""


class ColumnSpool(Generic[K]):
    """Keeps arrays of 8-byte numbers under keys, in the order in which they are added.

    What is added between two calls of `settle` stays together: columns that get equally many numbers in between are
    read back in pieces of equal length. A context manager for one thread; the file lies in ``folder``, has no name, and
    goes with the block. Raises OSError when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".fedmon-")  # noqa: SIM115 - closed with the block
        self._size = 0
        self._waiting: dict[K, list[NDArray[Any]]] = {}
        self._waiting_bytes = 0
        self._places: dict[K, list[tuple[int, int]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: K, values: NDArray[Any]) -> None:
        """Add numbers to a column."""
        self._places.setdefault(key, [])
        self._waiting.setdefault(key, []).append(values)
        self._waiting_bytes += values.nbytes

    def settle(self) -> None:
        """Write what was added when it is much."""
        if self._waiting_bytes > _BUFFERED_BYTES:
            self._write()

    def read(self, key: K, dtype: type[T]) -> Iterator[NDArray[T]]:
        """Return the numbers of one column, piece by piece; none for a key that there is not."""
        self._write()
        for offset, size in self._places.get(key, ()):
            self._file.seek(offset)
            yield np.frombuffer(self._file.read(size), dtype=dtype)

    def _write(self) -> None:
        self._file.seek(self._size)
        for key, arrays in self._waiting.items():
            content = b"".join(array.tobytes() for array in arrays)
            self._file.write(content)
            self._places[key].append((self._size, len(content)))
            self._size += len(content)
        self._waiting, self._waiting_bytes = {}, 0
