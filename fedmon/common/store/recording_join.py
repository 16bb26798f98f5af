"""Several recordings become one: rows are taken over as they are, and each sample comes once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.store.recording_body import Place, UnreadableRowError, decode
from fedmon.common.store.recording_bounds import DAMAGED, DROPPED_BY_AGE, DROPPED_BY_SIZE, count
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_streams import Stream, Streams
from fedmon.common.store.recording_writer import add_batches

_TOGETHER = 200
_COLUMNS = "first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body"
_INSERT = f"INSERT INTO batch (source, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608

Row = tuple[Any, ...]


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one recording: samples taken over, samples that were there already, samples of damaged rows."""

    samples: int = 0
    repeated: int = 0
    damaged: int = 0


class RecordingJoin:
    """A new recording, made of others; a context manager, for one thread.

    What was joined first wins where two say different things of a node. `finish` makes it complete: until then it is
    worth nothing after a crash. Raises StorageError.
    """

    def __init__(self, path: Path) -> None:
        self._into = RecordingFile(path, read_only=False)
        self._streams = Streams(self._into)
        self._marks: set[tuple[int, float, str]] = set()
        # It is on the disk when it is finished, not before: a sync for each transaction would take most of the time.
        self._into.rows("PRAGMA synchronous = OFF")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._into.close()

    def add(self, path: Path, *, check: bool = False) -> Joined:
        """Take over everything of one recording; with ``check`` each row is read, and left out when it is damaged."""
        source = RecordingFile(path, read_only=True)
        with contextlib.closing(source):
            streams = source.rows("SELECT id, node_id, stream, boot, floor_seq FROM source")
            with self._into.transaction():
                for node_id, boot, document in source.rows("SELECT node_id, boot, document FROM description"):
                    self._into.run("INSERT OR IGNORE INTO description VALUES (?, ?, ?)", (node_id, boot, document))
                for name, value in source.rows("SELECT name, value FROM number"):
                    if name in (DROPPED_BY_AGE, DROPPED_BY_SIZE, DAMAGED):
                        count(self._into, name, int(value))
            found = [
                self._add_stream(source, number, self._stream((node_id, stream, boot), floor), check=check)
                for number, node_id, stream, boot, floor in streams
            ]
        return Joined(
            samples=sum(one.samples for one in found),
            repeated=sum(one.repeated for one in found),
            damaged=sum(one.damaged for one in found),
        )

    def finish(self) -> None:
        """Write everything to the disk, as one file that needs no other beside it."""
        self._into.rows("PRAGMA journal_mode = DELETE")
        path = self._into.path
        self._into.close()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(f"cannot write the recording {path}: {error.strerror}") from error

    def _stream(self, key: tuple[str, str, int], floor: int) -> Stream:
        with self._into.transaction():
            is_new = self._streams.find(key) is None
            stream = self._streams.make(key)
            stream.floor_seq = floor if is_new else min(floor, stream.floor_seq)
            self._into.run("UPDATE source SET floor_seq = ? WHERE id = ?", (stream.floor_seq, stream.source))
        return stream

    def _add_stream(self, source: RecordingFile, number: int, stream: Stream, *, check: bool) -> Joined:
        samples = repeated = damaged = 0
        for rows in _rows(source, number):
            with self._into.transaction():
                for row in rows:
                    first, last = row[:2]
                    if check and not _is_readable(stream, row):
                        damaged += last - first + 1
                        self._into.run(
                            "INSERT OR IGNORE INTO lost VALUES (?, ?, ?, 'damaged')", (stream.source, first, last)
                        )
                        continue
                    new = self._add_row(stream, row)
                    samples, repeated = samples + new, repeated + last - first + 1 - new
        with self._into.transaction():
            for low, high, reason in source.rows(
                "SELECT first_seq, last_seq, reason FROM lost WHERE source = ?", (number,)
            ):
                self._into.run("INSERT OR IGNORE INTO lost VALUES (?, ?, ?, ?)", (stream.source, low, high, reason))
            for t, text in source.rows("SELECT t, text FROM mark WHERE source = ? ORDER BY id", (number,)):
                if (stream.source, t, text) not in self._marks:
                    self._marks.add((stream.source, t, text))
                    self._into.run("INSERT INTO mark (source, t, text) VALUES (?, ?, ?)", (stream.source, t, text))
        return Joined(samples=samples, repeated=repeated, damaged=damaged)

    def _add_row(self, stream: Stream, row: Row) -> int:
        """Take over one row, or of it what is not there yet; returns how many samples that were."""
        first, last, kept, body = row[0], row[1], row[7], row[8]
        absent = list(stream.stored.absent(first, last))
        if absent == [(first, last)]:
            self._into.run(_INSERT, (stream.source, *row))
            stream.stored.add(first, last)
            return int(last - first + 1)
        if not absent:
            return 0
        try:
            return add_batches(self._into, self._streams, decode(body, _place(stream, row)), kept)
        except UnreadableRowError:
            return 0


def _rows(source: RecordingFile, number: int) -> Iterator[list[Row]]:
    position = -1
    while True:
        rows = source.rows(
            f"SELECT {_COLUMNS} FROM batch WHERE source = ? AND last_seq > ? ORDER BY last_seq LIMIT ?",  # noqa: S608
            (number, position, _TOGETHER),
        )
        if not rows:
            return
        position = rows[-1][1]
        yield rows


def _place(stream: Stream, row: Row) -> Place:
    node_id, name, boot = stream.key
    return Place(node_id=node_id, boot=boot, stream=name, first_seq=row[0], last_seq=row[1])


def _is_readable(stream: Stream, row: Row) -> bool:
    try:
        decode(row[8], _place(stream, row))
    except UnreadableRowError:
        return False
    return True
