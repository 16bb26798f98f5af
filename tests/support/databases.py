"""SQLite files of ours, changed or held by another program."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


def execute(file: Path, *statements: str) -> None:
    """Change a file behind our back, each statement at once."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def fill_up(file: Path, table: str) -> None:
    """Have each new row of a table refused, as on a full disk; ``execute`` of ``DROP TRIGGER full`` makes room."""
    execute(file, f"CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END")


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let nobody else write into a file, until the end of the block."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")
