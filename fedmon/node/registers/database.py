"""The SQLite file of a node: datasets, plans, effects and outbox change together or not at all.

The tables are written as the statements that lead from each version to the next. Checks are written into them because
SQLite verifies these when the file is opened: a damaged value is found at once and not in the middle of a request.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.clock import utc_now
from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.common.files import Closing, make_private, storage_errors, sync
from fedmon.common.store.damage import DamagedFileError, set_aside, storage_error
from fedmon.node.requests.audit import FIRST_PREVIOUS, Audit

logger = logging.getLogger(__name__)

Row = dict[str, Any]

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY})
"""Codes that mean damage while a file is opened: our own statements hold no error, and we opened it for writing."""
_BUSY_TIMEOUT_S = 5.0
COPY_EVERY = datetime.timedelta(days=1)

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

_VERSION_4 = (
    """CREATE TABLE grants (
        grant_id TEXT PRIMARY KEY NOT NULL,
        sha256 TEXT NOT NULL REFERENCES plans (sha256) ON DELETE CASCADE,
        content TEXT NOT NULL CHECK (json_valid(content)),
        used INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
        created TEXT NOT NULL CHECK (julianday(created) IS NOT NULL),
        ended TEXT CHECK (ended IS NULL OR julianday(ended) IS NOT NULL)
    )""",
    "CREATE INDEX grants_sha256 ON grants (sha256)",
    """CREATE TABLE wishes (
        plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
        researcher_id TEXT NOT NULL,
        datasets TEXT CHECK (datasets IS NULL OR (json_valid(datasets) AND substr(datasets, 1, 1) = '[')),
        purpose TEXT NOT NULL,
        is_open INTEGER NOT NULL CHECK (is_open IN (0, 1)),
        PRIMARY KEY (plan_id, researcher_id)
    )""",
    """CREATE TABLE declarations (
        sha256 TEXT PRIMARY KEY NOT NULL REFERENCES plans (sha256) ON DELETE CASCADE,
        content TEXT NOT NULL CHECK (json_valid(content))
    )""",
    # Approvals of before had no terms: they hold for every researcher, without end.
    """INSERT INTO grants (grant_id, sha256, content, created)
        SELECT 'grant_' || sha256, sha256,
        json_object('grant_id', 'grant_' || sha256, 'sha256', sha256, 'release', 'auto'),
        coalesce(decided, modified) FROM plans WHERE status = 'approved'""",
    """INSERT INTO wishes (plan_id, researcher_id, datasets, purpose, is_open)
        SELECT r.plan_id, r.researcher_id, NULL, '', p.status != 'approved'
        FROM requesters r JOIN plans p USING (plan_id)
        ORDER BY r.requested, r.rowid""",
    "UPDATE plans SET checked = 0",  # for their declarations
    """CREATE TABLE released (
        month TEXT NOT NULL CHECK (month GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]'),
        researcher_id TEXT NOT NULL,
        dataset_id TEXT NOT NULL,
        results INTEGER NOT NULL CHECK (results >= 0),
        size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
        numbers INTEGER NOT NULL CHECK (numbers >= 0),
        scalars INTEGER NOT NULL CHECK (scalars >= 0),
        PRIMARY KEY (month, researcher_id, dataset_id)
    )""",
)

_VERSION_5 = (
    # A researcher has a row for each request: another purpose or other datasets replace none.
    "CREATE TEMP TABLE kept AS SELECT * FROM wishes ORDER BY rowid",
    "DROP TABLE wishes",
    """CREATE TABLE wishes (
        plan_id TEXT NOT NULL REFERENCES plans (plan_id) ON DELETE CASCADE,
        researcher_id TEXT NOT NULL,
        datasets TEXT CHECK (datasets IS NULL OR (json_valid(datasets) AND substr(datasets, 1, 1) = '[')),
        purpose TEXT NOT NULL,
        is_open INTEGER NOT NULL CHECK (is_open IN (0, 1))
    )""",
    "CREATE INDEX wishes_plan ON wishes (plan_id, researcher_id)",
    "INSERT INTO wishes SELECT * FROM kept ORDER BY rowid",
    "DROP TABLE kept",
    # A rejection left requests open.
    "UPDATE wishes SET is_open = 0 WHERE plan_id IN (SELECT plan_id FROM plans WHERE status = 'rejected')",
    # A check that failed for a passing reason was kept as a plan that declares nothing.
    "UPDATE plans SET checked = 0 WHERE problem != ''",
    "DELETE FROM declarations WHERE sha256 IN (SELECT sha256 FROM plans WHERE NOT checked)",
)

SCHEMA: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)
SCHEMA_VERSION = len(SCHEMA)
TOTAL_SINCE = 3
_TABLES = """SELECT m.name AS name, (SELECT group_concat(c.name) FROM pragma_table_info(m.name) c) AS columns
    FROM main.sqlite_master m WHERE m.type = 'table' AND m.name NOT IN ('total', 'sqlite_sequence')"""


class Database(Closing):
    """One SQLite connection in WAL mode, synced to the disk at every commit.

    For one thread at a time. A damaged file is set aside under its name plus ``.damaged-<utc>`` and replaced by its
    copy, or by an empty one where there is none. Then `behind` is the last line of the audit when the copy was made,
    the mark ``damage`` describes it, and `Registers` brings the content up to date.
    """

    def __init__(self, path: Path, audit: Audit, *, restores: bool = True) -> None:
        """Open or make the file; a missing or empty one counts as damaged if the node's ``audit`` has lines.

        Raises StorageError when that is impossible, or when a newer fedmon wrote it, and DamagedFileError if it is
        damaged and nothing ``restores`` it.
        """
        self.path, self._audit = path.absolute(), audit
        self.copy_path = self.path.with_name(f"{self.path.name}.copy")
        self._staged = self.path.with_name(f"{self.path.name}.new")
        self._level = 0
        self._after_commit: list[Callable[[], object]] = []
        self._after_failure: list[Callable[[], object]] = []
        try:
            if restores and audit.end[0] and not (path.exists() and path.stat().st_size):
                raise DamagedFileError("it is missing or empty, and the audit is not")
            self._connection = _opened(self.path)
        except DamagedFileError as damage:
            if not restores:
                raise
            self._put_copy_in_place(" ".join(str(damage).split()))
            self._connection = _opened(self.path)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    @property
    def changes(self) -> int | None:
        """Return a number that grows with every change, undone ones too; None while changes may still be undone."""
        return None if self._level else self._connection.total_changes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block one commit; an exception undoes them all.

        A transaction inside another one joins it: its changes are undone alone when it fails, and are committed with
        the outer one. Raises StorageError, with nothing changed, when the disk is full or the file cannot be written.
        """
        name, callbacks, failures = f"level{self._level}", len(self._after_commit), len(self._after_failure)
        # Another program's lock is waited for at the begin alone: SQLite does not wait once a transaction has read.
        self._run(f"SAVEPOINT {name}" if self._level else "BEGIN IMMEDIATE")
        self._level += 1
        try:
            yield
            self._run(f"RELEASE {name}" if self._level > 1 else "COMMIT")
        except BaseException as error:
            del self._after_commit[callbacks:]
            if not (isinstance(error, Exception) or self._connection.in_transaction):
                del self._after_failure[failures:]  # a signal came once all was committed
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK" if self._level == 1 else f"ROLLBACK TO {name}")
            while len(self._after_failure) > failures:
                with contextlib.suppress(StorageError):
                    self._after_failure.pop()()
            if isinstance(error, sqlite3.Error) and self._level == 1:
                raise storage_error(f"the register {self.path} cannot be used", error) from error
            raise
        finally:
            self._level -= 1
        if not self._level:
            committed, self._after_commit, self._after_failure = self._after_commit, [], []
            for callback in committed:
                callback()

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once the running transaction is committed, never when it fails; inside one."""
        self._after_commit.append(callback)

    def record(self, event: str, **facts: object) -> None:
        """Have the audit's line of a decision on the disk before it is committed; another tells if that fails."""
        line = self._audit.record(event, **facts)
        self._after_failure.append(lambda: self._audit.record("undone", undone_n=line))
        self._audit.sync()

    def execute(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run one statement that changes something; returns the number of rows it changed."""
        return self._run(statement, values).rowcount

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Run a query and return its rows as mappings from column to value. Raises StorageError."""
        try:
            cursor = self._connection.execute(statement, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise storage_error(f"the register {self.path} cannot be used", error) from error

    def _run(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        # SQLite itself undoes a transaction when the disk is full; what follows must not run outside of it.
        if self._level and not self._connection.in_transaction:
            raise StorageError(f"the register {self.path} undid this transaction after an error; nothing was changed")
        try:
            return self._connection.execute(statement, values)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise storage_error(f"the register {self.path} cannot be used", error) from error
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"a text is not valid Unicode and cannot be kept: {error.object!r}") from error

    @property
    def behind(self) -> tuple[int, str] | None:
        """The audit's last line (number and hash) that the content knows of; None when it knows of every line."""
        mark = self.mark("behind")
        number, _, digest = (mark or "").partition(" ")
        return None if mark is None else (int(number), digest)

    @property
    def restored(self) -> datetime.datetime | None:
        """When the file was last restored from its copy."""
        mark = self.mark("restored")
        return None if mark is None else datetime.datetime.fromisoformat(mark)

    def mark(self, name: str) -> str | None:
        """Return a value that belongs to the file as a whole, such as ``report``: the findings of its last restore."""
        found = self.rows("SELECT value FROM marks WHERE name = ?", (name,))
        return found[0]["value"] if found else None

    def set_mark(self, name: str, value: str | None) -> None:
        """Change a value that belongs to the file as a whole; None removes it."""
        with self.transaction():
            self._run("DELETE FROM marks WHERE name = ?", (name,))
            if value is not None:
                self._run("INSERT INTO marks VALUES (?, ?)", (name, value))

    def copy_if_due(self) -> None:
        """Copy the file once a day. Raises StorageError; the earlier copy stays then."""
        with contextlib.suppress(OSError):
            age = utc_now().timestamp() - self.copy_path.stat().st_mtime
            if 0 <= age < COPY_EVERY.total_seconds():
                return
        self.copy()

    def copy(self) -> None:
        """Copy the file now, with the end of the audit. Raises StorageError; the earlier copy stays then."""
        self._audit.sync()
        number, digest = self._audit.end
        _remove(self._staged)
        self._run("VACUUM INTO ?", (str(self._staged),))
        try:
            with Database(self._staged, self._audit, restores=False) as copy:
                copy.set_mark("behind", f"{number} {digest}")
        except DamagedFileError as damage:
            _remove(self._staged)
            raise StorageError(
                f"the register {self.path} is damaged ({damage}) and was not copied: restart the node to restore it"
            ) from damage
        _put(self._staged, self.copy_path)

    def _put_copy_in_place(self, damage: str) -> None:
        """Replace the damaged file in one step by its copy, or by an empty register that is behind the whole audit."""
        _remove(self._staged)
        source = "begun again without a copy"
        with storage_errors(self._staged):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self.copy_path, self._staged)
                made = datetime.datetime.fromtimestamp(self.copy_path.stat().st_mtime, datetime.UTC)
                source = f"restored from its copy of {made.isoformat(timespec='seconds')}"
            try:
                new = Database(self._staged, self._audit, restores=False)
            except DamagedFileError:
                source = "begun again: its copy was damaged as well"
                _remove(self._staged)
                set_aside(self.copy_path)
                new = Database(self._staged, self._audit, restores=False)
        with new, new.transaction():
            if new.mark("behind") is None:
                new.set_mark("behind", f"0 {FIRST_PREVIOUS}")
            new.set_mark("damage", f"{damage}; {source}")
        aside = set_aside(self.path)
        _put(self._staged, self.path)
        logger.error("the register %s was damaged: %s; %s; set aside as %s", self.path, damage, source, aside)


def _opened(path: Path) -> sqlite3.Connection:
    """Open or make a file, with everything in it checked. Raises StorageError, and DamagedFileError."""
    make_private(path)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    with contextlib.ExitStack() as failed:
        failed.callback(connection.close)
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise DamagedFileError(verdict)
            _migrate(connection, path)
            _keep_total(connection)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in _DAMAGED:
                raise DamagedFileError(str(error)) from error
            raise storage_error(f"the register {path} cannot be used", error) from error
        except UnicodeDecodeError as error:
            raise DamagedFileError(f"a name in it is not UTF-8: {error.object!r}") from error
        failed.pop_all()
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version >= TOTAL_SINCE:
        marked = connection.execute("SELECT value FROM marks WHERE name = 'version'").fetchone()
        if marked != (str(version),):
            raise DamagedFileError(f"it says that it has version {version}, and is marked otherwise")
    if version > SCHEMA_VERSION:
        raise StorageError(
            f"the register {path} has version {version} and this fedmon knows up to {SCHEMA_VERSION}: upgrade fedmon"
        )
    if version < 0 or _objects(connection) != _expected_objects(version):
        raise DamagedFileError("its tables are not those of any fedmon")
    if version >= TOTAL_SINCE and connection.execute("SELECT value FROM total").fetchone() != (_total_of(connection),):
        raise DamagedFileError("a row differs from the written one")
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        _make(connection, SCHEMA[version:])
        connection.execute("INSERT OR REPLACE INTO marks VALUES ('version', ?)", (str(SCHEMA_VERSION),))
        connection.execute("UPDATE total SET value = ?", (_total_of(connection),))
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _objects(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return the tables and indices of a file, each with the statement that made it."""
    return set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def _expected_objects(version: int) -> set[tuple[str, str]]:
    """Return the result of `_objects` for an undamaged file of this version."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _make(connection, SCHEMA[:version])
        return _objects(connection)


def _make(connection: sqlite3.Connection, versions: Sequence[Sequence[str]]) -> None:
    for statement in itertools.chain.from_iterable(versions):
        connection.execute(statement)


def _total_of(connection: sqlite3.Connection) -> int:
    """Compute from all rows the ``total`` of an undamaged file."""
    total = 0
    for name, columns in connection.execute(_TABLES).fetchall():
        for row in connection.execute(f"SELECT {columns} FROM {name}"):  # noqa: S608 - our own tables
            total = _toggled(total, name, *row)
    return total


def _keep_total(connection: sqlite3.Connection) -> None:
    """Have this connection change ``total`` with every row that it adds, changes or removes."""
    connection.create_function("toggled", -1, _toggled, deterministic=True)
    for name, columns in connection.execute(_TABLES).fetchall():
        old, new = (", ".join(f"{side}.{column}" for column in columns.split(",")) for side in ("OLD", "NEW"))
        # Temporary, so that other programs can open the file; their changes count as damage.
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


def _put(staged: Path, path: Path) -> None:
    """Give a closed file the name of another, safe from a power cut. Raises StorageError."""
    with storage_errors(path):
        sync(staged)
        staged.replace(path)
        sync(path.parent)


def _remove(staged: Path) -> None:
    """Remove the remains of an unfinished attempt. Raises StorageError."""
    with storage_errors(staged):
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{staged}{suffix}").unlink(missing_ok=True)
