"""The node's SQLite file commits all or nothing, is private, and a damaged one never keeps the node from starting."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from fedmon.common.errors import InvalidInputError, StorageError
from fedmon.node.registers.database import SCHEMA, SCHEMA_VERSION, Database
from fedmon.node.registers.grants import Declared, GrantRequest
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from tests.support.databases import execute
from tests.support.full_disk import files_of_at_most
from tests.support.node_process import audited

EFFECT = "INSERT INTO effects VALUES (?, ?, '', x'00', '2026-01-01T00:00:00+00:00')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def _effects(database: Database) -> list[str]:
    return [row["request_id"] for row in database.rows("SELECT request_id FROM effects ORDER BY request_id")]


def _done(database: Database, *changes: Callable[[], object]) -> None:
    with database.transaction():
        for change in changes:
            change()


def _undone(database: Database, *changes: Callable[[], object]) -> None:
    with database.transaction():
        for change in changes:
            change()
        raise ZeroDivisionError


def test_the_file_and_its_side_files_are_readable_by_their_owner_only(path: Path, audit: Audit) -> None:
    before = os.umask(0)
    try:
        with Database(path, audit) as database:
            database.execute(EFFECT, ("r", "1"))

            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("state*")}
    finally:
        os.umask(before)

    assert modes == {"state.sqlite": 0o600, "state.sqlite-wal": 0o600, "state.sqlite-shm": 0o600}


def test_commits_are_synced_and_the_schema_has_a_version(database: Database) -> None:
    found = [database.rows(f"PRAGMA {name}")[0][name] for name in ("journal_mode", "synchronous", "user_version")]

    assert found == ["wal", 2, SCHEMA_VERSION]


def test_an_inner_transaction_that_fails_takes_only_its_own_changes_along(database: Database) -> None:
    with database.transaction():
        database.execute(EFFECT, ("r", "1"))
        with pytest.raises(ZeroDivisionError):
            _undone(database, lambda: database.execute(EFFECT, ("r", "2")))
        database.execute(EFFECT, ("r", "3"))

    assert _effects(database) == ["1", "3"]


def test_callbacks_run_once_after_the_outer_commit_and_never_after_a_failure(database: Database) -> None:
    heard: list[str] = []
    with database.transaction():
        _done(database, lambda: database.after_commit(lambda: heard.append("inner")))
        with pytest.raises(ZeroDivisionError):
            _undone(database, lambda: database.after_commit(lambda: heard.append("undone inner")))
        before_commit = list(heard)
    with pytest.raises(ZeroDivisionError):
        _undone(database, lambda: database.after_commit(lambda: heard.append("undone")))
    with database.transaction():
        database.execute(EFFECT, ("r", "1"))

    assert (before_commit, heard) == ([], ["inner"])


def test_only_decisions_that_were_not_committed_are_undone_in_the_audit(database: Database, tmp_path: Path) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_locals.get("statement") == "COMMIT":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    with database.transaction():
        database.record("outer")
        with pytest.raises(ZeroDivisionError):
            _undone(database, lambda: database.record("inner"))
    with pytest.raises(ZeroDivisionError):
        _undone(database, lambda: _done(database, lambda: database.record("joined")))
    with pytest.raises(KeyboardInterrupt):
        _done(database, lambda: database.record("interrupted"), lambda: sys.setprofile(interrupt))

    lines = {line["n"]: line["event"] for line in audited(tmp_path)}
    assert [lines[line["undone_n"]] for line in audited(tmp_path, "undone")] == ["inner", "joined"]


def test_a_full_disk_is_named_and_leaves_nothing_half_done(path: Path, audit: Audit) -> None:
    with Database(path, audit) as database:
        database.execute(EFFECT, ("r", "before"))
        large = [partial(database.execute, EFFECT, ("r", str(number) * 10_000)) for number in range(100)]
        with files_of_at_most(200_000), pytest.raises(StorageError, match=f"^the register {path} cannot be used: "):
            _done(database, partial(database.execute, EFFECT, ("r", "meanwhile")), *large)
        database.execute(EFFECT, ("r", "later"))

        assert _effects(database) == ["before", "later"]
    with files_of_at_most(9), pytest.raises(StorageError, match="cannot be used: the disk is full; make space and try"):
        Database(path, audit)


def _set_aside(path: Path) -> list[Path]:
    """Return the damaged files that were set aside, without what SQLite keeps beside them."""
    return list(path.parent.glob(f"{path.name}.damaged-*Z"))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO removed_defaults VALUES ('no digest')",
        "UPDATE marks SET value = '4' WHERE name = 'version'",
        "CREATE TABLE more (value)",
    ],
)
def test_what_no_register_writes_counts_as_damage(path: Path, audit: Audit, statement: str) -> None:
    with Database(path, audit):
        pass
    execute(path, "PRAGMA ignore_check_constraints=ON", statement)

    with Database(path, audit):
        assert len(_set_aside(path)) == 1


def test_a_damaged_register_never_replaces_its_good_copy(database: Database) -> None:
    database.copy()
    good = database.copy_path.read_bytes()
    execute(database.path, f"INSERT INTO removed_defaults VALUES ('{'a' * 64}')")

    with pytest.raises(StorageError, match=r"is damaged .* and was not copied: restart the node"):
        database.copy()

    assert database.copy_path.read_bytes() == good


def test_a_file_of_an_earlier_fedmon_keeps_its_rows(path: Path, audit: Audit) -> None:
    execute(path, *SCHEMA[0], *SCHEMA[1], "PRAGMA user_version=2", EFFECT.replace("?, ?", "'r', '1'"))

    with Database(path, audit) as database:
        database.execute(EFFECT, ("r", "2"))
    with Database(path, audit) as database:
        assert (_set_aside(path), _effects(database)) == ([], ["1", "2"])


def test_a_file_of_version_4_keeps_its_requests_and_has_failed_checks_made_again(
    path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given plans that were asked for, of which one could not be read, and one was rejected
    insert = (
        "INSERT INTO plans (plan_id, name, description, sha256, size_bytes, checked, problem, type, status, created, "
        "modified, last_action) SELECT ?, 'p', '', ?, 1, 1, ?, 'requested', ?, t, t, t FROM (SELECT ? AS t)"
    )
    digests = {digit: digit * 64 for digit in "abc"}
    with monkeypatch.context() as earlier:
        earlier.setattr("fedmon.node.registers.database.SCHEMA", SCHEMA[:4])
        earlier.setattr("fedmon.node.registers.database.SCHEMA_VERSION", 4)
        with Database(path, audit) as database:
            for digit, problem, status in (
                ("a", "", "pending"), ("b", "could not be read within 15 s", "pending"), ("c", "", "rejected"),
            ):  # fmt: skip
                plan_id = f"training_plan_{digit}"
                database.execute(insert, (plan_id, digests[digit], problem, status, "2026-01-01T00:00:00+00:00"))
                database.execute("INSERT INTO wishes VALUES (?, 'r', '[]', 'why', 1)", (plan_id,))
                database.execute("INSERT INTO declarations VALUES (?, '{}')", (digests[digit],))

    # when this version opens it
    with Database(path, audit) as database:
        plans = PlanRegister(database, path.parent / "plans")

        # then the requests are there, closed for the rejected plan, and the unread one is read again
        asked, decided = (
            GrantRequest(researcher_id="r", datasets=(), purpose="why", is_open=is_open) for is_open in (True, False)
        )
        assert _set_aside(path) == []
        assert [plans.grants.wishes(f"training_plan_{digit}") for digit in "abc"] == [[asked], [asked], [decided]]
        assert plans.unchecked() == (digests["b"],)
        assert [plans.grants.declared(digests[digit]) for digit in "abc"] == [Declared(), None, Declared()]


def test_a_file_of_a_newer_fedmon_is_left_alone(path: Path, audit: Audit) -> None:
    with Database(path, audit):
        pass
    execute(path, "PRAGMA user_version=99", "UPDATE marks SET value = '99' WHERE name = 'version'")

    with pytest.raises(StorageError, match=r"version 99 .* upgrade fedmon"):
        Database(path, audit)

    assert [file.name for file in path.parent.iterdir() if "damaged" in file.name] == []


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, audit: Audit) -> None:
    with pytest.raises(StorageError, match="No such file or directory") as raised:
        Database(tmp_path / "nowhere" / "state.sqlite", audit)

    assert "nowhere/state.sqlite" in str(raised.value)


def test_a_link_in_its_place_is_not_followed(path: Path, audit: Audit, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageError, match="Too many levels of symbolic links"):
        Database(path, audit)

    assert not (tmp_path / "elsewhere").exists()


def test_a_text_that_is_not_unicode_is_refused(database: Database) -> None:
    with pytest.raises(InvalidInputError, match="not valid Unicode"):
        database.execute(EFFECT, ("r", "\udc80"))
