"""A damaged register is restored from its copy and the audit: nothing is lost without a word, nothing gets approved."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import random
import shutil
import sqlite3
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.errors import StorageError
from fedmon.common.ids import new_id
from tests.node.owner.owner_desks import ask_approval, desk_of, done, made_folder
from tests.node.owner.owner_shell import told
from tests.support.brokers import Broker
from tests.support.chance import seeded
from tests.support.full_disk import files_of_at_most
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_folder, write_node_with_cells
from tests.support.raw_researcher import RawResearcher, plan_fields
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

SOURCES = {name: f"name = {name!r}\n" for name in ("approved", "rejected", "pending", "reset", "deleted")}
SAMPLE = 40


def _asked(raw: RawResearcher, source: str, **fields: Any) -> dict[str, Any]:
    return raw.ask("approval", description="A plan.", **plan_fields(source, name=source.split("'")[1]), **fields)


@pytest.fixture(scope="module")
def template(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node whose owner decided about plans and datasets before its register was copied, and after."""
    folder = tmp_path_factory.mktemp("register") / "n"
    write_node_with_cells(folder, url=lasting_broker.url, runs=NO_RUNS)
    (folder / "own.py").write_text("name = 'own'\n")
    own = told(folder, "plan", "register", str(folder / "own.py"), "--name", "own")["plan"]["plan_id"]
    with NodeProcess(folder) as node, RawResearcher(lasting_broker) as raw:
        wait_until((folder / "state.sqlite.copy").exists, what="the copy of the register")
        wait_until(raw.answered, what="the node to answer")
        ids = {name: _asked(raw, source, datasets=["cells"])["plan_id"] for name, source in SOURCES.items()}
        for name in ("approved", "reset", "deleted"):
            told(folder, "plan", "approve", ids[name])
        for plan in (ids["rejected"], own):
            told(folder, "plan", "reject", plan, "--note", "no")
        told(folder, "plan", "reset", ids["reset"])
        told(folder, "plan", "delete", ids["deleted"])
        (folder / "late.csv").write_text("a,b\n1,2\n")
        told(folder, "dataset", "add", str(folder / "late.csv"), "--name", "late", "--tags", "late")
        assert _asked(raw, SOURCES["approved"])["status"] == "pending"  # for all datasets now
        told(folder, "dataset", "edit", "late", "--description", "Added late.")
        told(folder, "dataset", "remove", "cells")
        assert node.stop() == 0
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "n")


def _known(folder: Path) -> dict[str, Any]:
    """Return what the owner sees of plans and datasets."""
    plans = told(folder, "plan", "list")["plans"]
    return {
        "plans": sorted((plan["name"], plan["sha256"], plan["status"], plan["note"]) for plan in plans),
        "datasets": told(folder, "dataset", "list")["datasets"],
    }


def _rows(folder: Path, *queries: str) -> list[list[Any]]:
    with sqlite3.connect(f"file:{folder / 'state.sqlite'}?mode=ro", uri=True) as connection:
        found = [sorted(connection.execute(query).fetchall(), key=repr) for query in queries]
    connection.close()
    return found


def _everything(folder: Path) -> list[list[Any]]:
    """Return every row of the register.

    SQLite's own numbers are left out: without them it goes on after the greatest position, and only the order counts.
    """
    tables = _rows(folder, "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'sqlite_sequence'")[0]
    return _rows(folder, *(f"SELECT * FROM {name}" for (name,) in tables))


def _decisions(folder: Path) -> list[list[Any]]:
    """Return what must come back whatever happened to the register: plans with their decisions, and datasets."""
    return _rows(
        folder,
        "SELECT plan_id, name, sha256, type, status, note FROM plans",
        "SELECT plan_id, researcher_id FROM requesters",
        "SELECT * FROM datasets",
        "SELECT grant_id, sha256, content, used, ended IS NULL FROM grants",
        "SELECT * FROM wishes",
    )


def _mutated(content: bytes, rounds: random.Random) -> bytes:
    changed = bytearray(content)
    kind = rounds.choice(("bit", "bit", "bit", "cut", "zeros"))
    start = rounds.randrange(len(content))
    if kind == "bit":
        changed[start] ^= 1 << rounds.randrange(8)
    elif kind == "cut":
        del changed[start:]
    else:
        changed[start : start + rounds.choice((1, 16, 512, 4096))] = bytes(1)
        changed = changed.ljust(len(content), b"\0")
    return bytes(changed)


def _told_of_restore(folder: Path) -> str:
    """Return what `node status` says of a restore, empty where there was none; the log must say it, too."""
    ran = fedmon_here("node", "status", "--dir", str(folder), "--json")
    assert ran.returncode == 0, ran.stderr
    restored = json.loads(ran.stdout)["restored"]
    if restored is None:
        return ""
    assert "register restored" in ran.stderr
    return str(restored["report"])


def test_no_mutation_of_the_register_loses_anything_silently(template: Path, tmp_path: Path) -> None:
    rounds, folder = seeded(), tmp_path / "n"
    good, expected, rows = (template / "state.sqlite").read_bytes(), _decisions(template), _everything(template)
    restored = 0
    for number in range(SAMPLE):
        damaged = _mutated(good, rounds)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        (folder / "state.sqlite").write_bytes(damaged)
        report = _told_of_restore(folder)
        assert _decisions(folder) == expected, f"mutation {number}: {report}"
        if report:
            restored += 1
        else:
            assert _everything(folder) == rows, f"mutation {number} lost something silently"
    assert restored > SAMPLE // 10


@pytest.mark.parametrize("damage", ["empty", "missing", "no copy", "copy damaged"])
def test_what_the_audit_holds_is_restored(template: Path, folder: Path, damage: str) -> None:
    expected, ended = _known(template), template.joinpath("audit.jsonl").read_text().rpartition('"time":"')[2][:19]
    register, copy = folder / "state.sqlite", folder / "state.sqlite.copy"
    register.write_bytes(b"")
    if damage == "missing":
        register.unlink()
    if damage == "no copy":
        copy.unlink()
    if damage == "copy damaged":
        copy.write_bytes(copy.read_bytes()[:5000])

    report = _told_of_restore(folder)
    screen = fedmon_here("node", "status", "--dir", str(folder)).stdout

    assert _known(folder) == expected
    assert {plan["created"][:19] <= ended for plan in told(folder, "plan", "list")["plans"]} == {True}
    assert "missing or empty" in report
    assert ("restored from its copy of" in report) == (damage in ("empty", "missing"))
    assert "RESTORED" in screen
    # The next verb restores nothing again.
    assert "register" not in fedmon_here("node", "status", "--dir", str(folder)).stderr


def test_decisions_that_waited_are_told_to_each_researcher_again_with_their_notes(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        plan_id, _ = (ask_approval(desk, by=name) for name in ("alice", "bob"))
        approve = partial(done, desk, "plan-decide", plan=plan_id, status="approved")
        approve(terms={"researchers": ["alice"]}, note="to alice")
        desk.registers.database.copy()
        approve(terms={"researchers": ["bob"]}, note="to bob")
    (folder / "state.sqlite").write_bytes(b"")

    assert told(folder, "status")["undelivered"] == {"alice": 1, "bob": 1}
    with desk_of(folder) as desk:
        rows = desk.registers.database.rows("SELECT json_extract(message, '$.note') AS note FROM outbox")
    assert sorted(row["note"] for row in rows) == ["to alice", "to bob"]


def test_a_plan_that_was_pending_in_the_copy_is_not_approved_without_its_bytes(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        plan_id = ask_approval(desk)
        desk.registers.database.copy()
        plan = done(desk, "plan-decide", plan=plan_id, status="approved")["plan"]
        asked = {name: plan[name] for name in ("plan_id", "sha256", "name")}
        desk.registers.audit.record("approval-requested", researcher="bob", **asked)
        desk.registers.plans.store.keep_only(frozenset())
    (folder / "state.sqlite").write_bytes(b"")

    report = _told_of_restore(folder)

    assert "plan 'logistic'" in report
    assert told(folder, "plan", "list")["plans"][0]["status"] == "pending"


def test_a_decision_that_failed_on_a_full_disk_is_not_carried_out_by_a_restore(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        plan_ids = [ask_approval(desk, f"x = {number}\n".encode(), name=f"p{number}") for number in range(2)]
        desk.registers.database.copy()
    with desk_of(folder) as desk:
        with files_of_at_most(16_384), pytest.raises(StorageError, match="the register"):
            done(desk, "plan-decide", plan=plan_ids[0], status="approved")
        done(desk, "plan-decide", plan=plan_ids[1], status="approved")
    (folder / "state.sqlite").write_bytes(b"")

    assert "since then 1 change" in _told_of_restore(folder)
    assert [plan["status"] for plan in told(folder, "plan", "list")["plans"]] == ["pending", "approved"]


def test_an_approval_is_pending_again_where_the_audit_is_not_whole(folder: Path) -> None:
    (folder / "state.sqlite").write_bytes(b"")
    lines = (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"status":"rejected"' in line)
    (folder / "audit.jsonl").write_bytes(b"".join(lines[:at] + lines[at + 1 :]))

    report = _told_of_restore(folder)

    assert {plan["status"] for plan in told(folder, "plan", "list")["plans"]} <= {"pending", "rejected"}
    assert "not whole" in report


def test_a_plan_whose_bytes_are_gone_is_named_and_not_approved(folder: Path) -> None:
    (folder / "state.sqlite").write_bytes(b"")
    (folder / "plans" / hashlib.sha256(SOURCES["approved"].encode()).hexdigest()).unlink()

    report = _told_of_restore(folder)

    assert "plan 'approved'" in report
    assert [plan for plan in told(folder, "plan", "list")["plans"] if plan["status"] == "approved"] == []


def test_a_dataset_of_which_an_earlier_release_wrote_only_a_part_is_named(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        desk.registers.audit.record("dataset-add", dataset_id="dataset_1", name="cells")
    (folder / "state.sqlite").write_bytes(b"")

    assert "dataset 'cells' (dataset_1) is not restored: the audit holds only a part" in _told_of_restore(folder)


def test_a_request_from_before_the_restore_is_refused(lasting_broker: Broker, folder: Path) -> None:
    before = new_id()
    (folder / "state.sqlite").write_bytes(b"")
    with NodeProcess(folder), RawResearcher(lasting_broker) as raw:
        wait_until(raw.answered, what="the node to answer")
        old = _asked(raw, "name = 'old'\n", id=before)
        ageless = _asked(raw, "name = 'old'\n", id="no-time")
        new = _asked(raw, "name = 'new'\n", id=new_id())
        names = {plan["name"] for plan in told(folder, "plan", "list")["plans"]}

    assert [(each["command"], each.get("code")) for each in (old, ageless)] == [("error", "refused")] * 2
    assert "restored its register" in old["reason"]
    assert new["command"] == "approval"
    assert {"old", "new"} & names == {"new"}


def test_the_register_is_copied_once_a_day_for_its_owner_only(folder: Path) -> None:
    copy = folder / "state.sqlite.copy"
    first = copy.stat().st_mtime_ns
    with desk_of(folder) as desk:
        desk.registers.database.copy_if_due()
    same = copy.stat().st_mtime_ns
    os.utime(copy, (1.0, 1.0))
    with NodeProcess(folder):
        wait_until(lambda: copy.stat().st_mtime > 1.0, what="the next copy")

    assert same == first
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_a_default_plan_that_was_deleted_stays_away(lasting_broker: Broker, tmp_path: Path) -> None:
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    for name in ("kept", "gone"):
        (defaults / f"{name}.py").write_text(f"name = {name!r}\n")
    node = {"default_plans_dir": str(defaults)}
    folder = write_node_folder(tmp_path / "d", url=lasting_broker.url, node=node)
    with desk_of(folder) as desk:
        desk.registers.plans.load_defaults(defaults)
        desk.registers.database.copy()
        gone = done(desk, "plan-delete", plan="gone")["plan"]
    (folder / "state.sqlite").write_bytes(b"")

    with NodeProcess(folder):
        wait_until((folder / "control.sock").exists, what="the node to start")
        names = [plan["name"] for plan in told(folder, "plan", "list")["plans"]]

    assert names == ["kept"]
    assert not (folder / "plans" / gone["sha256"]).exists()


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_register_is_restored_after_the_audit_was_pruned(folder: Path, has_copy: bool) -> None:
    expected = _known(folder)
    with desk_of(folder) as desk:
        done(desk, "audit-prune", keep_days=1)  # which renews the copy
        desk.registers.audit.prune(utc_now() + datetime.timedelta(minutes=1), by="eve")
    (folder / "state.sqlite").write_bytes(b"")
    if not has_copy:
        (folder / "state.sqlite.copy").unlink()

    report = _told_of_restore(folder)
    found = _known(folder)

    assert told(folder, "audit", "verify")["ok"]
    if has_copy:
        assert found == expected
    else:  # nothing is approved of which the decision may have been taken back
        assert "not whole" in report
        assert not [plan for plan in found["plans"] if plan[2] == "approved"]
