"""Rows of other recordings are taken over as they are: of several that become one, and of a damaged one."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.common.errors import StorageError
from fedmon.common.files import sync
from fedmon.common.store.recording_compaction import AGE_S, DAMAGED, DROPPED_BY_AGE, DROPPED_BY_SIZE, count
from fedmon.common.store.recording_file import RecordingFile, Stream, StreamTable, add_batches
from fedmon.common.store.recording_format import RowPlace, UnreadableRowError, decode

logger = logging.getLogger(__name__)

_TOGETHER = 200
_MOST_ERRORS = 1_000
"""A file that fails so often holds nothing worth more time."""
_SMALL = {
    "source": ("id", "node_id", "boot", "stream", "floor_seq"),
    "lost": ("source", "first_seq", "last_seq", "reason"),
    "mark": ("id", "source", "t", "text"),
    "description": ("node_id", "boot", "document"),
    "number": ("name", "value"),
}
_AGE = (
    "INSERT INTO number (name, value) SELECT ?, max(kept) FROM batch WHERE true "
    "ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
)
_COLUMNS = "first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body"
_BATCH = ("source", *_COLUMNS.split(", "))
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
        self._streams = StreamTable(self._into)
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
            sync(path)
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


def _place(stream: Stream, row: Row) -> RowPlace:
    node_id, name, boot = stream.key
    return RowPlace(node_id=node_id, boot=boot, stream=name, first_seq=row[0], last_seq=row[1])


def _is_readable(stream: Stream, row: Row) -> bool:
    try:
        decode(row[8], _place(stream, row))
    except UnreadableRowError:
        return False
    return True


def salvage(aside: Path, *, into: RecordingFile) -> int:
    """Copy every row that can be read from a damaged recording; returns how many samples that were.

    Rows are copied as they are: whether a body is sound shows when it is read. A failure ends the copying and is
    reported in the log, because what is new matters more than what was rescued.
    """
    rescued = 0
    try:
        with contextlib.closing(sqlite3.connect(aside)) as damaged:
            known: set[int] | None = None
            for table, names in _SMALL.items():
                _copy(into, table, names, _damaged_rows(damaged, table, names), known)
                known = {source for (source,) in into.rows("SELECT id FROM source")}
            rows = _damaged_rows(damaged, "batch", ("id", *_BATCH))
            while known and (together := [row[1:] for row in islice(rows, _TOGETHER)]):
                rescued += sum(row[2] - row[1] + 1 for row in _copy(into, "batch", _BATCH, iter(together), known))
            if rescued:
                with into.transaction():  # without it what is new would be older than what was rescued, and go first
                    into.run(_AGE, (AGE_S,))
    except (sqlite3.Error, StorageError, TypeError) as error:
        logger.warning("no more can be read of %s: %s", aside, error)
    logger.warning("%d samples were taken over from the damaged recording %s", rescued, aside)
    return rescued


def _copy(
    into: RecordingFile,
    table: str,
    names: tuple[str, ...],
    rows: Iterator[tuple[Any, ...]],
    known: set[int] | None,
) -> list[tuple[Any, ...]]:
    """Copy rows and return them; rows whose source row was lost are skipped."""
    marks = ", ".join("?" * len(names))
    of = names.index("source") if "source" in names else None
    copied = [row for row in rows if of is None or known is None or row[of] in known]
    with into.transaction():
        for row in copied:
            into.run(f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})", row)  # noqa: S608
    return copied


def _damaged_rows(damaged: sqlite3.Connection, table: str, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a table that can be read; batches one by one, so that a damaged one costs no other."""
    columns = ", ".join(names)
    if table != "batch":
        with contextlib.suppress(sqlite3.Error):
            yield from damaged.execute(f"SELECT {columns} FROM {table}")  # noqa: S608
        return
    errors, position = 0, 0
    while errors < _MOST_ERRORS:
        try:
            row = damaged.execute(
                f"SELECT {columns} FROM batch NOT INDEXED WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608
                (position,),
            ).fetchone()
        except sqlite3.Error:
            errors += 1
            position += 1
            continue
        if row is None:
            return
        if row[0] <= position or None in row:  # what a damaged page holds may come in any order, and without end
            errors += 1
            position += 1
            continue
        position = row[0]
        yield row
