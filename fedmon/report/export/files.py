"""The file that a table is written to, and one in which its rows wait."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

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

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._fd

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


@contextlib.contextmanager
def stored(schema: pa.Schema, batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[pa.Table]:
    """Give rows as a table that lies in a file without a name, and comes into memory where it is looked at."""
    with tempfile.TemporaryFile(dir=folder, prefix=".fedmon-") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        yield pa.ipc.open_file(pa.memory_map(f"/proc/self/fd/{file.fileno()}")).read_all()
