"""The SQLite file of a recording: its tables and version, what it holds of each stream, and how samples become rows."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmon.common.errors import StorageError
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.damage import DamagedFileError, is_damaged, set_aside, tells_of_damage
from fedmon.common.store.recording_format import encode
from fedmon.common.store.seq_ranges import SeqRanges

logger = logging.getLogger(__name__)

VERSION = 1
APPLICATION_ID = 0x666D7263
"""Marks a SQLite file as a recording: "fmrc"."""
PAGE_BYTES = 4096
"""Pages of a new file: merged rows of some KB left a quarter of pages of 16 KiB, as older files have, empty."""
WAL_PAGES = 64
"""The log is written back to the file when it has grown to so many pages."""
LARGEST = 2**63 - 1
"""The largest number of a sample, as on the wire."""
ROW_SAMPLES, TARGET_SAMPLES = 60, 600
"""Short batches of one transaction are joined up to so many samples, and rows later up to so many."""
_BUSY_TIMEOUT_S = 5.0
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
_OURS = (
    "SELECT id, source, first_seq, last_seq, first_t, last_t, low_t, high_t, last_mono, kept, body FROM batch LIMIT 1"
)

Key = tuple[str, str, int]
"""Node, stream, boot: in this order because streams are read in it."""


class RecordingFile:
    """One connection to the file of a recording; for one thread at a time.

    A writer makes the file when there is none, for its owner only, and sets a damaged one aside under a new name
    (``aside``). What cannot be used is left as it is: StorageError names a file of a newer fedmon with both versions,
    and a database that is no recording.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path, self.read_only = path, read_only
        self.aside: Path | None = None
        self._inode: tuple[int, int] | None = None
        if read_only:
            self._connection = self._connected()
            return
        try:
            self._connection = self._opened()
        except StorageError as error:
            if not tells_of_damage(error):
                raise
            self.put_aside(error)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    def put_aside(self, damage: StorageError) -> None:
        """Rename the damaged file, and begin an empty one in its place. Raises StorageError."""
        with contextlib.suppress(AttributeError):  # when it could not even be opened
            self._connection.close()
        self.aside = set_aside(self.path)
        logger.error("recording %s is damaged (%s): set aside as %s, begun anew", self.path, damage, self.aside)
        self._connection = self._opened()

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a query finds. Raises StorageError."""
        with self.errors("read"):
            return self._connection.execute(statement, values).fetchall()

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement that changes something; returns the id of a row that it inserted. Raises StorageError."""
        with self.errors("write"):
            return int(self._connection.execute(statement, values).lastrowid or 0)

    def pragma(self, name: str) -> int:
        """Return what a pragma says. Raises StorageError."""
        return int(self.rows(f"PRAGMA {name}")[0][0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block one commit, on the disk when it ends; an exception undoes them all.

        Raises StorageError, with nothing changed, when the disk is full or the file cannot be written, and
        DamagedFileError when the path is not that of this file any more.
        """
        if self.read_only:
            raise StorageError(f"recording {self.path} was opened for reading only")
        if self._found() != self._inode:  # SQLite would go on in a file that has no name, or that is another's
            raise DamagedFileError(f"recording {self.path} was moved, removed or replaced while it was open")
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
        self.rows(f"PRAGMA journal_size_limit = {pages * self.page_bytes()}")

    def page_bytes(self) -> int:
        """Return the size of the pages of this file. Raises StorageError."""
        return self.pragma("page_size")

    def used_pages(self) -> int:
        """Return how many pages of the file hold something. Raises StorageError."""
        return self.pragma("page_count") - self.pragma("freelist_count")

    def size_bytes(self) -> int:
        """Return what the file and its log take on the disk."""
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
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            cause = "the disk is full; make space and try again" if full else str(error)
            raise StorageError(f"cannot {what} the recording {self.path}: {cause}") from error
        except OSError as error:
            raise StorageError(f"cannot {what} the recording {self.path}: {error.strerror}") from error

    def _found(self) -> tuple[int, int] | None:
        """Return which file the path leads to now, None for none. Raises StorageError."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot write the recording {self.path}: {error.strerror}") from error
        return found.st_dev, found.st_ino

    def _opened(self) -> sqlite3.Connection:
        """Open for writing, and make what is missing. Raises StorageError."""
        if self.path.is_symlink():
            raise StorageError(f"{self.path} is a symbolic link: name the recording itself")
        with self.errors("open"):
            # Opened only where it does not exist: closing a second descriptor would drop SQLite's locks on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self.path.chmod(0o600)
            if self.path.stat().st_size:
                self._refuse_others()
        if is_damaged(self.path):
            raise DamagedFileError(f"recording {self.path} holds what SQLite cannot have written")
        self._inode = self._found()
        connection = self._connected()
        try:
            with self.errors("open"):
                if not connection.execute("PRAGMA user_version").fetchone()[0]:
                    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("BEGIN IMMEDIATE")
                    # Another process may have made the tables while this one waited for its turn.
                    if not connection.execute("PRAGMA user_version").fetchone()[0]:
                        for statement in _TABLES.split(";"):
                            connection.execute(statement)
                        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                        connection.execute(f"PRAGMA user_version = {VERSION}")
                    connection.execute("COMMIT")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(_OURS).fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> sqlite3.Connection:
        """Connect to a file that must be there and be a recording of ours. Raises StorageError."""
        if self.read_only:
            self._refuse_others()
        with self.errors("open"):
            mode = "ro" if self.read_only else "rw"
            return sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )

    def _refuse_others(self) -> None:
        """Raise StorageError for what is no recording, or one of a newer fedmon; the file stays as it is."""
        try:
            try:
                application, version, objects = self._marks("ro")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                    raise
                # A process that was killed while it made the file left a journal, which only a writer can roll back.
                application, version, objects = self._marks("rw")
        except sqlite3.Error as error:
            if not self.path.exists():
                raise StorageError(f"there is no recording {self.path}") from None
            raise StorageError(f"cannot read the recording {self.path}: {error}") from error
        if version > VERSION and application == APPLICATION_ID:
            raise StorageError(
                f"recording {self.path} has version {version} and this fedmon knows up to {VERSION}: upgrade fedmon"
            )
        if self.read_only and not (application or objects):
            raise DamagedFileError(f"{self.path} is empty: there is no recording in it")
        if application != APPLICATION_ID and (objects or self.read_only):
            raise StorageError(f"{self.path} is a database but no recording of fedmon: name another file")

    def _marks(self, mode: str) -> tuple[int, int, int]:
        """Return whose file it is, its version, and how many tables and indices it has."""
        with contextlib.closing(
            sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_TIMEOUT_S)
        ) as look:
            (application,) = look.execute("PRAGMA application_id").fetchone()
            (version,) = look.execute("PRAGMA user_version").fetchone()
            (objects,) = look.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return application, version, objects


@dataclasses.dataclass(kw_only=True)
class Stream:
    """One stream of one boot of one node, as it lies in the file.

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


class StreamTable:
    """All streams of a file, each read when it is first asked for, and again when another process has written."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._streams: dict[Key, Stream] = {}
        self._complete = False
        self._version = -1

    def forget(self) -> None:
        """Read everything again when it is asked for."""
        self._streams.clear()
        self._complete = False

    def refresh(self) -> None:
        """Forget what another connection may have changed. Raises StorageError."""
        version = self._file.pragma("data_version")
        if version != self._version:
            self.forget()
            self._version = version

    def all(self) -> list[Stream]:
        """Return every stream, by node, stream and boot. Raises StorageError."""
        return sorted(self.each(), key=lambda stream: stream.key)

    def each(self) -> Iterable[Stream]:
        """Return every stream, in any order. Raises StorageError."""
        if not self._complete:
            for source, node_id, stream, boot, floor in self._file.rows(
                "SELECT id, node_id, stream, boot, floor_seq FROM source"
            ):
                if (node_id, stream, boot) not in self._streams:
                    self._load(source, (node_id, stream, boot), floor)
            self._complete = True
        return self._streams.values()

    def find(self, key: Key) -> Stream | None:
        """Return one stream, or None when the file knows nothing of it. Raises StorageError."""
        found = self._streams.get(key)
        if found is None and not self._complete:
            node_id, stream, boot = key
            for source, floor in self._file.rows(
                "SELECT id, floor_seq FROM source WHERE node_id = ? AND stream = ? AND boot = ?",
                (node_id, stream, boot),
            ):
                found = self._load(source, key, floor)
        return found

    def make(self, key: Key) -> Stream:
        """Return one stream, begun when it is new; inside a transaction. Raises StorageError."""
        found = self.find(key)
        if found is None:
            node_id, stream, boot = key
            source = self._file.run(
                "INSERT INTO source (node_id, stream, boot) VALUES (?, ?, ?)", (node_id, stream, boot)
            )
            found = self._streams[key] = Stream(key=key, source=source)
        return found

    def update_ends(self, stream: Stream) -> None:
        """Read again what the oldest and newest rows of a stream say. Raises StorageError."""
        sql = "SELECT first_t, last_t, last_mono, kept FROM batch WHERE source = ? ORDER BY last_seq"
        oldest = self._file.rows(f"{sql} LIMIT 1", (stream.source,))
        newest = self._file.rows(f"{sql} DESC LIMIT 1", (stream.source,))
        if oldest and newest:
            stream.oldest_t, _, stream.oldest_mono, _ = oldest[0]
            _, stream.last_t, stream.newest_mono, stream.kept = newest[0]

    def _load(self, source: int, key: Key, floor: int) -> Stream:
        stored = self._file.rows("SELECT first_seq, last_seq FROM batch WHERE source = ? ORDER BY last_seq", (source,))
        lost = self._file.rows("SELECT first_seq, last_seq FROM lost WHERE source = ? ORDER BY first_seq", (source,))
        stream = Stream(key=key, source=source, floor_seq=floor, stored=SeqRanges(stored), lost=SeqRanges(lost))
        self.update_ends(stream)
        self._streams[key] = stream
        return stream


def add_batches(file: RecordingFile, streams: StreamTable, batches: Iterable[Batch], now: float) -> int:
    """Store what is new, at ``now`` on the age clock; inside a transaction. Returns how many samples that were.

    Short batches that follow each other make a row together. Raises StorageError.
    """
    stored = 0
    waiting: dict[int, list[Batch]] = {}
    for batch in batches:
        if not _is_sound(batch):
            continue
        stream = streams.make((batch.node_id, batch.stream, batch.boot))
        for part in _new_parts(stream, batch):
            before = waiting.get(stream.source)
            if before and part.seq == before[-1].last_seq + 1 and part.last_seq - before[0].seq < ROW_SAMPLES:
                before.append(part)
            else:
                if before:
                    _insert(file, stream, before, now)
                waiting[stream.source] = [part]
            _note(stream, part, now)
            stored += len(part.t)
    for parts in waiting.values():
        first = parts[0]
        _insert(file, streams.make((first.node_id, first.stream, first.boot)), parts, now)
    return stored


def _new_parts(stream: Stream, batch: Batch) -> list[Batch]:
    return [
        batch.part(low, min(last, low + TARGET_SAMPLES - 1))
        for first, last in stream.stored.absent(max(batch.seq, stream.floor_seq), batch.last_seq)
        for low in range(first, last + 1, TARGET_SAMPLES)
    ]


def _insert(file: RecordingFile, stream: Stream, parts: Sequence[Batch], now: float) -> None:
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
    """Note in memory what was stored."""
    if not stream.stored or part.seq < stream.stored.first:
        stream.oldest_t, stream.oldest_mono = part.t[0], part.mono[-1]
    if not stream.stored or part.last_seq > stream.stored.last:
        stream.last_t, stream.newest_mono, stream.kept = part.t[-1], part.mono[-1], now
    stream.stored.add(part.seq, part.last_seq)
    stream.compacted_to = min(stream.compacted_to, part.seq)
    stream.joined_to = min(stream.joined_to, part.seq)


def _is_sound(batch: Batch) -> bool:
    """Tell whether a batch can be stored; what cannot came from outside, and must not keep others from it."""
    length = len(batch.t)
    sound = (
        length > 0
        and 0 <= batch.seq <= LARGEST - length
        and 0 <= batch.boot <= LARGEST
        and len(batch.mono) == length
        and all(len(column) == length for column in batch.columns.values())
    )
    if not sound and length:
        logger.warning("samples of stream %s of node %s do not fit together: left out", batch.stream, batch.node_id)
    return sound
