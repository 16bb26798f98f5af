"""`TasksQueue`: a durable first-in-first-out queue of JSON documents, on persist-queue."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import persistqueue.serializers.json
from persistqueue import FIFOSQLiteQueue

from fedmon.common.errors import FedmonError, InvalidInputError, StorageError
from fedmon.common.files import OwnedFolder, make_private
from fedmon.common.store.damage import is_damaged, set_aside, tells_of_damage

logger = logging.getLogger(__name__)

MAX_ITEMS = 10_000
MAX_SEEN = 10_000
FILE_NAME = "data.db"
_TABLES = """
    CREATE TABLE IF NOT EXISTS handed (row INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
"""


class TasksQueueError(FedmonError):
    """A queue is empty or closed, or was given a message that it cannot keep."""


class TasksQueue:
    """Keeps documents on disk, in order, until they are discarded; a context manager.

    Documents that ``add_many`` stored outlive the process and a loss of power. One process owns the folder
    (FolderInUseError otherwise). Beyond ``max_items`` the oldest documents are dropped and counted in ``dropped``. A
    damaged file is set aside and named by ``set_aside``. Every method is safe from any thread; each raises StorageError
    if the disk fails, and TasksQueueError after `close`.
    """

    def __init__(self, folder: str | Path, *, max_items: int = MAX_ITEMS, max_seen: int = MAX_SEEN) -> None:
        self._max_items, self._max_seen = max_items, max_seen
        self._lock = threading.Lock()
        self._folder = OwnedFolder(Path(folder))
        self.set_aside: Path | None = None
        self.dropped = 0
        try:
            self._file: _QueueFile | None = self._open()
            self._waiting = self._file.count()
        except BaseException:
            self._folder.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder back. Safe to call twice."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._folder.release()

    def add_many(self, documents: Sequence[Mapping[str, Any]], *, ids: Sequence[str | None] = ()) -> list[int]:
        """Store documents, and ids as seen, in one transaction.

        Returns the documents' keys in order, higher than all before.
        """
        blobs = [persistqueue.serializers.json.dumps(dict(document)) for document in documents]
        seen = [each for each in ids if each is not None]
        with self._lock:
            drop = max(0, self._waiting + len(blobs) - self._max_items)
            keys = self._opened().insert(blobs, ids=seen, keep_seen=self._max_seen, drop=drop)
            self._waiting += len(blobs) - drop
            if drop and not self.dropped:
                logger.warning("queue in %s is full: the oldest documents are dropped", self._folder.path)
            self.dropped += drop
        return keys

    def pending(self) -> list[tuple[int, dict[str, Any], bool]]:
        """Return all documents in order: key, document, and whether it was being handed over before."""
        with self._lock:
            rows = self._opened().rows()
        found = []
        for key, blob, handed in rows:
            try:
                found.append((key, _read_document(blob), handed))
            except (ValueError, RecursionError) as error:
                logger.warning("document %d of the queue in %s is skipped: %s", key, self._folder.path, error)
        return found

    def mark_handed(self, keys: Collection[int]) -> None:
        """Note on disk that these documents are being handed over."""
        with self._lock:
            self._opened().note_handed(keys)

    def discard(self, keys: Collection[int]) -> None:
        """Delete documents by key; unknown keys are ignored."""
        with self._lock:
            file = self._opened()
            file.delete(keys)
            self._waiting = file.count()

    def seen(self, message_id: str) -> bool:
        """Tell whether this id was stored before, also by an earlier process; the last ``max_seen`` are known."""
        with self._lock:
            return self._opened().was_seen(message_id)

    def _open(self) -> _QueueFile:
        path = make_private(self._folder.path / FILE_NAME)
        if not is_damaged(path):
            try:
                return _QueueFile(self._folder.path)
            except StorageError as error:
                if not tells_of_damage(error):
                    raise
        self.set_aside = set_aside(path)
        logger.warning("queue file was damaged and is set aside as %s; starting with an empty one", self.set_aside)
        make_private(self._folder.path / FILE_NAME)
        return _QueueFile(self._folder.path)

    def _opened(self) -> _QueueFile:
        if self._file is None:
            raise TasksQueueError(f"the queue in {self._folder.path} is closed")
        return self._file


def _read_document(blob: object) -> dict[str, Any]:
    """Read the JSON of an object; runs nothing. Raises ValueError or RecursionError for anything else."""
    document = persistqueue.serializers.json.loads(blob) if isinstance(blob, bytes) else blob
    if not isinstance(document, dict):
        raise InvalidInputError(f"a {type(document).__name__} is not a JSON object")
    return document


class _QueueFile(FIFOSQLiteQueue):
    """The tables of persist-queue, with several changes in one transaction; used under its owner's lock.

    Each method that changes something has committed it when it returns, and raises StorageError if it cannot. A
    commit outlives the process at once; a ``synced`` one outlives a loss of power too.
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

    def rows(self) -> list[tuple[int, object, bool]]:
        """Return all rows in order: id, blob, and whether it was being handed over before."""
        with self._storage_errors("read"):
            found = self._getter.execute(
                "SELECT q._id, q.data, h.row IS NOT NULL FROM queue_default AS q "
                "LEFT JOIN handed AS h ON h.row = q._id ORDER BY q._id"
            ).fetchall()
        return [(row, blob, bool(handed)) for row, blob, handed in found]

    def count(self) -> int:
        """Return how many rows there are."""
        with self._storage_errors("read"):
            return int(self._getter.execute("SELECT COUNT(*) FROM queue_default").fetchone()[0])

    def insert(self, blobs: Sequence[bytes], *, ids: Sequence[str], keep_seen: int, drop: int) -> list[int]:
        """Append rows, remember ids, and drop the oldest ``drop`` rows; returns the new rows."""
        now = time.time()
        with self._transaction(synced=True) as connection:
            rows = [int(connection.execute(self._sql_insert, (blob, now)).lastrowid or 0) for blob in blobs]
            if drop:
                connection.execute(
                    "DELETE FROM queue_default WHERE _id IN (SELECT _id FROM queue_default ORDER BY _id LIMIT ?)",
                    (drop,),
                )
            if ids:
                connection.executemany("INSERT OR IGNORE INTO seen (id) VALUES (?)", ((each,) for each in ids))
                connection.execute("DELETE FROM seen WHERE number <= (SELECT MAX(number) FROM seen) - ?", (keep_seen,))
        return rows

    def was_seen(self, message_id: str) -> bool:
        """Tell whether an id is remembered."""
        with self._storage_errors("read"):
            return self._getter.execute("SELECT 1 FROM seen WHERE id = ?", (message_id,)).fetchone() is not None

    def note_handed(self, rows: Collection[int]) -> None:
        """Note that rows are being handed over."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO handed (row) VALUES (?)", ((row,) for row in rows))

    def delete(self, rows: Collection[int]) -> None:
        """Delete rows."""
        keys = [(row,) for row in rows]
        with self._transaction() as connection:
            connection.executemany("DELETE FROM queue_default WHERE _id = ?", keys)
            connection.executemany("DELETE FROM handed WHERE row = ?", keys)

    @contextlib.contextmanager
    def _transaction(self, *, synced: bool = False) -> Iterator[sqlite3.Connection]:
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
        except sqlite3.Error as error:
            raise StorageError(f"cannot {what} the queue in {self._folder}: {error}") from error
        except OSError as error:
            raise StorageError(f"cannot {what} the queue in {self._folder}: {error.strerror}") from error
