"""The SQLite file of a node: datasets, plans, effects and outbox change together or not at all."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.node.schema import SCHEMA, SCHEMA_VERSION, expected_objects, objects

logger = logging.getLogger(__name__)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""Codes that mean damage while a file is opened: our own statements there hold no error."""
_BUSY_TIMEOUT_S = 5.0


class Database:
    """One SQLite connection in WAL mode, synced to the disk at every commit.

    Belongs to the thread that opened it, or the last that called `adopt`; no method but `adopt` is for another thread.
    A damaged file is set aside under its name plus ``.damaged-<utc>``, reported in the log and in `set_aside`, and a
    fresh one takes its place.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises StorageError when that is impossible, or when a newer fedmon wrote it."""
        self.path = path.absolute()
        self.set_aside: Path | None = None
        self._owner = threading.get_ident()
        self._level = 0
        self._after_commit: list[Callable[[], None]] = []
        try:
            self._connection = self._opened()
        except _DamagedError as damage:
            self._connection = self._opened_anew(str(damage))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def adopt(self) -> None:
        """Make the calling thread the owner; the former owner must have ended or never use the database again."""
        self._owner = threading.get_ident()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._check_owner()
        self._connection.close()

    @property
    def changes(self) -> int | None:
        """Return a number that grows with every change, undone ones too; None while changes may still be undone."""
        self._check_owner()
        return None if self._level else self._connection.total_changes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block one commit; an exception undoes them all.

        A transaction inside another one joins it: its changes are undone alone when it fails, and are committed with
        the outer one. Raises StorageError, with nothing changed, when the disk is full or the file cannot be written.
        """
        self._check_owner()
        if self._level:
            with self._savepoint():
                yield
            return
        self._run("BEGIN IMMEDIATE")
        self._level = 1
        try:
            yield
            self._run("COMMIT")
        except BaseException as error:
            self._after_commit.clear()
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            if isinstance(error, sqlite3.Error):
                raise self._storage_error(error) from error
            raise
        finally:
            self._level = 0
        callbacks, self._after_commit = self._after_commit, []
        for callback in callbacks:
            callback()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the running transaction is committed, never when it fails."""
        if not self._level:
            raise RuntimeError("after_commit needs a running transaction")
        self._after_commit.append(callback)

    def execute(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run one statement that changes something; returns the number of rows it changed."""
        if self._level:
            self._check_owner()
            return self._run(statement, values).rowcount
        with self.transaction():
            return self._run(statement, values).rowcount

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Run a query and return its rows as mappings from column to value. Raises StorageError."""
        self._check_owner()
        try:
            cursor = self._connection.execute(statement, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise self._storage_error(error) from error

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        name = f"level{self._level}"
        self._run(f"SAVEPOINT {name}")
        callbacks = len(self._after_commit)
        self._level += 1
        try:
            yield
        except BaseException:
            del self._after_commit[callbacks:]
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"ROLLBACK TO {name}")
            raise
        finally:
            self._level -= 1
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"RELEASE {name}")

    def _run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        # SQLite itself undoes a transaction when the disk is full; what follows must not run outside of it.
        if self._level and not self._connection.in_transaction:
            raise StorageError(f"the register {self.path} undid this transaction after an error; nothing was changed")
        try:
            return self._connection.execute(statement, values)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._storage_error(error) from error
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"a text is not valid Unicode and cannot be kept: {error.object!r}") from error

    def _opened(self) -> sqlite3.Connection:
        try:
            _make_private(self.path)
        except OSError as error:
            raise StorageError(f"cannot open the register {self.path}: {error.strerror}") from error
        connection = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.text_factory = _text
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise _DamagedError(verdict)
            self._migrate(connection)
        except sqlite3.Error as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF in _DAMAGED:
                raise _DamagedError(str(error)) from error
            raise self._storage_error(error) from error
        except UnicodeDecodeError as error:
            connection.close()
            raise _DamagedError(f"a name in it is not UTF-8: {error.object!r}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _opened_anew(self, damage: str) -> sqlite3.Connection:
        self.set_aside = self._put_aside()
        logger.error(
            "the register %s is damaged (%s): set aside as %s, begun anew; add datasets and decide about plans again",
            self.path,
            " ".join(damage.split()),
            self.set_aside,
        )
        try:
            return self._opened()
        except _DamagedError as again:
            raise StorageError(f"cannot make the register {self.path}: {again}") from again

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StorageError(
                f"the register {self.path} has version {version} and this fedmon knows up to {SCHEMA_VERSION}: "
                "upgrade fedmon"
            )
        if version < 0 or objects(connection) != expected_objects(version):
            raise _DamagedError("its tables are not those of any fedmon")
        for number in range(version, SCHEMA_VERSION):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in SCHEMA[number]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={number + 1}")
                connection.execute("COMMIT")
            except sqlite3.Error:
                connection.rollback()
                raise

    def _put_aside(self) -> Path:
        stamp = utc_now().strftime("%Y%m%dT%H%M%S%fZ")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        try:
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        except OSError as error:
            raise StorageError(f"cannot set the damaged register {self.path} aside: {error.strerror}") from error
        return aside

    def _storage_error(self, error: sqlite3.Error) -> StorageError:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
            cause = "the disk is full; make space and try again"
        else:
            cause = str(error)
        return StorageError(f"the register {self.path} cannot be used: {cause}")

    def _check_owner(self) -> None:
        if threading.get_ident() != self._owner:
            raise RuntimeError(f"{self.path} belongs to another thread; call adopt() where its new owner starts")


class _DamagedError(Exception):
    """The file holds something that SQLite cannot have written."""


def timestamp(moment: datetime.datetime) -> str:
    """Return a UTC moment as a text that sorts like time does."""
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime.datetime:
    """Read what `timestamp` wrote."""
    return datetime.datetime.fromisoformat(text)


def _make_private(path: Path) -> None:
    """Make the file, for its owner only; SQLite gives its side files the same mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
