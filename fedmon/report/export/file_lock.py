"""A lock of the kernel on a file, so that it ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedmon.common.files import storage_errors

_WHOLE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""`struct flock`: type, whence, start, length, pid. Source: fcntl(2), section "Open file description locks"."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[BinaryIO | None]:
    """Give a file that nobody else has locked, opened for reading, or None when there is none; waits for its turn.

    The lock is one of the open file, so it also holds between threads, and is no concern of who only reads. Raises
    StorageError.
    """
    with contextlib.ExitStack() as stack:
        while True:
            with storage_errors(path):
                try:
                    file = stack.enter_context(path.open("r+b"))
                except FileNotFoundError:
                    break
                fcntl.fcntl(file, fcntl.F_OFD_SETLKW, _WHOLE)
                # Whoever held the lock before has put another file in its place.
                if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return
                stack.close()
        yield None
