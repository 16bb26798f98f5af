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


class PatientFile(io.FileIO):
    """A new or copied file that remembers the first error of writing, and treats later data as written.

    The libraries that write ORC and HDF5 end the whole process, or fail again, when a file fails them while they
    close it. ``check`` raises that error; nothing of a file with an error may be used. For one thread.
    """

    def __init__(self, path: Path) -> None:
        """Raise OSError."""
        super().__init__(path, "r+b")
        self.error: OSError | None = None

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
                view = view[super().write(view) :]
        except OSError as error:
            self.error = error
        if view:
            self.seek(view.nbytes, os.SEEK_CUR)
        return length

    def truncate(self, size: int | None = None, /) -> int:
        """Make the file so long."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return self.tell() if size is None else size


@contextlib.contextmanager
def stored(schema: pa.Schema, batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[pa.Table]:
    """Give rows as a table that lies in a file without a name, and comes into memory where it is looked at."""
    with tempfile.TemporaryFile(dir=folder, prefix=".fedmon-") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        yield pa.ipc.open_file(pa.memory_map(f"/proc/self/fd/{file.fileno()}")).read_all()
