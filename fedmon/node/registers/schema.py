"""The tables of a node's SQLite file, as the statements that lead from each version to the next.

Checks are written into the tables because SQLite verifies them when the file is opened: a damaged value is then found
at once and not in the middle of a request.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3

import msgspec

_HEX_64 = "[0-9a-f]" * 64

_VERSION_1 = (
    """CREATE TABLE datasets (
        dataset_id TEXT PRIMARY KEY NOT NULL CHECK (dataset_id GLOB 'dataset_*'),
        name TEXT NOT NULL UNIQUE,
        data_type TEXT NOT NULL
            CHECK (data_type IN ('csv', 'tabular', 'images', 'medical-folder', 'mednist', 'default', 'custom')),
        tags TEXT NOT NULL CHECK (json_valid(tags) AND substr(tags, 1, 1) = '['),
        description TEXT NOT NULL,
        shape TEXT CHECK (shape IS NULL OR (json_valid(shape) AND substr(shape, 1, 1) = '[')),
        dtypes TEXT CHECK (dtypes IS NULL OR (json_valid(dtypes) AND substr(dtypes, 1, 1) = '{')),
        path TEXT NOT NULL,
        dataset_parameters TEXT CHECK (
            dataset_parameters IS NULL OR (json_valid(dataset_parameters) AND substr(dataset_parameters, 1, 1) = '{')),
        created TEXT NOT NULL CHECK (julianday(created) IS NOT NULL),
        modified TEXT NOT NULL CHECK (julianday(modified) IS NOT NULL)
    )""",
    f"""CREATE TABLE plans (
        plan_id TEXT PRIMARY KEY NOT NULL CHECK (plan_id GLOB 'training_plan_*'),
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        sha256 TEXT NOT NULL UNIQUE CHECK (sha256 GLOB '{_HEX_64}'),
        size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
        checked INTEGER NOT NULL DEFAULT 0 CHECK (checked IN (0, 1)),
        minified_sha256 TEXT CHECK (minified_sha256 IS NULL OR minified_sha256 GLOB '{_HEX_64}'),
        problem TEXT NOT NULL DEFAULT '',
        type TEXT NOT NULL CHECK (type IN ('requested', 'registered', 'default')),
        status TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'rejected')),
        note TEXT NOT NULL DEFAULT '',
        researcher_id TEXT,
        created TEXT NOT NULL CHECK (julianday(created) IS NOT NULL),
        modified TEXT NOT NULL CHECK (julianday(modified) IS NOT NULL),
        registered TEXT CHECK (registered IS NULL OR julianday(registered) IS NOT NULL),
        last_action TEXT NOT NULL CHECK (julianday(last_action) IS NOT NULL),
        decided TEXT CHECK (decided IS NULL OR julianday(decided) IS NOT NULL)
    )""",
    "CREATE INDEX plans_minified ON plans (minified_sha256)",
    "CREATE INDEX plans_name ON plans (name)",
    "CREATE INDEX plans_researcher ON plans (researcher_id, status)",
    """CREATE TABLE unsettled (
        sha256 TEXT PRIMARY KEY NOT NULL REFERENCES plans (sha256) ON DELETE CASCADE,
        source BLOB NOT NULL
    )""",
    f"""CREATE TABLE leavings (
        sha256 TEXT PRIMARY KEY NOT NULL CHECK (sha256 GLOB '{_HEX_64}')
    )""",
    """CREATE TABLE requesters (
        plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
        researcher_id TEXT NOT NULL,
        requested TEXT NOT NULL CHECK (julianday(requested) IS NOT NULL),
        PRIMARY KEY (plan_id, researcher_id)
    )""",
    f"""CREATE TABLE removed_defaults (
        sha256 TEXT PRIMARY KEY NOT NULL CHECK (sha256 GLOB '{_HEX_64}')
    )""",
    """CREATE TABLE effects (
        researcher_id TEXT NOT NULL,
        request_id TEXT NOT NULL,
        content TEXT NOT NULL,
        reply BLOB NOT NULL,
        keep_until TEXT NOT NULL CHECK (julianday(keep_until) IS NOT NULL),
        PRIMARY KEY (researcher_id, request_id)
    )""",
    "CREATE INDEX effects_keep ON effects (keep_until)",
    """CREATE TABLE outbox (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        researcher_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        message TEXT NOT NULL CHECK (json_valid(message)),
        expires TEXT NOT NULL CHECK (julianday(expires) IS NOT NULL),
        UNIQUE (researcher_id, message_id)
    )""",
    "CREATE INDEX outbox_expires ON outbox (expires)",
)

_VERSION_2 = (
    f"""CREATE TABLE runs (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id TEXT NOT NULL UNIQUE,
        researcher_id TEXT NOT NULL,
        content TEXT NOT NULL,
        sha256 TEXT NOT NULL CHECK (sha256 GLOB '{_HEX_64}'),
        state TEXT NOT NULL,
        is_over INTEGER NOT NULL DEFAULT 0 CHECK (is_over IN (0, 1)),
        job TEXT NOT NULL CHECK (json_valid(job)),
        created TEXT NOT NULL CHECK (julianday(created) IS NOT NULL),
        ended TEXT CHECK (ended IS NULL OR julianday(ended) IS NOT NULL)
    )""",
    "CREATE INDEX runs_researcher ON runs (researcher_id, position)",
    "CREATE INDEX runs_going_on ON runs (is_over) WHERE is_over = 0",
)

# `total` is the exclusive or of the hashes of all rows of all other tables: any other content gives another number.
_VERSION_3 = (
    "CREATE TABLE marks (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
    "CREATE TABLE total (value INTEGER NOT NULL)",
    "INSERT INTO total VALUES (0)",
)

SCHEMA: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2, _VERSION_3)
SCHEMA_VERSION = len(SCHEMA)
TOTAL_SINCE = 3
_TABLES = """SELECT m.name AS name, (SELECT group_concat(c.name) FROM pragma_table_info(m.name) c) AS columns
    FROM main.sqlite_master m WHERE m.type = 'table' AND m.name NOT IN ('total', 'sqlite_sequence')"""


def objects(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return the tables and indices of a file, each with the statement that made it."""
    return set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def expected_objects(version: int) -> set[tuple[str, str]]:
    """Return what `objects` finds in an undamaged file of this version."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statements in SCHEMA[:version]:
            for statement in statements:
                connection.execute(statement)
        return objects(connection)


def total_of(connection: sqlite3.Connection) -> int:
    """Compute from all rows what an undamaged file has as its ``total``."""
    total = 0
    for name, columns in connection.execute(_TABLES).fetchall():
        for row in connection.execute(f"SELECT {columns} FROM {name}"):  # noqa: S608 - our own tables
            total = _toggled(total, name, *row)
    return total


def keep_total(connection: sqlite3.Connection) -> None:
    """Have this connection change ``total`` with every row that it adds, changes or removes."""
    connection.create_function("toggled", -1, _toggled, deterministic=True)
    for name, columns in connection.execute(_TABLES).fetchall():
        old, new = (", ".join(f"{side}.{column}" for column in columns.split(",")) for side in ("OLD", "NEW"))
        # Temporary, so that other programs can open the file; what they change counts as damage.
        for change, sides in (("INSERT", (new,)), ("DELETE", (old,)), ("UPDATE", (old, new))):
            statements = "; ".join(
                f"UPDATE total SET value = toggled(value, '{name}', {side})"  # noqa: S608 - our own tables
                for side in sides
            )
            connection.execute(
                f"CREATE TEMP TRIGGER {name}_{change} AFTER {change} ON main.{name} BEGIN {statements}; END"
            )


def _toggled(total: int, table: str, *values: object) -> int:
    digest = hashlib.blake2b(msgspec.msgpack.encode([table, *values]), digest_size=8).digest()
    return total ^ int.from_bytes(digest, signed=True)
