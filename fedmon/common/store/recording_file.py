"""The SQLite file of a recording: tables and version, streams, samples as rows, and bounds of size and age."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.damage import DamagedFileError, is_damaged, set_aside, storage_error, tells_of_damage
from fedmon.common.store.recording_format import encode
from fedmon.common.store.seq_ranges import SeqRanges

logger = logging.getLogger(__name__)

VERSION = 1
APPLICATION_ID = 0x666D7263
"""Marks a SQLite file as a recording: "fmrc"."""
PAGE_BYTES = 4096
"""Pages of a new file: merged rows of some KB left a quarter of pages of 16 KiB, as older files have, empty."""
WAL_PAGES = 64
"""Size of the log, in pages, at which it is written back to the file."""
LARGEST = 2**63 - 1
"""The largest number of a sample, as on the wire."""
ROW_SAMPLES, TARGET_SAMPLES = 60, 600
"""Most samples when short batches of one transaction are joined, and when rows are joined later."""
_BUSY_TIMEOUT_S = 5.0
_SUFFIXES = (".fmr", ".sqlite")  # how recordings are called
_NO_LOG = "it needs a log beside it, which cannot be made in its folder: copy it to another"
_CAUSES = {
    sqlite3.SQLITE_CORRUPT: "it is damaged; 'fedmon record' and 'fedmon job merge' save its readable part",
    sqlite3.SQLITE_NOTADB: "it is no database, so no recording: move it away or name another file",
    sqlite3.SQLITE_READONLY: _NO_LOG,
    sqlite3.SQLITE_CANTOPEN: _NO_LOG,
}
DROPPED_BY_SIZE = "dropped_by_size"
DROPPED_BY_AGE = "dropped_by_age"
DAMAGED = "damaged"
AGE_S, _AGE_WALL = "age_s", "age_wall"
_SAVE_EVERY_S = 60.0
_TRANSACTION_BYTES = 393_216
_MOST_ROWS = 500
"""Most rows dropped in one call, so that no append waits long."""
_MOST_ERRORS = 1_000
"""A file that fails so often holds nothing worth more time."""
_AGE = (
    "INSERT INTO number (name, value) SELECT ?, coalesce(max(kept), 0) FROM batch WHERE true "
    "ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
)
_TABLES = """
    CREATE TABLE source (
        id INTEGER PRIMARY KEY, node_id TEXT NOT NULL, boot INTEGER NOT NULL, stream TEXT NOT NULL,
        floor_seq INTEGER NOT NULL DEFAULT 0, UNIQUE (node_id, stream, boot)
    );
    CREATE TABLE batch (
        id INTEGER PRIMARY KEY, source INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
        first_t REAL NOT NULL, last_t REAL NOT NULL, low_t REAL NOT NULL, high_t REAL NOT NULL,
        last_mono REAL NOT NULL, kept REAL NOT NULL, body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX batch_place ON batch (source, last_seq, first_seq);
    CREATE TABLE lost (
        source INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, reason TEXT NOT NULL,
        PRIMARY KEY (source, first_seq)
    ) WITHOUT ROWID;
    CREATE TABLE mark (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, t REAL NOT NULL, text TEXT NOT NULL);
    CREATE TABLE description (
        node_id TEXT NOT NULL, boot INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (node_id, boot)
    );
    CREATE TABLE number (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;
"""
Key = tuple[str, str, int]
"""Node, stream, boot: in this order because streams are read in it."""
_OURS = (
    "SELECT id, source, first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body FROM batch LIMIT 1"
)


class RecordingFile:
    """One connection to the file of a recording; for one thread at a time.

    A writer makes the file when there is none, for its owner only, and sets a damaged one aside under a new name
    (``aside``). Unusable files stay as they are: StorageError names a file of a newer fedmon with both versions,
    a database that is no recording, and a file that is no database and not called like a recording.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path, self.read_only = path, read_only
        self.aside: Path | None = None
        self._inode: tuple[int, int] | None = None
        if read_only:
            self._refuse_others()
            with self.errors("open"):
                self._connection = self._connect("ro")
            return
        try:
            self._connection = self._opened()
        except StorageError as error:
            is_no_database = getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB
            if not tells_of_damage(error) or (is_no_database and path.suffix not in _SUFFIXES):
                raise
            self.aside = set_aside(path)
            logger.error("recording %s is damaged (%s): set aside as %s", path, error, self.aside)  # noqa: TRY400
            self._connection = self._opened()
            logger.warning("damaged recording %s: %s", self.aside, salvage(self.aside, into=self))

    def close(self) -> None:
        """Close the file; safe to call twice. Unless others use it, it needs no log beside it from then on."""
        if not self.read_only:
            with contextlib.suppress(sqlite3.Error):
                self._connection.executescript("PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE")
        self._connection.close()

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StorageError."""
        with self.errors("read"):
            return self._connection.execute(statement, values).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement that changes something; returns the id of a row that it inserted. Raises StorageError."""
        with self.errors("write"):
            return int(self._connection.execute(statement, values).lastrowid or 0)

    def pragma(self, name: str) -> int:
        """Return the value of a pragma. Raises StorageError."""
        return int(self.rows(f"PRAGMA {name}")[0][0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block one commit, on the disk when it ends; an exception undoes them all.

        Inside another such block it is a part of that one.
        Raises StorageError, with nothing changed, when the disk is full or the file cannot be written, and
        DamagedFileError when the path no longer leads to this file.
        """
        if self.read_only:
            raise StorageError(f"recording {self.path} was opened for reading only")
        if self._found() != self._inode:  # SQLite would go on in a file that has no name, or that is another's
            raise DamagedFileError(f"recording {self.path} was moved, removed or replaced while it was open")
        if self._connection.in_transaction:
            yield
            return
        # A closed recording has no log, and as long as a reader holds it, it gets none.
        with contextlib.suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA journal_mode = WAL")
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            raise

    def limit_log(self, pages: int) -> None:
        """Have the log written back at ``pages``, and cut to that. Raises StorageError."""
        self.rows(f"PRAGMA wal_autocheckpoint = {pages}")
        self.rows(f"PRAGMA journal_size_limit = {pages * self.pragma('page_size')}")

    def size_bytes(self) -> int:
        """Return the size of the file and its log on disk."""
        total = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                total += self.path.with_name(self.path.name + suffix).stat().st_size
        return total

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn errors of SQLite and of the system into StorageError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise storage_error(f"cannot {what} the recording {self.path}", error, _CAUSES) from error

    def _found(self) -> tuple[int, int] | None:
        """Return which file the path leads to now, None for none. Raises StorageError."""
        with self.errors("write"), contextlib.suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def _opened(self) -> sqlite3.Connection:
        """Open for writing, and make missing files. Raises StorageError."""
        if self.path.is_symlink():
            raise StorageError(f"{self.path} is a symbolic link: name the recording itself")
        if self.path.is_dir():
            raise StorageError(f"{self.path} is a folder: name a file in it")
        with self.errors("open"):
            # Opened only where it does not exist: closing a second descriptor would drop SQLite's locks on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            if self.path.stat().st_size:
                self._refuse_others()
            self.path.chmod(0o600)
        if is_damaged(self.path):
            raise DamagedFileError(f"recording {self.path} is not a sound SQLite database")
        self._inode = self._found()
        with self.errors("open"), contextlib.ExitStack() as failing:
            connection = failing.enter_context(contextlib.closing(self._connect("rw")))
            if not connection.execute("PRAGMA user_version").fetchone()[0]:
                connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("BEGIN IMMEDIATE")
                # Another process may have made the tables while this one waited for its turn.
                if not connection.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
            connection.execute(_OURS).fetchone()
            connection.execute("PRAGMA synchronous = FULL")
            failing.pop_all()
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _refuse_others(self) -> None:
        """Raise StorageError for a file that is no recording, or one of a newer fedmon; the file stays as it is."""
        if not os.access(self.path, os.R_OK, effective_ids=True):
            raise StorageError(f"recording {self.path} not found, or you may not read it")
        with self.errors("read"):
            try:
                application, version, objects = self._marks("ro")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                    raise
                # A writer that was killed left a rollback journal, which only a writer can roll back.
                application, version, objects = self._marks("rw")
        if version > VERSION and application == APPLICATION_ID:
            raise StorageError(
                f"recording {self.path} has version {version} and this fedmon knows up to {VERSION}: upgrade fedmon"
            )
        if self.read_only and not (application or objects):
            raise DamagedFileError(f"{self.path} is empty: it holds no recording")
        if application != APPLICATION_ID and (objects or self.read_only):
            raise StorageError(f"{self.path} is a database but no recording of fedmon: name another file")

    def _marks(self, mode: str) -> tuple[int, int, int]:
        """Return application id, version, and number of tables and indices, all of one moment."""
        with contextlib.closing(self._connect(mode)) as look:
            look.execute("BEGIN")  # another process may just make the tables
            marks = [look.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            (objects,) = look.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return marks[0], marks[1], objects


@dataclasses.dataclass(kw_only=True)
class Stream:
    """One stream of one boot of one node, as stored in the file.

    Samples below ``floor_seq`` were dropped and do not come back. ``oldest_mono`` and ``newest_mono`` are the
    monotonic times of the last sample of the oldest and of the newest row; ``kept`` is the age clock when the newest
    was stored. Rows below ``compacted_to`` are as large as they should be.
    """

    key: Key
    source: int
    floor_seq: int = 0
    stored: SeqRanges = dataclasses.field(default_factory=SeqRanges)
    lost: SeqRanges = dataclasses.field(default_factory=SeqRanges)
    oldest_t: float = 0.0
    last_t: float = 0.0
    oldest_mono: float = 0.0
    newest_mono: float = 0.0
    kept: float = 0.0
    compacted_to: int = 0
    joined_to: int = 0

    @property
    def taken(self) -> float:
        """When the oldest row was measured, on the age clock.

        The difference of monotonic times is right within one boot of a node, whatever its wall clock did.
        """
        return self.kept - max(0.0, self.newest_mono - self.oldest_mono)


class StreamTable(dict[Key, Stream]):
    """All streams of a file by key, as `refresh` read them last. Methods that use the file raise StorageError."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._version = -1

    def forget(self) -> None:
        """Have `refresh` read everything again."""
        self._version = -1

    def refresh(self) -> None:
        """Read all streams, unless only this connection has changed the file."""
        version = self._file.pragma("data_version")
        if version == self._version:
            return
        self.clear()
        for source, node_id, name, boot, floor in self._file.rows(
            "SELECT id, node_id, stream, boot, floor_seq FROM source"
        ):
            rows = "SELECT first_seq, last_seq FROM {} WHERE source = ? ORDER BY last_seq"
            stored, lost = (self._file.rows(rows.format(table), (source,)) for table in ("batch", "lost"))
            stream = self[node_id, name, boot] = Stream(
                key=(node_id, name, boot),
                source=source,
                floor_seq=floor,
                stored=SeqRanges(stored),
                lost=SeqRanges(lost),
            )
            self.update_ends(stream)
        self._version = version

    def make(self, key: Key) -> Stream:
        """Return one stream, begun when it is new; inside a transaction."""
        if key not in self:
            source = self._file.run("INSERT INTO source (node_id, stream, boot) VALUES (?, ?, ?)", key)
            self[key] = Stream(key=key, source=source)
        return self[key]

    def update_ends(self, stream: Stream) -> None:
        """Read the oldest and newest rows of a stream again."""
        sql = "SELECT first_t, last_t, last_mono, kept FROM batch WHERE source = ? ORDER BY last_seq"
        oldest = self._file.rows(f"{sql} LIMIT 1", (stream.source,))
        newest = self._file.rows(f"{sql} DESC LIMIT 1", (stream.source,))
        if oldest and newest:
            stream.oldest_t, _, stream.oldest_mono, _ = oldest[0]
            _, stream.last_t, stream.newest_mono, stream.kept = newest[0]


def add_batches(file: RecordingFile, streams: StreamTable, batches: Iterable[Batch], now: float) -> int:
    """Store new samples, at ``now`` on the age clock; inside a transaction. Returns their number.

    Short batches that follow each other make a row together. Raises StorageError.
    """
    stored = 0
    waiting: dict[Key, list[Batch]] = {}
    for batch in filter(_is_sound, batches):
        key = (batch.node_id, batch.stream, batch.boot)
        stream = streams.make(key)
        for part in _new_parts(stream, batch):
            before = waiting.get(key)
            if before and part.seq == before[-1].last_seq + 1 and part.last_seq - before[0].seq < ROW_SAMPLES:
                before.append(part)
            else:
                if before:
                    insert_row(file, stream, before, now)
                waiting[key] = [part]
            _note(stream, part, now)
            stored += len(part.t)
    for key, parts in waiting.items():
        insert_row(file, streams[key], parts, now)
    return stored


def _new_parts(stream: Stream, batch: Batch) -> list[Batch]:
    return [
        batch.part(low, min(last, low + TARGET_SAMPLES - 1))
        for first, last in stream.stored.absent(max(batch.seq, stream.floor_seq), batch.last_seq)
        for low in range(first, last + 1, TARGET_SAMPLES)
    ]


def insert_row(file: RecordingFile, stream: Stream, parts: Sequence[Batch], now: float) -> None:
    """Store batches that follow each other as one row, ``now`` on the age clock; inside a transaction."""
    first, last = parts[0], parts[-1]
    low_t, high_t = min(min(part.t) for part in parts), max(max(part.t) for part in parts)
    file.run(
        "INSERT INTO batch (source, first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(stream.source, first.seq, last.last_seq, first.t[0], last.t[-1], low_t, high_t),
            *(last.mono[-1], now, encode(parts)),
        ),
    )


def _note(stream: Stream, part: Batch, now: float) -> None:
    """Note the stored samples in memory."""
    if not stream.stored or part.seq < stream.stored.first:
        stream.oldest_t, stream.oldest_mono = part.t[0], part.mono[-1]
    if not stream.stored or part.last_seq > stream.stored.last:
        stream.last_t, stream.newest_mono, stream.kept = part.t[-1], part.mono[-1], now
    stream.stored.add(part.seq, part.last_seq)
    stream.compacted_to = min(stream.compacted_to, part.seq)
    stream.joined_to = min(stream.joined_to, part.seq)


def _is_sound(batch: Batch) -> bool:
    """Tell whether a batch has samples with numbers that can be stored; a bad one keeps no other from it."""
    fits = batch.seq <= LARGEST - len(batch.t)
    if not fits:
        logger.warning("numbers of stream %s of node %s are too high: left out", batch.stream, batch.node_id)
    return fits and len(batch.t) > 0


class AgeClock:
    """Seconds in the life of a recording: they pass as the monotonic clock does, at any setting of the wall clock.

    Between two processes only the wall clock can tell the time that passed; when it went back, nothing did.
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
        page_bytes = self._file.pragma("page_size")
        pages = None if max_bytes is None else max_bytes // page_bytes
        self.wal_pages = WAL_PAGES if pages is None else max(4, min(WAL_PAGES, pages // 8))
        # The log may grow by one transaction beyond the size at which it is written back.
        reserve = max(2 * self.wal_pages, _TRANSACTION_BYTES // page_bytes)
        self._most_pages = None if pages is None else max(pages - reserve, pages // 2)

    def enforce(self, now: float) -> int:
        """Drop samples beyond a bound, oldest first; inside a transaction. Returns how many. Raises StorageError."""
        dropped = 0
        for _ in range(_MOST_ROWS):
            used = self._file.pragma("page_count") - self._file.pragma("freelist_count")
            is_large = self._most_pages is not None and used > self._most_pages
            if not is_large and self._max_age_s is None:
                break
            stored = (stream for stream in self._streams.values() if stream.stored)
            oldest = min(stored, key=lambda stream: stream.taken, default=None)
            is_old = oldest is not None and self._max_age_s is not None and oldest.taken < now - self._max_age_s
            if oldest is None or not (is_old or is_large):
                break
            samples = self._drop_oldest_row(oldest)
            count(self._file, DROPPED_BY_AGE if is_old else DROPPED_BY_SIZE, samples)
            dropped += samples
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
    file.run(
        "INSERT INTO number VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        (name, samples),
    )


def salvage(aside: Path, *, into: RecordingFile) -> str:
    """Copy the readable rows of a damaged recording, and return a text about that; damaged bodies show when read.

    After a failure nothing is copied: new samples matter more than rescued ones.
    """
    try:
        with contextlib.closing(sqlite3.connect(aside)) as damaged, into.transaction():
            damaged.execute("PRAGMA writable_schema = ON")  # else SQLite reads nothing of a file that was cut off
            for table in ("source", "lost", "mark", "description", "number", "batch"):
                for row in _readable(damaged, table):
                    into.run(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
            for table in ("lost", "mark", "batch"):
                into.run(f"DELETE FROM {table} WHERE source NOT IN (SELECT id FROM source)")  # noqa: S608
            into.run(_AGE, (AGE_S,))  # without it new samples would be older than rescued ones, and go first
            ((rescued,),) = into.rows("SELECT total(last_seq - first_seq + 1) FROM batch")
    except (sqlite3.Error, StorageError) as error:
        return f"cannot read any part of it: {error}"
    return f"{rescued:.0f} samples were taken over"


def _readable(damaged: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Return the readable rows of a table; batches one by one, so that a damaged one costs no other."""
    if table != "batch":
        with contextlib.suppress(sqlite3.Error):
            yield from damaged.execute(f"SELECT * FROM {table}")  # noqa: S608
        return
    errors = position = 0
    while errors < _MOST_ERRORS:
        try:
            row = damaged.execute(
                "SELECT * FROM batch NOT INDEXED WHERE id > ? ORDER BY id LIMIT 1", (position,)
            ).fetchone()
        except sqlite3.Error:
            row = (position,)
        if row is None:
            return
        if row[0] <= position:  # a damaged page may hold rows in any order, and without end
            errors += 1
            position += 1
            continue
        position = row[0]
        yield row
