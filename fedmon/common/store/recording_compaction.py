"""Compaction: small rows that follow each other become one, which takes less room and is read faster."""

from __future__ import annotations

import logging
from typing import Any

from fedmon.common.metrics.batch import Batch
from fedmon.common.store.recording_body import Place, UnreadableRowError, decode, encode
from fedmon.common.store.recording_bounds import DAMAGED, count
from fedmon.common.store.recording_file import RecordingFile
from fedmon.common.store.recording_streams import Stream, Streams

logger = logging.getLogger(__name__)

TARGET_SAMPLES = 600
HALFWAY_SAMPLES = 150
IDLE_S = 600.0
"""A stream to which nothing was added for so long is taken as complete."""
_MOST_BYTES = 131_072
"""So many bytes of bodies are merged at most at once: about 60,000 numbers, some 50 ms."""

Row = tuple[int, int, int, int]
"""Id, first and last sample, bytes of the body."""


class Compaction:
    """Merges rows of a recording, one run of them a call: to rows of 150 samples soon, and these to rows of 600."""

    def __init__(self, file: RecordingFile, streams: Streams) -> None:
        self._file, self._streams = file, streams

    def step(self, now: float, *, everything: bool = False) -> bool:
        """Merge one run of rows, or give back unused pages; tells whether there was something to do.

        With ``everything`` also the newest rows are merged, as at the end of a recording. Raises StorageError, with
        nothing changed.
        """
        for stream in self._streams.all():
            if not stream.stored:
                continue
            complete = everything or now - stream.kept >= IDLE_S
            for target, done_to in ((TARGET_SAMPLES, stream.compacted_to), (HALFWAY_SAMPLES, stream.joined_to)):
                waiting = stream.stored.last + 1 - done_to
                final = complete and target == TARGET_SAMPLES and waiting > 0
                if (waiting >= target or final) and self._compact(stream, target, done_to, complete=final):
                    return True
        return self._shrink()

    def _compact(self, stream: Stream, target: int, done_to: int, *, complete: bool) -> bool:
        """Merge the first rows behind ``done_to`` that make up ``target`` samples; False when there are none yet."""
        run: list[Row] = []
        for row in [*self._rows(stream, done_to), None]:
            if run and (row is None or not _extends(run, row, target)):
                if row is None and not complete:
                    return False
                merged = len(run) > 1
                if merged and not self._merge(stream, run):
                    return True
                stream.joined_to = max(stream.joined_to, run[-1][2] + 1)
                if target == TARGET_SAMPLES:
                    stream.compacted_to = run[-1][2] + 1
                if merged:
                    return True
                run = []
            if row is not None:
                run.append(row)
        return False

    def _rows(self, stream: Stream, done_to: int) -> list[Row]:
        return self._file.rows(
            "SELECT id, first_seq, last_seq, length(body) FROM batch WHERE source = ? AND last_seq >= ? "
            "ORDER BY last_seq LIMIT 1000",
            (stream.source, done_to),
        )

    def _merge(self, stream: Stream, run: list[Row]) -> bool:
        """Make one row of several; False when one of them is damaged, which is then taken out."""
        node_id, name, boot = stream.key
        with self._file.transaction():
            batches: list[Batch] = []
            for row, first, last, _ in run:
                place = Place(node_id=node_id, boot=boot, stream=name, first_seq=first, last_seq=last)
                ((body,),) = self._file.rows("SELECT body FROM batch WHERE id = ?", (row,))
                try:
                    batches += decode(body, place)
                except UnreadableRowError as error:
                    self._give_up(stream, row, place, error)
                    return False
            columns: list[Any] = self._file.rows(
                "SELECT min(low_t), max(high_t), max(kept) FROM batch WHERE source = ? AND last_seq BETWEEN ? AND ?",
                (stream.source, run[0][2], run[-1][2]),
            )
            low_t, high_t, kept = columns[0]
            marks = ", ".join("?" * (len(run) - 1))
            self._file.run(f"DELETE FROM batch WHERE id IN ({marks})", [row for row, *_ in run[1:]])  # noqa: S608
            self._file.run(
                "UPDATE batch SET last_seq = ?, last_t = ?, low_t = ?, high_t = ?, last_mono = ?, kept = ?, body = ? "
                "WHERE id = ?",
                (run[-1][2], batches[-1].t[-1], low_t, high_t, batches[-1].mono[-1], kept, encode(batches), run[0][0]),
            )
            self._streams.update_ends(stream)
        return True

    def _give_up(self, stream: Stream, row: int, place: Place, error: UnreadableRowError) -> None:
        """Take a damaged row out, and say that its samples are lost; inside a transaction."""
        logger.error("%s; they are given up", error)
        self._file.run("DELETE FROM batch WHERE id = ?", (row,))
        self._file.run(
            "INSERT OR REPLACE INTO lost (source, first_seq, last_seq, reason) VALUES (?, ?, ?, 'damaged')",
            (stream.source, place.first_seq, place.last_seq),
        )
        count(self._file, DAMAGED, place.last_seq - place.first_seq + 1)
        stream.stored.remove(place.first_seq, place.last_seq)
        stream.lost.add(place.first_seq, place.last_seq)
        self._streams.update_ends(stream)

    def _shrink(self) -> bool:
        """Give some pages back to the disk when an eighth of the file is unused."""
        pages, free = self._file.pragma("page_count"), self._file.pragma("freelist_count")
        if free < 8 or free < pages // 8:
            return False
        with self._file.transaction():
            self._file.rows("PRAGMA incremental_vacuum(256)")
        return True


def _extends(run: list[Row], row: Row, target: int) -> bool:
    """Tell whether a row can be merged with those of a run."""
    _, first, last, size = row
    fits = last - run[0][1] + 1 <= target and sum(one[3] for one in run) + size <= _MOST_BYTES
    return first == run[-1][2] + 1 and fits
