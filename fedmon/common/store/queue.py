"""`TasksQueue`: a durable first-in-first-out queue of JSON documents, on persist-queue."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import persistqueue.serializers.json
from persistqueue import FIFOSQLiteQueue

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.files import Closing, make_private, owned_folder
from fedmon.common.store.damage import is_damaged, set_aside, storage_error, tells_of_damage

logger = logging.getLogger(__name__)

MAX_SEEN = 10_000
FILE_NAME = "data.db"
_TABLES = """
    CREATE TABLE IF NOT EXISTS handed (row INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
"""
_PENDING = (
    "SELECT q._id, q.data, h.row IS NOT NULL FROM queue_default AS q LEFT JOIN handed AS h ON h.row = q._id "
    "ORDER BY q._id"
)
_ADD = "INSERT INTO queue_default (data, timestamp) VALUES (?, ?)"
_FORGET = "DELETE FROM seen WHERE number <= (SELECT MAX(number) FROM seen) - ?"


class TasksQueueError(FedmonError):
    """A queue is empty or closed, or was given a message that it cannot keep."""


class TasksQueue(Closing):
    """Keeps documents on disk, in order, until they are discarded; a context manager.

    Documents that ``add_many`` stored outlive the process and a loss of power. One process owns the folder
    (FolderInUseError otherwise); it bounds how many there are. A damaged file is set aside and named by ``set_aside``.
    Every method is safe from any thread; each raises StorageError if the disk fails, and TasksQueueError after `close`.
    """

    def __init__(self, folder: str | Path) -> None:
        self._lock = threading.Lock()
        self._owned = owned_folder(Path(folder))
        self._folder = self._owned.path.parent
        self.set_aside: Path | None = None
        try:
            self._file: _QueueFile | None = self._open()
        except BaseException:
            self._owned.release()
            raise

    def close(self) -> None:
        """Give the folder back. Safe to call twice."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._owned.release()

    def add_many(self, documents: Sequence[Mapping[str, Any]], *, ids: Sequence[str | None] = ()) -> list[int]:
        """Store documents, and ids as seen, in one transaction.

        Returns the documents' keys in order, higher than all before.
        """
        blobs = [persistqueue.serializers.json.dumps(dict(document)) for document in documents]
        seen, now = [each for each in ids if each is not None], time.time()
        with self._lock, self._opened().transaction(synced=True) as connection:
            keys = [connection.execute(_ADD, (blob, now)).lastrowid or 0 for blob in blobs]
            if seen:
                connection.executemany("INSERT OR IGNORE INTO seen (id) VALUES (?)", ((each,) for each in seen))
                connection.execute(_FORGET, (MAX_SEEN,))
        return keys

    def pending(self) -> list[tuple[int, dict[str, Any], bool]]:
        """Return all documents in order: key, document, and whether it was being handed over before."""
        with self._lock:
            rows = self._opened().rows(_PENDING)
        found = []
        for key, blob, handed in rows:
            try:
                found.append((key, _read_document(blob), bool(handed)))
            except (ValueError, RecursionError) as error:
                logger.warning("document %d of the queue in %s is skipped: %s", key, self._folder, error)
        return found

    def mark_handed(self, keys: Collection[int]) -> None:
        """Note on disk that these documents are being handed over."""
        with self._lock, self._opened().transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO handed (row) VALUES (?)", ((key,) for key in keys))

    def discard(self, keys: Collection[int]) -> None:
        """Delete documents by key; unknown keys are ignored."""
        with self._lock:
            rows = [(key,) for key in keys]
            with self._opened().transaction() as connection:
                connection.executemany("DELETE FROM queue_default WHERE _id = ?", rows)
                connection.executemany("DELETE FROM handed WHERE row = ?", rows)

    def seen(self, message_id: str) -> bool:
        """Tell whether this id was stored before, also by an earlier process; the last 10,000 are known."""
        with self._lock:
            return bool(self._opened().rows("SELECT 1 FROM seen WHERE id = ?", message_id))

    def _open(self) -> _QueueFile:
        path = make_private(self._folder / FILE_NAME)
        if not is_damaged(path):
            try:
                return _QueueFile(self._folder)
            except StorageError as error:
                if not tells_of_damage(error):
                    raise
        self.set_aside = set_aside(path)
        logger.warning("queue file was damaged and is set aside as %s; starting with an empty one", self.set_aside)
        make_private(path)
        return _QueueFile(self._folder)

    def _opened(self) -> _QueueFile:
        if self._file is None:
            raise TasksQueueError(f"the queue in {self._folder} is closed")
        return self._file


def _read_document(blob: object) -> dict[str, Any]:
    """Read the JSON of an object; runs nothing. Raises ValueError or RecursionError for anything else."""
    document = persistqueue.serializers.json.loads(blob) if isinstance(blob, bytes) else blob
    if not isinstance(document, dict):
        raise InvalidInputError(f"a {type(document).__name__} is not a JSON object")
    return document


class _QueueFile(FIFOSQLiteQueue):
    """The tables of persist-queue, with several changes in one transaction; used under its owner's lock.

    A commit outlives the process at once; a ``synced`` one outlives a loss of power too. Every method raises
    StorageError.
    """

    _getter: sqlite3.Connection  # type: ignore[assignment] # the base class says None and sets a connection
    _putter: sqlite3.Connection  # type: ignore[assignment] # the base class says None and sets a connection

    def __init__(self, folder: Path) -> None:
        self._folder, self._synced = folder, True
        with self._storage_errors("open"):
            super().__init__(
                str(folder),
                auto_commit=False,
                multithreading=True,
                serializer=persistqueue.serializers.json,
                db_file_name=FILE_NAME,
            )
            self._putter.executescript(_TABLES)
            self._getter.execute("SELECT _id, data, timestamp FROM queue_default LIMIT 1").close()
            self._getter.execute("SELECT handed.row, seen.number, seen.id FROM handed, seen LIMIT 1").close()

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Return the rows that a query finds."""
        with self._storage_errors("read"):
            return self._getter.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction."""
        with self._storage_errors("write"):
            if synced != self._synced:
                self._putter.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            with self._putter:
                yield self._putter

    @contextlib.contextmanager
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise storage_error(f"cannot {what} the queue in {self._folder}", error) from error
