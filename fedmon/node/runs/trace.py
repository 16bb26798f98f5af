"""What is kept of what a job prints: the first bytes and the last ones, in a file that never grows over its bound.

One process writes, others read meanwhile. The file is a header, then the head, then a ring with the tail. The header
counts the bytes before they are written and after, so that a reader knows which of the ring may just be replaced.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.wire.runs import TracePiece

_HEADER = struct.Struct("<8sQQQQQ")
_MAGIC = b"fedmontr"
_FILE_MODE = 0o600
_MAX_TRIES = 5
_LONGEST_CHARACTER = 4


class TraceWriter:
    """Takes bytes without an end, and keeps ``size_bytes`` of them: half of the first, half of the last.

    Never raises for a full disk: what cannot be written is counted and not kept.
    """

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        """Make the file. Raises StorageError."""
        self._head = size_bytes // 2
        self._ring = size_bytes - self._head
        self.total = 0
        """How many bytes came."""
        self._kept = 0
        self._is_full = False
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, _FILE_MODE)
            self._note(0)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error.strerror}") from error

    def write(self, chunk: bytes | memoryview) -> None:
        """Take what comes next."""
        view = memoryview(chunk)
        begun = self.total + len(view)
        if not self._is_full:
            try:
                self._note(begun)
                self._keep(view)
                self._kept = begun
            except OSError:
                self._is_full = True  # nothing after a hole is kept: a reader could not tell it from the rest
        self.total = begun
        with contextlib.suppress(OSError):
            self._note(begun if not self._is_full else self._kept)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _keep(self, view: memoryview) -> None:
        at = self.total
        if at < self._head:
            first = view[: self._head - at]
            _write_all(self._fd, first, _HEADER.size + at)
            view, at = view[len(first) :], at + len(first)
        if len(view) > self._ring:
            at += len(view) - self._ring
            view = view[-self._ring :]
        while view:
            place = (at - self._head) % self._ring
            piece = view[: self._ring - place]
            _write_all(self._fd, piece, _HEADER.size + self._head + place)
            view, at = view[len(piece) :], at + len(piece)

    def _note(self, begun: int) -> None:
        header = _HEADER.pack(_MAGIC, self._head, self._ring, begun, self._kept, self.total)
        _write_all(self._fd, memoryview(header), 0)


def read_trace(path: Path, offset: int, max_bytes: int) -> TracePiece:
    """Return what is kept from byte ``offset`` on, ``max_bytes`` of it at most.

    A character is not cut in two; bytes that are no UTF-8 become U+FFFD. There is nothing in a file that is not there.
    Raises StorageError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return TracePiece(offset=offset, text="", next_offset=offset, size_bytes=0)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _read(descriptor, offset, max(max_bytes, _LONGEST_CHARACTER))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _read(descriptor: int, asked: int, max_bytes: int) -> TracePiece:
    head, ring, begun, kept, total = _header(descriptor)
    offset = min(asked, total)
    for _ in range(_MAX_TRIES):
        start = offset if offset < min(head, kept) else max(offset, head, begun - ring)
        start = min(start, max(kept, offset))
        end = min(start + max_bytes, kept if start >= head else min(head, kept))
        chunk = _kept(descriptor, start, end, head, ring) if end > start else b""
        _, _, begun, _, now = _header(descriptor)
        if start < head or start >= begun - ring:  # else it was replaced while it was read
            chunk = _whole_characters(chunk)
            size = max(total, now)
            after = start + len(chunk)
            if not chunk and kept < total and start >= kept:
                after = total  # a full disk kept nothing of it
            return TracePiece(
                offset=start,
                text=chunk.decode(errors="replace"),
                next_offset=after,
                size_bytes=size,
                skipped_bytes=start - offset,
            )
        head, ring, begun, kept, total = _header(descriptor)
    # It prints faster than it can be read: the next look comes.
    return TracePiece(offset=offset, text="", next_offset=offset, size_bytes=total)


def _header(descriptor: int) -> tuple[int, int, int, int, int]:
    text = os.pread(descriptor, _HEADER.size, 0)
    if len(text) < _HEADER.size or not text.startswith(_MAGIC):
        return 0, 1, 0, 0, 0
    _, head, ring, begun, kept, total = _HEADER.unpack(text)
    return head, max(ring, 1), begun, kept, total


def _kept(descriptor: int, start: int, end: int, head: int, ring: int) -> bytes:
    if start < head:
        return os.pread(descriptor, end - start, _HEADER.size + start)
    place = (start - head) % ring
    size = end - start
    first = os.pread(descriptor, min(size, ring - place), _HEADER.size + head + place)
    return first if len(first) == size else first + os.pread(descriptor, size - len(first), _HEADER.size + head)


def _whole_characters(chunk: bytes) -> bytes:
    """Leave out the beginning of a character at the end, unless there is nothing else."""
    for back in range(1, min(_LONGEST_CHARACTER, len(chunk)) + 1):
        byte = chunk[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return chunk[:-back] if length > back and len(chunk) > back else chunk
    return chunk


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
