"""Taking over what can still be read of a damaged recording."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fedmon.common.errors import StorageError
from fedmon.common.store.recording_bounds import AGE_S
from fedmon.common.store.recording_file import RecordingFile

logger = logging.getLogger(__name__)

_MOST_ERRORS = 1_000
"""A file that fails so often holds nothing worth more time."""
_TOGETHER = 200
_SMALL = {
    "source": ("id", "node_id", "boot", "stream", "floor_seq"),
    "lost": ("source", "first_seq", "last_seq", "reason"),
    "mark": ("id", "source", "t", "text"),
    "description": ("node_id", "boot", "document"),
    "number": ("name", "value"),
}
_AGE = (
    "INSERT INTO number (name, value) SELECT ?, max(kept) FROM batch WHERE true "
    "ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
)
_BATCH = ("source", "first_seq", "last_seq", "first_t", "last_t", "low_t", "high_t", "last_mono", "kept", "body")


def salvage(aside: Path, *, into: RecordingFile) -> int:
    """Copy every row that can be read from a damaged recording; returns how many samples that were.

    Rows are copied as they are: whether a body is sound shows when it is read. A failure ends the copying and is
    reported in the log, because what is new matters more than what was rescued.
    """
    rescued = 0
    try:
        with contextlib.closing(sqlite3.connect(aside)) as damaged:
            known: set[int] | None = None
            for table, names in _SMALL.items():
                _copy(into, table, names, _rows(damaged, table, names), known)
                known = {source for (source,) in into.rows("SELECT id FROM source")}
            rows = _rows(damaged, "batch", ("id", *_BATCH))
            while known and (together := [row[1:] for row in islice(rows, _TOGETHER)]):
                rescued += sum(row[2] - row[1] + 1 for row in _copy(into, "batch", _BATCH, iter(together), known))
            if rescued:
                with into.transaction():  # without it what is new would be older than what was rescued, and go first
                    into.run(_AGE, (AGE_S,))
    except (sqlite3.Error, StorageError, TypeError) as error:
        logger.warning("no more can be read of %s: %s", aside, error)
    logger.warning("%d samples were taken over from the damaged recording %s", rescued, aside)
    return rescued


def _copy(
    into: RecordingFile,
    table: str,
    names: tuple[str, ...],
    rows: Iterator[tuple[Any, ...]],
    known: set[int] | None,
) -> list[tuple[Any, ...]]:
    """Copy rows, and return them; of sources that are not known it is nobody's, and would become another stream's."""
    marks = ", ".join("?" * len(names))
    of = names.index("source") if "source" in names else None
    copied = [row for row in rows if of is None or known is None or row[of] in known]
    with into.transaction():
        for row in copied:
            into.run(f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})", row)  # noqa: S608
    return copied


def _rows(damaged: sqlite3.Connection, table: str, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a table that can be read; batches one by one, so that a damaged one costs no other."""
    columns = ", ".join(names)
    if table != "batch":
        with contextlib.suppress(sqlite3.Error):
            yield from damaged.execute(f"SELECT {columns} FROM {table}")  # noqa: S608
        return
    errors, position = 0, 0
    while errors < _MOST_ERRORS:
        try:
            row = damaged.execute(
                f"SELECT {columns} FROM batch NOT INDEXED WHERE id > ? ORDER BY id LIMIT 1",  # noqa: S608
                (position,),
            ).fetchone()
        except sqlite3.Error:
            errors += 1
            position += 1
            continue
        if row is None:
            return
        if row[0] <= position or None in row:  # what a damaged page holds may come in any order, and without end
            errors += 1
            position += 1
            continue
        position = row[0]
        yield row
