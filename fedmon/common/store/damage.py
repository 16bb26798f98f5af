"""Errors of SQLite in our words; damaged files recognised and set aside."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from fedmon.common.clock import utc_now
from fedmon.common.errors import StorageError
from fedmon.common.files import storage_errors

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})


class DamagedFileError(StorageError):
    """A file is no sound SQLite database."""


def storage_error(failed: str, error: sqlite3.Error | OSError, causes: Mapping[int, str] = {}) -> StorageError:
    """Return the error of a failed attempt, with its reason; ``causes`` are words for codes of SQLite."""
    code, full = getattr(error, "sqlite_errorcode", 0), "the disk is full; make space and try again"
    why = {sqlite3.SQLITE_FULL: full, sqlite3.SQLITE_IOERR_SHMSIZE: full, **causes}
    return StorageError(f"{failed}: {why.get(code) or why.get(code & 0xFF) or getattr(error, 'strerror', 0) or error}")


def tells_of_damage(error: StorageError) -> bool:
    """Tell whether an error means that the file itself is not sound or not ours."""
    return isinstance(error, DamagedFileError) or getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def is_damaged(path: Path) -> bool:
    """Tell whether a file is no sound SQLite database; an empty or absent one is sound.

    Raises StorageError when the file cannot be looked at.
    """
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return bool(connection.execute("PRAGMA quick_check").fetchone() != ("ok",))
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in _DAMAGE:
            return True
        raise storage_error(f"cannot read {path}", error) from error


def set_aside(path: Path) -> Path:
    """Rename a damaged database and its side files; returns its new name. Raises StorageError."""
    target = path.with_name(f"{path.name}.damaged-{utc_now():%Y%m%dT%H%M%S%fZ}")
    with storage_errors(target):
        for suffix in ("", "-wal", "-shm"):  # without its log, a database that lost commits would look sound
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target
