"""The bounds of a recording: the oldest samples go first, and each that goes is counted."""

from __future__ import annotations

from collections.abc import Callable

from fedmon.common.store.recording_file import WAL_PAGES, RecordingFile
from fedmon.common.store.recording_streams import Stream, Streams

DROPPED_BY_SIZE = "dropped_by_size"
DROPPED_BY_AGE = "dropped_by_age"
DAMAGED = "damaged"
AGE_S, _AGE_WALL = "age_s", "age_wall"
_SAVE_EVERY_S = 60.0
_TRANSACTION_BYTES = 393_216
_MOST_ROWS = 500
"""So many rows are dropped at most in one call, so that no append waits long."""


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
        self, file: RecordingFile, streams: Streams, *, max_bytes: int | None, max_age_s: float | None
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
        return min((stream for stream in self._streams.each() if stream.stored), key=_taken, default=None)

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


def _taken(stream: Stream) -> float:
    return stream.taken
