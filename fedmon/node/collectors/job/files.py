"""Files of processes: how many may stay open, and reading those that do not."""

from __future__ import annotations

import os
import resource
import threading

from fedmon.node.collectors.files import READ_FLAGS


class Descriptors:
    """How many files all processes of all jobs may keep open together; reading by path costs twice as much.

    Safe from any thread.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._left = soft // 2 if limit is None else limit
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one more, if there is one left."""
        with self._lock:
            if self._left <= 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Return one that was taken."""
        with self._lock:
            self._left += 1


def read_file(path: bytes, size: int) -> bytes:
    """Return the beginning of a file. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def read_whole(path: bytes) -> bytes:
    """Return a file that the kernel may hand out a page at a time. Raises OSError."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        text = chunk = os.read(descriptor, 65_536)
        while chunk:
            chunk = os.read(descriptor, 65_536)
            text += chunk
        return text
    finally:
        os.close(descriptor)
