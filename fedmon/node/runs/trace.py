"""What is kept of a running plan, within bounds that no plan can exceed: what it prints, its events, its result.

What it prints: the first bytes and the last ones, in a file that never grows over its bound. One process writes, others
read meanwhile. The file is a header, then the head, then a ring with the tail. The header counts the bytes before they
are written and after, so that a reader knows which of the ring may just be replaced.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import mmap
import os
import struct
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.wire.runs import TracePiece
from fedmon.node.runs.order import Event, Logged, Reported
from fedmon.plan.parcels import check

RATE_PER_S = 200.0
BURST = 2000
MAX_EVENTS = 100_000
MAX_EVENTS_BYTES = 33_554_432
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
        """Make the file. Raises OSError."""
        self._head = size_bytes // 2
        self._ring = size_bytes - self._head
        self.total = 0
        """How many bytes came."""
        self._kept = 0
        self._is_full = False
        self._fd = _made(path, os.O_RDWR | os.O_TRUNC)
        self._note(0)

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
            self._note(self._kept if self._is_full else begun)

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


class _Header(NamedTuple):
    head: int = 0
    ring: int = 1
    begun: int = 0
    kept: int = 0
    total: int = 0


def read_trace(path: Path, offset: int, max_bytes: int) -> TracePiece:
    """Return what is kept from byte ``offset`` on, ``max_bytes`` of it at most.

    A character is not cut in two; bytes that are no UTF-8 become U+FFFD. There is nothing in a file that is not there.
    Raises StorageError.
    """
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file.fileno(), offset, max(max_bytes, _LONGEST_CHARACTER))
    except FileNotFoundError:
        return TracePiece(offset=offset, text="", next_offset=offset, size_bytes=0)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def _read(descriptor: int, asked: int, max_bytes: int) -> TracePiece:
    now = _header(descriptor)
    offset, total = min(asked, now.total), now.total
    for _ in range(_MAX_TRIES):
        start = offset if offset < min(now.head, now.kept) else max(offset, now.head, now.begun - now.ring)
        start = min(start, max(now.kept, offset))
        end = min(start + max_bytes, now.kept if start >= now.head else min(now.head, now.kept))
        chunk = _bytes_of(descriptor, start, end, now) if end > start else b""
        before, now = now, _header(descriptor)
        if start >= before.head and start < now.begun - before.ring:
            total = now.total  # it was replaced while it was read
            continue
        text, after = _decoded(chunk)
        if not chunk and before.kept < before.total and start >= before.kept:
            after = before.total - start  # a full disk kept nothing of it
        return TracePiece(
            offset=start,
            text=text,
            next_offset=start + after,
            size_bytes=max(total, now.total),
            skipped_bytes=start - offset,
        )
    # It prints faster than it can be read: the next look comes.
    return TracePiece(offset=offset, text="", next_offset=offset, size_bytes=total)


def _header(descriptor: int) -> _Header:
    text = os.pread(descriptor, _HEADER.size, 0)
    if len(text) < _HEADER.size or not text.startswith(_MAGIC):
        return _Header()
    _, head, ring, begun, kept, total = _HEADER.unpack(text)
    return _Header(head, max(ring, 1), begun, kept, total)


def _bytes_of(descriptor: int, start: int, end: int, header: _Header) -> bytes:
    if start < header.head:
        return os.pread(descriptor, end - start, _HEADER.size + start)
    ring_at = _HEADER.size + header.head
    place, size = (start - header.head) % header.ring, end - start
    first = os.pread(descriptor, min(size, header.ring - place), ring_at + place)
    return first if len(first) == size else first + os.pread(descriptor, size - len(first), ring_at)


def _decoded(chunk: bytes) -> tuple[str, int]:
    """Return a text and how many bytes it is; the beginning of a character at the end waits, unless it is all."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(chunk)
    rest = len(decoder.getstate()[0])
    return (text, len(chunk) - rest) if rest < len(chunk) else (chunk.decode(errors="replace"), len(chunk))


class EventLog:
    """Appends what happens to a job to a file, a line each; belongs to the keeper.

    Scalars and log lines beyond ``RATE_PER_S`` with bursts of ``BURST``, or beyond ``MAX_EVENTS`` or
    ``MAX_EVENTS_BYTES`` altogether, are counted and not kept, which one line says at the first of them. A full disk
    loses lines, never the job.
    """

    def __init__(self, path: Path, *, mono: float) -> None:
        """Make the file; ``mono`` is the monotonic time of now. Raises OSError."""
        self._fd = _made(path, os.O_WRONLY | os.O_APPEND)
        self.scalars = 0
        """How many reports came, kept or not."""
        self.dropped = 0
        self._tokens, self._filled = float(BURST), mono
        self._events = self._bytes = 0
        self._is_torn = False

    def report(self, t: float, values: dict[str, float | None], step: int | None, *, mono: float) -> None:
        """Write what the plan reported at Unix time ``t``."""
        number, self.scalars = self.scalars, self.scalars + 1
        self.add_bounded(Reported(t=t, number=number, values=values, step=step), mono=mono)

    def add_bounded(self, event: Reported | Logged, *, mono: float) -> None:
        """Write what the plan reported or logged, unless that is too much."""
        self._tokens = min(self._tokens + (mono - self._filled) * RATE_PER_S, float(BURST))
        self._filled = mono
        is_full = self._events >= MAX_EVENTS or self._bytes >= MAX_EVENTS_BYTES
        if self._tokens >= 1 and not is_full:
            self._tokens -= 1
            self.add(event)
            return
        if not self.dropped:
            bound = (
                f"{MAX_EVENTS} reports and log lines, or {MAX_EVENTS_BYTES} bytes of them, are kept of one job"
                if is_full
                else f"{RATE_PER_S:g} reports and log lines a second, {BURST} at once, are kept"
            )
            self.add(Logged(t=event.t, level="WARNING", message=f"{bound}: those beyond are counted and left out"))
        self.dropped += 1

    def add(self, event: Event) -> None:
        """Write an event."""
        line = (b"\n" if self._is_torn else b"") + msgspec.json.encode(event) + b"\n"
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        # After half a line the next one begins anew, and the reader passes over the half.
        self._is_torn = written < len(line) and (written > 0 or self._is_torn)
        self._events += 1
        self._bytes += written


class ResultFile:
    """Takes the pieces of one result; made at the first of them. ``problem`` tells why the disk did not take it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.problem = ""

    @property
    def sha256(self) -> str:
        """The digest of what came so far."""
        return self._digest.hexdigest()

    def write(self, piece: memoryview) -> None:
        """Take the next piece."""
        self.size_bytes += len(piece)
        if self.problem:
            return
        self._digest.update(piece)
        try:
            if self._fd < 0:
                self._fd = _made(self._path, os.O_RDWR | os.O_TRUNC)
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            self._failed(error)

    def keep(self, result_format: Literal["json", "npz"], max_bytes: int) -> str:
        """Check it as a parcel, and have the disk hold it; return what is wrong with it, nothing when it is one."""
        try:
            with mmap.mmap(self._fd, self.size_bytes, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
                check(result_format, view, max_bytes)
            os.fdatasync(self._fd)
        except OSError as error:
            self._failed(error)
        except FedmonError as error:
            return str(error)
        except (RecursionError, MemoryError) as error:
            return f"it is too complicated to be checked ({type(error).__name__})"
        return ""

    def discard(self) -> None:
        """Remove it: what does not count is not kept."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _failed(self, error: OSError) -> None:
        self.problem = f"{self._path}: {error.strerror}"
        self.discard()


def _made(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
