"""`TasksQueue`: a durable first-in-first-out queue of JSON documents, on persist-queue."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import persistqueue.serializers.json
from persistqueue import FIFOSQLiteQueue

from fedmon.common.clock import Deadline
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
    """A queue is empty or closed, or was given what it cannot keep."""


class TasksQueue:
    """Keeps documents on disk, in order, until they are taken.

    What ``add`` stored outlives the process however it ends; what ``add_many`` stored outlives a loss of power too.

    One process owns the folder (FolderInUseError otherwise). Bounded: beyond ``max_items`` the oldest goes and is
    counted in ``dropped``. ``get`` hands out one document at a time and forgets it at ``task_done`` or the next
    ``get``; the one that was in hand when the process died comes again first, with ``"redelivered": true`` in it.
    A damaged file is set aside and named by ``set_aside``. ``tmp_dir`` is taken for the sake of older callers; nothing
    is written there. Every method is safe from any thread; StorageError when the disk fails.
    """

    def __init__(
        self,
        messages_queue_dir: str | Path,
        tmp_dir: str | Path | None = None,
        *,
        max_items: int = MAX_ITEMS,
        max_seen: int = MAX_SEEN,
    ) -> None:
        self._max_items, self._max_seen, self._tmp_dir = max_items, max_seen, tmp_dir
        self._changed = threading.Condition()
        self._folder = OwnedFolder(Path(messages_queue_dir))
        self.set_aside: Path | None = None
        self.dropped = 0
        try:
            self._file: _QueueFile | None = self._open()
            self._waiting = self._file.count(after=0)
        except BaseException:
            self._folder.release()
            raise
        # Rows up to the cursor were handed out; of these only the one in hand is still wanted on disk.
        self._cursor = 0
        self._in_hand: int | None = None
        self._owes_disk = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder back; a waiting ``get`` ends with TasksQueueError. Safe to call twice."""
        with self._changed:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._folder.release()
            self._changed.notify_all()

    # --- one by one --------------------------------------------------------------------------------------------------

    def add(self, task: Mapping[str, Any], *, message_id: str | None = None) -> int:
        """Store a document, and its id as seen, in one transaction; returns its key, which is higher than all before.

        Raises TasksQueueError for what is no JSON object, StorageError when it could not be stored.
        """
        return self._store([task], [message_id], synced=False)[0]

    def get(self, block: bool = True, *, timeout_s: float | None = None) -> dict[str, Any]:  # noqa: FBT001, FBT002 - historic
        """Take the oldest document in hand, waiting for one unless ``block`` is false.

        Raises TasksQueueError when there is none (in time), or when the queue is closed meanwhile.
        """
        deadline = Deadline(timeout_s) if timeout_s is not None else None
        with self._changed:
            while True:
                document = self._next()
                if document is not None:
                    return document
                if not block or (deadline is not None and deadline.passed()):
                    raise TasksQueueError(f"the queue in {self._folder.path} is empty")
                self._changed.wait(deadline.left_s() if deadline is not None else None)

    def task_done(self) -> None:
        """Forget the document in hand; does nothing when there is none."""
        with self._changed:
            if self._in_hand is not None:
                self._in_hand = None
                self._settle(self._cursor, None)

    def qsize(self) -> int:
        """Return how many documents wait, without the one in hand."""
        with self._changed:
            return self._waiting

    # --- many at once ------------------------------------------------------------------------------------------------

    def add_many(self, documents: Sequence[Mapping[str, Any]], *, ids: Sequence[str | None] = ()) -> list[int]:
        """Store documents and ids in one transaction; returns their keys in order. Raises like ``add``."""
        return self._store(documents, ids, synced=True)

    def take_all(self, limit: int = MAX_ITEMS) -> list[dict[str, Any]]:
        """Take up to ``limit`` documents for good, in order; they are off the disk when this returns."""
        with self._changed:
            rows = self._opened().rows(after=self._cursor, limit=limit)
            taken = [document for row, blob, handed in rows if (document := self._read(row, blob, handed)) is not None]
            if rows:
                self._in_hand, self._cursor = None, rows[-1][0]
                self._waiting -= len(rows)
                self._settle(self._cursor, None, synced=True)
            return taken

    def pending(self) -> list[tuple[int, dict[str, Any], bool]]:
        """Return what waits, in order and without taking it: key, document, and whether it was in hand before."""
        with self._changed:
            rows = self._opened().rows(after=self._cursor, limit=-1)
            read = ((row, self._read(row, blob, handed=False), handed) for row, blob, handed in rows)
            return [(row, document, handed) for row, document, handed in read if document is not None]

    def mark_handed(self, keys: Collection[int]) -> None:
        """Note on disk that these documents are being handed over; after a crash they come again as redelivered."""
        with self._changed:
            self._opened().note_handed(keys)

    def discard(self, keys: Collection[int]) -> None:
        """Take documents out by key, wherever they stand; unknown keys are ignored."""
        with self._changed:
            file = self._opened()
            file.delete(keys)
            self._waiting = file.count(after=self._cursor)

    # --- ids seen before ---------------------------------------------------------------------------------------------

    def seen(self, message_id: str) -> bool:
        """Tell whether this id was stored before, also by an earlier process; the last ``max_seen`` are known."""
        with self._changed:
            return self._opened().was_seen(message_id)

    def mark_seen(self, message_id: str) -> None:
        """Remember an id on disk."""
        with self._changed:
            self._opened().remember([message_id], keep_seen=self._max_seen)

    # --- under the lock ----------------------------------------------------------------------------------------------

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

    def _store(self, documents: Sequence[Mapping[str, Any]], ids: Sequence[str | None], *, synced: bool) -> list[int]:
        blobs = [self._serialized(document) for document in documents]
        with self._changed:
            drop = max(0, self._waiting + len(blobs) - self._max_items)
            keys = self._opened().insert(
                blobs,
                ids=[one for one in ids if one is not None],
                keep_seen=self._max_seen,
                drop=drop,
                drop_after=self._cursor,
                synced=synced,
            )
            self._waiting += len(blobs) - drop
            if drop:
                if not self.dropped:
                    logger.warning("queue in %s is full, so the oldest documents go", self._folder.path)
                self.dropped += drop
            self._changed.notify_all()
        return keys

    def _opened(self) -> _QueueFile:
        if self._file is None:
            raise TasksQueueError(f"the queue in {self._folder.path} is closed")
        return self._file

    def _next(self) -> dict[str, Any] | None:
        while rows := self._opened().rows(after=self._cursor, limit=1):
            row, blob, handed = rows[0]
            done, self._cursor = self._cursor, row
            self._waiting -= 1
            document = self._read(row, blob, handed)
            if document is not None:
                self._in_hand = row
                self._settle(done, row)
                return document
        return None

    def _read(self, row: int, blob: object, handed: bool) -> dict[str, Any] | None:  # noqa: FBT001 - a column
        try:
            document = _read_document(blob)
        except (ValueError, RecursionError) as error:
            logger.warning(
                "document %d of the queue in %s is unreadable and skipped: %s", row, self._folder.path, error
            )
            return None
        return {**document, "redelivered": True} if handed else document

    def _settle(self, done: int, in_hand: int | None, *, synced: bool = False) -> None:
        """Write which documents are done; on a full disk handing out goes on, and the next change writes it."""
        try:
            self._opened().take_up(in_hand, drop_up_to=done, synced=synced)
        except StorageError as error:
            if not self._owes_disk:
                logger.warning("what was taken may come again after a restart: %s", error)
            self._owes_disk = True
        else:
            self._owes_disk = False

    def _serialized(self, document: Mapping[str, Any]) -> bytes:
        if not isinstance(document, Mapping):
            raise TasksQueueError(f"a queue keeps JSON objects, not a {type(document).__name__}")
        try:
            return persistqueue.serializers.json.dumps(dict(document))
        except (TypeError, ValueError, RecursionError) as error:
            raise TasksQueueError(f"a document cannot be written as JSON: {error}") from None


def _read_document(blob: object) -> dict[str, Any]:
    """Read the JSON of an object; runs nothing. Raises ValueError or RecursionError for anything else."""
    document = persistqueue.serializers.json.loads(blob) if isinstance(blob, bytes) else blob
    if not isinstance(document, dict):
        raise InvalidInputError(f"a {type(document).__name__} is not a JSON object")
    return document


class _QueueFile(FIFOSQLiteQueue):
    """One queue of persist-queue, with several changes in one transaction; used under its owner's lock.

    Each method that changes something has committed it when it returns, and raises StorageError when it cannot. A
    commit outlives the process at once; ``synced`` waits until it would outlive a loss of power too.
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

    def rows(self, *, after: int, limit: int) -> list[tuple[int, object, bool]]:
        """Return up to ``limit`` rows behind a row: its id, its blob, and whether it was in hand before."""
        with self._storage_errors("read"):
            found = self._getter.execute(
                "SELECT q._id, q.data, h.row IS NOT NULL FROM queue_default AS q "
                "LEFT JOIN handed AS h ON h.row = q._id "
                "WHERE q._id > ? ORDER BY q._id LIMIT ?",
                (after, limit),
            ).fetchall()
        return [(row, blob, bool(handed)) for row, blob, handed in found]

    def count(self, *, after: int) -> int:
        """Return how many rows lie behind a row."""
        sql = "SELECT COUNT(*) FROM queue_default WHERE _id > ?"
        with self._storage_errors("read"):
            return int(self._getter.execute(sql, (after,)).fetchone()[0])

    def insert(
        self, blobs: Sequence[bytes], *, ids: Iterable[str], keep_seen: int, drop: int, drop_after: int, synced: bool
    ) -> list[int]:
        """Append rows, remember ids, and drop the ``drop`` oldest rows behind ``drop_after``; returns the new rows."""
        now = time.time()
        with self._transaction(synced=synced) as connection:
            rows = [int(connection.execute(self._sql_insert, (blob, now)).lastrowid or 0) for blob in blobs]
            if drop > 0:
                connection.execute(
                    "DELETE FROM queue_default WHERE _id IN "
                    "(SELECT _id FROM queue_default WHERE _id > ? ORDER BY _id LIMIT ?)",
                    (drop_after, drop),
                )
            self._remember(connection, ids, keep_seen)
        return rows

    def remember(self, ids: Iterable[str], *, keep_seen: int) -> None:
        """Remember ids as seen, and forget the oldest beyond ``keep_seen``."""
        with self._transaction() as connection:
            self._remember(connection, ids, keep_seen)

    def was_seen(self, message_id: str) -> bool:
        """Tell whether an id is remembered."""
        with self._storage_errors("read"):
            return self._getter.execute("SELECT 1 FROM seen WHERE id = ?", (message_id,)).fetchone() is not None

    def take_up(self, row: int | None, *, drop_up_to: int, synced: bool) -> None:
        """Drop every row up to one, and note that ``row`` is in hand."""
        with self._transaction(synced=synced) as connection:
            connection.execute("DELETE FROM queue_default WHERE _id <= ?", (drop_up_to,))
            connection.execute("DELETE FROM handed WHERE row <= ?", (drop_up_to,))
            if row is not None:
                connection.execute("INSERT OR IGNORE INTO handed (row) VALUES (?)", (row,))

    def note_handed(self, rows: Iterable[int]) -> None:
        """Note that rows are in hand."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO handed (row) VALUES (?)", ((row,) for row in rows))

    def delete(self, rows: Iterable[int]) -> None:
        """Drop single rows."""
        keys = [(row,) for row in rows]
        with self._transaction() as connection:
            connection.executemany("DELETE FROM queue_default WHERE _id = ?", keys)
            connection.executemany("DELETE FROM handed WHERE row = ?", keys)

    @staticmethod
    def _remember(connection: sqlite3.Connection, ids: Iterable[str], keep_seen: int) -> None:
        rows = [(one,) for one in ids]
        if rows:
            connection.executemany("INSERT OR IGNORE INTO seen (id) VALUES (?)", rows)
            connection.execute("DELETE FROM seen WHERE number <= (SELECT MAX(number) FROM seen) - ?", (keep_seen,))

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
