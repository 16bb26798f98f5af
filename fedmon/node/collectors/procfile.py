"""Files of /proc and /sys that are opened once and read again at each tick, and those that hold one number."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, Why, why
from fedmon.node.collectors.sysfs import LONGEST_TEXT, READ_FLAGS, read_bytes

_FIRST_READ_BYTES = 16_384
_MAX_BYTES = 4_194_304
_OF_THE_KERNEL = ("/proc/", "/sys/")
_NUMBER = re.compile(rb"-?[0-9]{1,30}")
_NUMBER_BYTES = 64
_PIECE_BYTES = 4096
"""A file of many lines is handed out in pieces of a page, each with as many whole lines as it has room for."""


class ProcFile:
    """One small file under a root such as /proc, kept open.

    Opening costs more than reading; the kernel makes the text anew at each read from offset 0. Used by one thread.
    What went away is an error there; a file of a tree that stands in for the kernel's could be read on for ever, and so
    is opened each time.
    """

    def __init__(self, path: Path, *, size_bytes: int = _FIRST_READ_BYTES) -> None:
        self._path, self._size = path, size_bytes
        self._fd: int | None = None
        self._stands_in = not str(path).startswith(_OF_THE_KERNEL)

    @property
    def path(self) -> Path:
        """Return the path, for reasons."""
        return self._path

    def head(self) -> bytes:
        """Return what one read gives: enough for a file that the kernel makes in one piece, or for its first line.

        Raises CollectorUnavailableError when the file cannot be read.
        """
        try:
            descriptor = self._descriptor() if self._fd is None or self._stands_in else self._fd
            return os.pread(descriptor, self._size, 0)
        except OSError as error:
            raise self._unavailable(error) from None

    def read(self, *, longest_line_bytes: int | None = None) -> bytes:
        """Return the whole file, also where the kernel hands it out a page at a time.

        Where no line is longer than ``longest_line_bytes``, a piece that has room for one more is known to be the last
        one; otherwise one more read has to find nothing.

        Raises CollectorUnavailableError when the file cannot be read, or is over 4 MiB.
        """
        try:
            descriptor = self._descriptor()
            text = chunk = os.pread(descriptor, self._size, 0)
            last = 1 if longest_line_bytes is None else min(self._size, _PIECE_BYTES - longest_line_bytes)
            while len(chunk) >= last:
                chunk = os.pread(descriptor, self._size, len(text))
                text += chunk
                if len(text) > _MAX_BYTES:
                    raise CollectorUnavailableError(Why.FAILED, f"{self._path}: longer than {_MAX_BYTES} bytes")
        except OSError as error:
            raise self._unavailable(error) from None
        return text

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._stands_in:
            self.close()
        if self._fd is None:
            self._fd = os.open(self._path, READ_FLAGS)
        return self._fd

    def _unavailable(self, error: OSError) -> CollectorUnavailableError:
        # A device or process that went away leaves a dead descriptor behind: open again next time.
        self.close()
        error.filename = str(self._path)
        return why(error)

    def __del__(self) -> None:
        self.close()


class DeviceFile(ProcFile):
    """A small file of /sys that holds one number, kept open; it may go away with its device."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, size_bytes=_NUMBER_BYTES)

    def number(self) -> int:
        """Return the number. Raises CollectorUnavailableError when there is none."""
        text = self.head().strip()
        if not _NUMBER.fullmatch(text):
            shown = text[:40].decode(errors="replace")
            raise CollectorUnavailableError(Why.FAILED, f"{self._path}: {shown!r} is not a number")
        return int(text)


def text_of(path: Path) -> str | None:
    """Return the first line of a small file, None where it cannot be read or is empty."""
    try:
        text = read_bytes(path)
    except CollectorUnavailableError:
        return None
    return text[:LONGEST_TEXT].decode(errors="replace").partition("\n")[0].strip() or None


def number_of(path: Path) -> int | None:
    """Return the number above 0 that a file holds, None where there is none."""
    try:
        return value if (value := DeviceFile(path).number()) > 0 else None
    except CollectorUnavailableError:
        return None
