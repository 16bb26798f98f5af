"""The tables of a node's SQLite file, as the statements that lead from each version to the next.

Checks are written into the tables because SQLite verifies them when the file is opened: a damaged value is then found
at once and not in the middle of a request.
"""

from __future__ import annotations

import contextlib
import sqlite3

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

SCHEMA: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2)
SCHEMA_VERSION = len(SCHEMA)


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
