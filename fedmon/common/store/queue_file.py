"""The file of a task queue: persist-queue's table, and beside it which rows are in hand and which ids were seen."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import persistqueue.serializers.json
from persistqueue import FIFOSQLiteQueue

from fedmon.common.errors import InvalidInputError, StorageError

FILE_NAME = "data.db"
_TABLES = """
    CREATE TABLE IF NOT EXISTS handed (row INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
"""


class QueueFile(FIFOSQLiteQueue):
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

    def dumps(self, document: object) -> bytes:
        """Serialize one document as JSON. Raises TypeError, ValueError or RecursionError."""
        return persistqueue.serializers.json.dumps(document)

    def loads(self, blob: object) -> dict[str, object]:
        """Read one document. Raises ValueError for whatever is not the JSON of an object; runs nothing."""
        if not isinstance(blob, bytes):
            raise InvalidInputError(f"a {type(blob).__name__} is not JSON")
        try:
            document = persistqueue.serializers.json.loads(blob)
        except RecursionError:
            raise InvalidInputError("nested too deeply") from None
        if not isinstance(document, dict):
            raise InvalidInputError(f"a JSON {type(document).__name__} is not an object")
        return document

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
