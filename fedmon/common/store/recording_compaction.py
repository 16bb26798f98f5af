"""What keeps a recording small: small rows become one, and bounds of size and age drop the oldest."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording_file import TARGET_SAMPLES, WAL_PAGES, RecordingFile, Stream, StreamTable
from fedmon.common.store.recording_format import RowPlace, UnreadableRowError, decode, encode

logger = logging.getLogger(__name__)

DROPPED_BY_SIZE = "dropped_by_size"
DROPPED_BY_AGE = "dropped_by_age"
DAMAGED = "damaged"
AGE_S, _AGE_WALL = "age_s", "age_wall"
_SAVE_EVERY_S = 60.0
_TRANSACTION_BYTES = 393_216
_MOST_ROWS = 500
"""So many rows are dropped at most in one call, so that no append waits long."""
HALFWAY_SAMPLES = 150
IDLE_S = 600.0
"""A stream to which nothing was added for so long is taken as complete."""
_MOST_BYTES = 131_072
"""So many bytes of bodies are merged at most at once: about 60,000 numbers, some 50 ms."""

Row = tuple[int, int, int, int]
"""Id, first and last sample, bytes of the body."""


class Compaction:
    """Merges rows of a recording, one run of them a call: to rows of 150 samples soon, and these to rows of 600."""

    def __init__(self, file: RecordingFile, streams: StreamTable) -> None:
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
                place = RowPlace(node_id=node_id, boot=boot, stream=name, first_seq=first, last_seq=last)
                ((body,),) = self._file.rows("SELECT body FROM batch WHERE id = ?", (row,))
                try:
                    batches += decode(body, place)
                except UnreadableRowError as error:
                    self._give_up(stream, row, place, error)
                    return False
            ((low_t, high_t, kept),) = self._file.rows(
                "SELECT min(low_t), max(high_t), max(kept) FROM batch WHERE source = ? AND last_seq BETWEEN ? AND ?",
                (stream.source, run[0][2], run[-1][2]),
            )
            marks = ", ".join("?" * (len(run) - 1))
            self._file.run(f"DELETE FROM batch WHERE id IN ({marks})", [row for row, *_ in run[1:]])  # noqa: S608
            self._file.run(
                "UPDATE batch SET last_seq = ?, last_t = ?, low_t = ?, high_t = ?, last_mono = ?, kept = ?, body = ? "
                "WHERE id = ?",
                (run[-1][2], batches[-1].t[-1], low_t, high_t, batches[-1].mono[-1], kept, encode(batches), run[0][0]),
            )
            self._streams.update_ends(stream)
        return True

    def _give_up(self, stream: Stream, row: int, place: RowPlace, error: UnreadableRowError) -> None:
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


class AgeClock:
    """Seconds in the life of a recording: they pass as the monotonic clock does, whatever the wall clock is set to.

    Between two processes only the wall clock can tell what passed; when it went back, nothing did.
    """

    def __init__(self, file: RecordingFile, *, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._file, self._wall, self._monotonic = file, wall, monotonic
        saved: dict[str, float] = dict(
            file.rows("SELECT name, value FROM number WHERE name IN (?, ?)", (AGE_S, _AGE_WALL))
        )
        passed_s = max(0.0, wall() - saved[_AGE_WALL]) if len(saved) == 2 else 0.0
        self._begun = monotonic() - saved.get(AGE_S, 0.0) - passed_s
        self._saved_at: float | None = None

    def now(self) -> float:
        """Return the seconds since the recording was begun."""
        return self._monotonic() - self._begun

    def save_when_due(self) -> None:
        """Write the time down, once a minute; inside a transaction. Raises StorageError."""
        now = self.now()
        if self._saved_at is None or now - self._saved_at >= _SAVE_EVERY_S:
            for name, value in ((AGE_S, now), (_AGE_WALL, self._wall())):
                self._file.run("INSERT OR REPLACE INTO number (name, value) VALUES (?, ?)", (name, value))
            self._saved_at = now


class Bounds:
    """How large and how old a recording may become; None is no bound.

    A row is as old as the monotonic time between its last sample and the newest of its stream, and the time since
    that one was stored: a wall clock that was set makes nothing older, and samples that arrive late keep their age.
    """

    def __init__(
        self, file: RecordingFile, streams: StreamTable, *, max_bytes: int | None, max_age_s: float | None
    ) -> None:
        self._file, self._streams = file, streams
        self.set(max_bytes=max_bytes, max_age_s=max_age_s)

    def set(self, *, max_bytes: int | None, max_age_s: float | None) -> None:
        """Keep within other bounds from now on."""
        self._max_age_s = max_age_s
        self.max_pages = None if max_bytes is None else max_bytes // self._file.page_bytes()
        self.wal_pages = WAL_PAGES if self.max_pages is None else max(4, min(WAL_PAGES, self.max_pages // 8))
        # The log may grow by one transaction beyond the size at which it is written back.
        reserve = max(2 * self.wal_pages, _TRANSACTION_BYTES // self._file.page_bytes())
        self._most_pages = None if self.max_pages is None else max(self.max_pages - reserve, self.max_pages // 2)

    def enforce(self, now: float) -> int:
        """Drop what is too old or too much, oldest first; inside a transaction. Returns how many samples went.

        Raises StorageError.
        """
        dropped = 0
        if self._max_age_s is not None:
            dropped += self._drop_while(DROPPED_BY_AGE, lambda oldest: self._too_old(oldest, now))
        if self._too_large():
            dropped += self._drop_while(DROPPED_BY_SIZE, lambda _: self._too_large())
        return dropped

    def exceeded(self, now: float) -> bool:
        """Tell whether something is to be dropped. Raises StorageError."""
        if self._too_large():
            return True
        oldest = self._oldest() if self._max_age_s is not None else None
        return oldest is not None and self._too_old(oldest, now)

    def _too_old(self, oldest: Stream, now: float) -> bool:
        return self._max_age_s is not None and oldest.taken < now - self._max_age_s

    def _too_large(self) -> bool:
        return self._most_pages is not None and self._file.used_pages() > self._most_pages

    def _oldest(self) -> Stream | None:
        stored = (stream for stream in self._streams.each() if stream.stored)
        return min(stored, key=lambda stream: stream.taken, default=None)

    def _drop_while(self, counter: str, too_much: Callable[[Stream], bool]) -> int:
        dropped = 0
        for _ in range(_MOST_ROWS):
            oldest = self._oldest()
            if oldest is None or not too_much(oldest):
                break
            dropped += self._drop_oldest_row(oldest)
        count(self._file, counter, dropped)
        return dropped

    def _drop_oldest_row(self, stream: Stream) -> int:
        ((row, first, last),) = self._file.rows(
            "SELECT id, first_seq, last_seq FROM batch WHERE source = ? ORDER BY last_seq LIMIT 1", (stream.source,)
        )
        self._file.run("DELETE FROM batch WHERE id = ?", (row,))
        self._file.run("UPDATE source SET floor_seq = ? WHERE id = ?", (last + 1, stream.source))
        stream.floor_seq = last + 1
        stream.stored.remove(first, last)
        self._streams.update_ends(stream)
        return int(last - first + 1)


def count(file: RecordingFile, name: str, samples: int) -> None:
    """Add to one of the counters in the file; inside a transaction. Raises StorageError."""
    if samples:
        file.run(
            "INSERT INTO number (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            (name, samples),
        )
