"""Waiting until a file changes: the kernel says so, and where it does not, the wait ends with its deadline."""

from __future__ import annotations

import ctypes
import os
import select
import threading
from pathlib import Path
from typing import Self

# Source: inotify(7): content changed, attributes changed, a writer closed it, it was moved or deleted.
_MODIFIED, _ATTRIBUTES, _CLOSED, _DELETED, _MOVED = 0x2, 0x4, 0x8, 0x400, 0x800
_EVENTS_BYTES = 65_536


class FileChanges:
    """Tells when a file that is there changes; for one thread. Also the death of a process that writes it is a change.

    Without inotify, and of files that other machines write, nothing is heard of a change: the deadline of a wait is
    how old what one knows may become.
    """

    def __init__(self, path: Path) -> None:
        self._file = _watching(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the file has changed since the last wait; false where the time was over first."""
        if self._file < 0:
            threading.Event().wait(timeout_s)
            return False
        ready, _, _ = select.select([self._file], [], [], timeout_s)
        if ready:
            os.read(self._file, _EVENTS_BYTES)
        return bool(ready)

    def close(self) -> None:
        """Watch no longer."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _watching(path: Path) -> int:
    """Return a descriptor that can be read when the file changes; -1 where the system has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        begin, watch = libc.inotify_init1, libc.inotify_add_watch
    except AttributeError:
        return -1
    file = int(begin(os.O_CLOEXEC | os.O_NONBLOCK))
    mask = _MODIFIED | _ATTRIBUTES | _CLOSED | _DELETED | _MOVED
    if file >= 0 and watch(file, os.fsencode(path), ctypes.c_uint32(mask)) < 0:
        os.close(file)
        return -1
    return file
