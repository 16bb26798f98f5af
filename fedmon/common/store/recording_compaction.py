"""Rows of recordings that become others: small rows are merged, and several recordings become one."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmon.common.files import Closing, storage_errors, sync
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording_file import (
    DAMAGED,
    DROPPED_BY_AGE,
    DROPPED_BY_SIZE,
    TARGET_SAMPLES,
    Key,
    RecordingFile,
    Stream,
    StreamTable,
    add_batches,
    count,
    insert_row,
)
from fedmon.common.store.recording_format import RowPlace, UnreadableRowError, decode

logger = logging.getLogger(__name__)

HALFWAY_SAMPLES = 150
IDLE_S = 600.0
"""A stream to which nothing was added for so long is taken as complete."""
_MOST_BYTES = 131_072
"""Most bytes of bodies merged at once: about 60,000 numbers, some 50 ms."""

Row = tuple[int, int, int, int]
"""Id, first and last sample, bytes of the body."""
_TOGETHER = 200
_NEW_MARK = (
    "INSERT INTO mark (source, t, text) SELECT ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM mark WHERE source = ? AND t = ? AND text = ?)"
)
_COLUMNS = "first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body"


class Compaction:
    """Merges rows of a recording, one run of them a call: to rows of 150 samples soon, and these to rows of 600."""

    def __init__(self, file: RecordingFile, streams: StreamTable) -> None:
        self._file, self._streams = file, streams

    def step(self, now: float) -> bool:
        """Merge one run of rows, or give back unused pages; tells whether there was something to do.

        Raises StorageError, with nothing changed.
        """
        with self._file.transaction():
            for stream in self._streams.values():
                if not stream.stored:
                    continue
                complete = now - stream.kept >= IDLE_S
                for target, done_to in ((TARGET_SAMPLES, stream.compacted_to), (HALFWAY_SAMPLES, stream.joined_to)):
                    waiting = stream.stored.last + 1 - done_to
                    final = complete and target == TARGET_SAMPLES and waiting > 0
                    if (waiting >= target or final) and self._compact(stream, target, done_to, complete=final):
                        return True
        return self._shrink()

    def _compact(self, stream: Stream, target: int, done_to: int, *, complete: bool) -> bool:
        """Merge the first rows behind ``done_to`` that make up ``target`` samples; False when there are none yet.

        Inside a transaction.
        """
        rows = self._rows(stream, done_to)
        while rows:
            length = _mergeable(rows, target)
            if length == len(rows) and not complete:
                return False
            run, rows = rows[:length], rows[length:]
            if length > 1 and not self._merge(stream, run):
                return True
            done_to = run[-1][2] + 1
            stream.joined_to = max(stream.joined_to, done_to)
            if target == TARGET_SAMPLES:
                stream.compacted_to = done_to
            if length > 1:
                return True
        return False

    def _rows(self, stream: Stream, done_to: int) -> list[Row]:
        return self._file.rows(
            "SELECT id, first_seq, last_seq, length(body) FROM batch WHERE source = ? AND last_seq >= ? "
            "ORDER BY last_seq LIMIT 1000",
            (stream.source, done_to),
        )

    def _merge(self, stream: Stream, run: list[Row]) -> bool:
        """Make one row of several; False after it took a damaged one out."""
        batches: list[Batch] = []
        kept = 0.0
        for number, first, last, _ in run:
            ((row_kept, body),) = self._file.rows("SELECT kept, body FROM batch WHERE id = ?", (number,))
            try:
                batches += decode(body, RowPlace(stream.key, first, last))
            except UnreadableRowError as error:
                self._give_up(stream, number, first, last, error)
                return False
            kept = max(kept, row_kept)
        for number, *_ in run:
            self._file.run("DELETE FROM batch WHERE id = ?", (number,))
        insert_row(self._file, stream, batches, kept)
        self._streams.update_ends(stream)
        return True

    def _give_up(self, stream: Stream, number: int, first: int, last: int, error: UnreadableRowError) -> None:
        """Take a damaged row out, and say that its samples are lost; inside a transaction."""
        logger.error("%s; they are given up", error)
        self._file.run("DELETE FROM batch WHERE id = ?", (number,))
        self._file.run(
            "INSERT OR REPLACE INTO lost (source, first_seq, last_seq, reason) VALUES (?, ?, ?, 'damaged')",
            (stream.source, first, last),
        )
        count(self._file, DAMAGED, last - first + 1)
        stream.stored.remove(first, last)
        stream.lost.add(first, last)
        self._streams.update_ends(stream)

    def _shrink(self) -> bool:
        """Give some pages back to the disk when an eighth of the file is unused."""
        pages, free = self._file.pragma("page_count"), self._file.pragma("freelist_count")
        if free < 8 or free < pages // 8:
            return False
        with self._file.transaction():
            self._file.rows("PRAGMA incremental_vacuum(256)")
        return True


def _mergeable(rows: list[Row], target: int) -> int:
    """Return how many of the first rows can be merged."""
    sizes = itertools.accumulate(size for _, _, _, size in rows)
    for at, ((_, first, last, _), size) in enumerate(zip(rows, sizes, strict=True)):
        fits = last - rows[0][1] < target and size <= _MOST_BYTES
        if at and not (fits and first == rows[at - 1][2] + 1):
            return at
    return len(rows)


class RecordingJoin(Closing):
    """A new recording, made of others; a context manager, for one thread.

    The first of two recordings wins if they differ about a node. `finish` makes it complete: until then it is worth
    nothing after a crash. Raises StorageError.
    """

    def __init__(self, path: Path) -> None:
        self._into = RecordingFile(path, read_only=False)
        self._streams = StreamTable(self._into)
        # It is on the disk when it is finished, not before: a sync for each transaction would take most of the time.
        self._into.rows("PRAGMA synchronous = OFF")

    def close(self) -> None:
        """Close the new file; safe to call twice."""
        self._into.close()

    def add(self, path: Path, *, check: bool = False) -> int:
        """Take over one recording; with ``check`` without its damaged rows. Returns how many samples were new."""
        with contextlib.closing(RecordingFile(path, read_only=True)) as source:
            streams = source.rows("SELECT id, node_id, stream, boot, floor_seq FROM source")
            with self._into.transaction():
                for row in source.rows("SELECT node_id, boot, document FROM description"):
                    self._into.run("INSERT OR IGNORE INTO description VALUES (?, ?, ?)", row)
                for name, value in source.rows("SELECT name, value FROM number"):
                    if name in (DROPPED_BY_AGE, DROPPED_BY_SIZE, DAMAGED):
                        count(self._into, name, int(value))
            return sum(
                self._add_stream(source, number, self._stream((node_id, stream, boot), floor), check=check)
                for number, node_id, stream, boot, floor in streams
            )

    def finish(self) -> None:
        """Write everything to the disk, as one file that needs no other beside it."""
        self._into.rows("PRAGMA journal_mode = DELETE")
        self._into.close()
        with storage_errors(self._into.path):
            sync(self._into.path)

    def _stream(self, key: Key, floor: int) -> Stream:
        with self._into.transaction():
            is_new = key not in self._streams
            stream = self._streams.make(key)
            stream.floor_seq = floor if is_new else min(floor, stream.floor_seq)
            self._into.run("UPDATE source SET floor_seq = ? WHERE id = ?", (stream.floor_seq, stream.source))
        return stream

    def _add_stream(self, source: RecordingFile, number: int, stream: Stream, *, check: bool) -> int:
        samples = 0
        for rows in _rows(source, number):
            with self._into.transaction():
                samples += sum(self._add_row(stream, row, check=check) for row in rows)
        with self._into.transaction():
            for row in source.rows("SELECT first_seq, last_seq, reason FROM lost WHERE source = ?", (number,)):
                self._into.run("INSERT OR IGNORE INTO lost VALUES (?, ?, ?, ?)", (stream.source, *row))
            for t, text in source.rows("SELECT t, text FROM mark WHERE source = ? ORDER BY id", (number,)):
                self._into.run(_NEW_MARK, (stream.source, t, text) * 2)
        return samples

    def _add_row(self, stream: Stream, row: tuple[Any, ...], *, check: bool) -> int:
        """Take over one row, or the part of it that is new; returns how many samples that is."""
        first, last, kept, body = row[0], row[1], row[7], row[8]
        absent = stream.stored.absent(first, last)
        if not absent:
            return 0
        if check or absent != [(first, last)]:
            try:
                batches = decode(body, RowPlace(stream.key, first, last))
            except UnreadableRowError as error:
                logger.warning("left out: %s", error)
                return 0
            return add_batches(self._into, self._streams, batches, kept)
        marks = ", ".join("?" * (1 + len(row)))
        self._into.run(f"INSERT INTO batch (source, {_COLUMNS}) VALUES ({marks})", (stream.source, *row))  # noqa: S608
        stream.stored.add(first, last)
        return int(last - first + 1)


def _rows(source: RecordingFile, number: int) -> Iterator[list[tuple[Any, ...]]]:
    position = -1
    while rows := source.rows(
        f"SELECT {_COLUMNS} FROM batch WHERE source = ? AND last_seq > ? ORDER BY last_seq LIMIT ?",  # noqa: S608
        (number, position, _TOGETHER),
    ):
        position = rows[-1][1]
        yield rows
