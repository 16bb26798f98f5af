"""Small files of /proc and /sys that are opened, read and closed, and the bound on those that may stay open."""

from __future__ import annotations

import os
import re
import resource
import threading
from pathlib import Path

from fedmon.node.collectors.base import CollectorUnavailableError, Why, why

MAX_NUMBER = 2**64 - 1
"""The largest number that the kernel counts to; a greater one is no number of the kernel's."""

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without O_NONBLOCK a named pipe in the place of a file would be waited for."""

LONGEST_TEXT = 128
"""No name or label of a device is longer; garbage in its place must not make a message of its own."""

_MAX_BYTES = 65_536
_SHOWN = 40
_DIGITS = re.compile(r"(\d+)")


def read_bytes(path: Path | str) -> bytes:
    """Return a file's content, up to 64 KiB. Raises CollectorUnavailableError when the file cannot be read."""
    try:
        descriptor = os.open(path, READ_FLAGS)
        try:
            return os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise why(error) from None


def read_text(path: Path) -> str:
    """Return a file's text without the space around it, up to 128 characters; what is not UTF-8 is replaced.

    Raises CollectorUnavailableError when the file cannot be read.
    """
    return read_bytes(path).decode(errors="replace").strip("\0 \t\r\n")[:LONGEST_TEXT]


def read_number(path: Path | str) -> int:
    """Return the one whole number that a file holds.

    Raises CollectorUnavailableError when the file cannot be read or holds something else.
    """
    text = read_bytes(path)
    try:
        number = int(text)
    except ValueError:
        raise garbled(path, text) from None
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        raise garbled(path, text)
    return number


def read_count(path: Path) -> int:
    """Return the one number from 0 that a file holds. Raises CollectorUnavailableError as read_number does."""
    number = read_number(path)
    if number < 0:
        raise garbled(path, str(number).encode())
    return number


def entries(folder: Path, pattern: str = "") -> list[str]:
    """Return the names in a folder that match a pattern as a whole, ``x2`` before ``x10``; all without a pattern.

    Raises CollectorUnavailableError when the folder cannot be read.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is wanted, and there are thousands
    except OSError as error:
        error.filename = str(folder)
        raise why(error) from None
    matching = re.compile(pattern or ".*", re.DOTALL)
    return sorted(filter(matching.fullmatch, names), key=natural)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers inside names by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def garbled(path: Path | str, text: bytes) -> CollectorUnavailableError:
    """Return the error of a file whose content is not what the kernel writes, with the beginning of it."""
    shown = text[:_SHOWN].decode(errors="replace")
    held = f"{shown!r} cannot be understood" if text.strip() else "is empty"
    return CollectorUnavailableError(Why.FAILED, f"{path}: {held}")


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
