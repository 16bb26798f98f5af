"""Files that tables are written to, and those in which their columns wait."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 8 * 2**20


class PatientFile(io.RawIOBase):
    """A new or copied file that remembers the first error of writing, and treats later data as written.

    The libraries that write ORC and HDF5 end the whole process, or fail again, when a file fails them while they
    close it. ``check`` raises that error; nothing of a file with an error may be used. For one thread.
    """

    def __init__(self, path: Path) -> None:
        """Raise OSError."""
        self.error: OSError | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._at = self._begun = 0

    def check(self) -> None:
        """Raise OSError when something could not be written."""
        if self.error is not None:
            raise self.error

    def write(self, content: Any) -> int:
        """Write all of it."""
        view = memoryview(content).cast("B")
        length = view.nbytes
        try:
            while view and self.error is None:
                written = os.pwrite(self._fd, view[:_AT_ONCE], self._at)
                view, self._at = view[written:], self._at + written
                if self._at - self._begun >= _AT_ONCE:
                    # The disk begins now, which leaves less to wait for in the end.
                    os.posix_fadvise(self._fd, self._begun, self._at - self._begun, os.POSIX_FADV_DONTNEED)
                    self._begun = self._at
        except OSError as error:
            self.error = error
        self._at += view.nbytes
        return length

    def readinto(self, buffer: Any) -> int:
        """Read available bytes, up to the length of the buffer."""
        read = os.preadv(self._fd, [buffer], self._at)
        self._at += read
        return read

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: os.fstat(self._fd).st_size}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def truncate(self, size: int | None = None, /) -> int:
        """Make the file so long."""
        length = self._at if size is None else size
        try:
            os.ftruncate(self._fd, length)
        except OSError as error:
            self.error = self.error or error
        return length

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def seekable(self) -> bool:
        """Tell that it has places."""
        return True

    def close(self) -> None:
        """Close it; safe to call twice."""
        if not self.closed:
            os.close(self._fd)
        super().close()


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=np.generic)
_BUFFERED_BYTES = 32 * 1024**2
"""So much stays in memory before it is written."""


class ColumnSpool(Generic[K]):
    """Keeps arrays of 8-byte numbers under keys, in the order in which they are added.

    Data added between two calls of `settle` stays together: columns that get equally many numbers in between are
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
        """Write the added data once it is large."""
        if self._waiting_bytes > _BUFFERED_BYTES:
            self._write()

    def read(self, key: K, dtype: type[T]) -> Iterator[NDArray[T]]:
        """Return the numbers of one column, piece by piece; none for an unknown key."""
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
