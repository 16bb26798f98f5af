"""A plan is its exact bytes; what the owner decides is written down first and told to everybody who asked."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from fedmon.common.wire.messages import Approval, PlanStatus
from fedmon.node.registers.database import Database
from fedmon.node.registers.plan_source import CodeCheck
from fedmon.node.registers.plans import PlanRegister, PlanType
from fedmon.node.requests.audit import Audit, verify
from tests.node.owner.owner_desks import desk_of
from tests.support.chance import seeded
from tests.support.envelopes import approval
from tests.support.node_process import audited, write_node_folder

APPROVED, PENDING, REJECTED = PlanStatus.APPROVED, PlanStatus.PENDING, PlanStatus.REJECTED
SOURCE = b"class Plan:\n    pass\n"
OTHER_LAYOUT = b"class Plan: pass  # same code\n"
DECIDE_FOR_EVER = """
import itertools, os, sys
from pathlib import Path
from tests.node.owner.owner_desks import done
from tests.node.runs.run_desks import bench, digest
from tests.support.envelopes import approval

def say(kind, word):  # whole, also if Python does not buffer: a line that is torn by a kill hides the next one
    os.write(1, f"{kind} {word}\\n".encode())

def decide(first):
    with bench(Path(sys.argv[1]), is_ready=False) as node:
        for number in itertools.count(first):
            source = f"x = {number}".encode()
            say("approval", node.ask(approval(source))["sha256"])
            grant = {"grant_id": f"grant-{number}", "sha256": digest(source)}
            done(node.desk(), "plan-decide", plan=digest(source), status="approved", grant=grant)
            say("approved", digest(source))

for trial in range(int(sys.argv[2])):
    if (child := os.fork()) == 0:
        say("begun", os.getpid())
        decide(trial * 10_000)
    os.waitpid(child, 0)
"""


@pytest.fixture
def plans(database: Database, tmp_path: Path) -> PlanRegister:
    return PlanRegister(database, tmp_path / "plans")


def _approval(source: bytes = SOURCE, **fields: Any) -> Approval:
    return approval(source, **{"by": "r", "name": "plan", **fields})


@pytest.mark.parametrize(
    ("fields", "source", "complaint"),
    [
        ({"sha256": "0" * 64}, SOURCE, r"have SHA-256 [0-9a-f]{64} and not 0{64}"),
        ({"size_bytes": 1}, SOURCE, "has 21 bytes and not 1"),
        ({"name": " "}, SOURCE, "1 to 256 visible characters"),
        ({"name": "a\nb"}, SOURCE, "one line"),
        ({"name": "evil\u202eplan"}, SOURCE, r"evil⟦U\+202E⟧plan"),
        ({"name": "\x1b[2J"}, SOURCE, r"⟦U\+001B⟧"),
        ({"description": "x" * 16_385}, SOURCE, "the description has 16385 characters"),
        ({}, b"", "is empty"),
        ({}, b"x" * 1001, "has more than the 1000 bytes that this node takes"),
    ],
)
def test_a_request_that_does_not_hold_what_it_says_is_refused(
    database: Database, tmp_path: Path, fields: dict[str, object], source: bytes, complaint: str
) -> None:
    plans = PlanRegister(database, tmp_path / "plans", max_plan_bytes=1000)

    with pytest.raises(InvalidInputError, match=complaint):
        plans.request(_approval(source, **fields), source)

    assert plans.all() == []
    assert list((tmp_path / "plans").iterdir()) == []


def test_other_bytes_are_another_plan_even_with_the_same_code(plans: PlanRegister) -> None:
    first = plans.request(_approval(), SOURCE)
    plans.decide(first.plan_id, APPROVED)
    plans.record_check(first.sha256, CodeCheck(minified_sha256="a" * 64))

    second = plans.request(_approval(OTHER_LAYOUT), OTHER_LAYOUT)
    plans.record_check(second.sha256, CodeCheck(minified_sha256="a" * 64))

    seen = plans.get(second.plan_id)
    assert (seen.status, seen.same_code_as) == (PENDING, first.plan_id)
    assert seen.hint == f"same code as plan {first.plan_id}, other layout"
    assert plans.get(first.plan_id).same_code_as == second.plan_id


def test_a_decision_names_its_plan_its_time_and_who_must_hear(plans: PlanRegister, tmp_path: Path) -> None:
    plan = plans.request(_approval(), SOURCE)

    decision = plans.decide("plan", APPROVED, note="fine", by="alice")

    assert (decision.plan.status, decision.plan.note, decision.researchers) == (APPROVED, "fine", ("r",))
    assert decision.time == decision.plan.decided == decision.plan.last_action == decision.plan.modified
    (message,) = decision.messages(node_id="n", boot=3)
    assert (message.node_id, message.researcher_id, message.boot) == ("n", "r", 3)
    assert (message.plan_id, message.sha256, message.name) == (plan.plan_id, plan.sha256, "plan")
    assert (message.status, message.note, message.problem, message.decided) == (APPROVED, "fine", "", decision.time)
    (line,) = audited(tmp_path, "plan-decision")
    assert [line[key] for key in ("sha256", "was", "status", "note", "by")] == [
        plan.sha256, "pending", "approved", "fine", "alice",
    ]  # fmt: skip


def test_bytes_that_were_altered_on_the_disk_cannot_be_approved(plans: PlanRegister, tmp_path: Path) -> None:
    plan = plans.request(_approval(), SOURCE)
    (tmp_path / "plans" / plan.sha256).write_bytes(b"something else")

    with pytest.raises(StorageError, match="no longer holds the bytes"):
        plans.decide("plan", APPROVED)
    status = plans.get("plan").status
    plans.request(_approval(), SOURCE)

    assert status is PENDING
    assert plans.decide("plan", APPROVED).plan.status is APPROVED


def test_no_decision_is_taken_that_the_audit_cannot_hold(plans: PlanRegister, audit: Audit) -> None:
    plans.request(_approval(), SOURCE)
    audit.close()

    with pytest.raises(StorageError, match="audit"):
        plans.decide("plan", APPROVED)
    with pytest.raises(StorageError, match="audit"):
        plans.delete("plan")
    with pytest.raises(StorageError, match="audit"):
        plans.register(b"x = 1\n", name="own")

    assert [(plan.name, plan.status) for plan in plans.all()] == [("plan", PENDING)]


def test_default_plans_wait_for_the_owner_and_a_changed_file_is_another_plan(
    plans: PlanRegister, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "defaults"
    folder.mkdir()
    (folder / "mean.py").write_bytes(b"x = 1\n")
    (folder / "empty.py").write_bytes(b"")
    (folder / "gone.py").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.py")
    (folder / "large.py").write_bytes(b"#" * 2**21)
    (folder / "notes.txt").write_bytes(b"not a plan")

    first = plans.load_defaults(folder)
    again = plans.load_defaults(folder)
    (folder / "mean.py").write_bytes(b"x = 2\n")
    changed = plans.load_defaults(folder)

    assert [(plan.name, plan.type, plan.status) for plan in first] == [("mean", PlanType.DEFAULT, PENDING)]
    assert again == ()
    assert [plans.store.read(plan.sha256) for plan in changed] == [b"x = 2\n"]
    told = {"empty": "the plan is empty", "gone": "cannot read", "pipe": "training plan", "large": "the plan has more"}
    for name, why in told.items():
        assert f"{name}.py was left out: {why}" in caplog.text
    with pytest.raises(InvalidInputError, match=r"folder .* of default plans not found"):
        plans.load_defaults(tmp_path / "nowhere")


def test_a_deleted_default_stays_away_until_its_file_changes_or_it_is_wanted(
    plans: PlanRegister, tmp_path: Path
) -> None:
    folder = tmp_path / "defaults"
    folder.mkdir()
    (folder / "mean.py").write_bytes(SOURCE)
    plans.load_defaults(folder)
    plans.delete("mean")

    after_delete = plans.load_defaults(folder)
    (folder / "mean.py").write_bytes(OTHER_LAYOUT)
    after_change = plans.load_defaults(folder)
    (folder / "mean.py").write_bytes(SOURCE)
    plans.register(SOURCE, name="mean")

    assert after_delete == ()
    assert len(after_change) == 1
    assert sorted(plan.type.value for plan in plans.all()) == ["default", "registered"]


def test_a_deletion_that_is_undone_keeps_the_bytes(database: Database, plans: PlanRegister) -> None:
    plan = plans.request(_approval(), SOURCE)

    def fail() -> None:
        with database.transaction():
            plans.delete("plan")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.transaction():
        plans.delete("plan")
        plans.request(_approval(), SOURCE)

    assert plans.store.read(plan.sha256) == SOURCE


def test_only_code_that_does_not_parse_is_told_and_told_once(plans: PlanRegister) -> None:
    bad = plans.request(_approval(b"def f(:"), b"def f(:")
    big = plans.request(_approval(b"x = 1"), b"x = 1")
    waiting = plans.unchecked()
    problem = CodeCheck(problem="line 1: invalid syntax", parses=False)

    told = [plans.record_check(bad.sha256, problem), plans.record_check(bad.sha256, problem)]
    untold = plans.record_check(big.sha256, CodeCheck(problem="takes too long", parses=True))
    unknown = plans.record_check("0" * 64, problem)

    assert waiting == (bad.sha256, big.sha256)
    assert plans.unchecked() == ()
    assert told[0] is not None
    assert (told[0].researchers, told[0].plan.status, told[0].plan.problem) == (("r",), PENDING, problem.problem)
    assert (told[1], untold, unknown) == (None, None, None)
    assert plans.get(big.plan_id).problem == "takes too long"


def test_a_plan_folder_that_cannot_be_written_takes_no_plan(plans: PlanRegister, tmp_path: Path) -> None:
    (tmp_path / "plans").rmdir()
    (tmp_path / "plans").touch()

    with pytest.raises(StorageError, match="cannot write"):
        plans.request(_approval(), SOURCE)

    assert plans.all() == []


def test_what_a_crash_left_and_the_bytes_of_a_deleted_plan_go_at_the_next_start_and_nothing_of_others(
    plans: PlanRegister, database: Database, tmp_path: Path
) -> None:
    kept = plans.request(_approval(OTHER_LAYOUT), OTHER_LAYOUT).sha256
    plans.request(_approval(name="deleted"), SOURCE)
    plans.delete("deleted")
    plans.store.write(SOURCE)
    (tmp_path / "plans" / f".{kept}.{'0' * 16}").write_bytes(b"half")
    (tmp_path / "plans" / "README").write_bytes(b"not ours")

    PlanRegister(database, tmp_path / "plans")

    assert {path.name for path in (tmp_path / "plans").iterdir()} == {kept, "README"}


def test_bytes_are_kept_under_their_digest_for_their_owner_only(plans: PlanRegister, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        sha256 = plans.request(_approval(), SOURCE).sha256
    finally:
        os.umask(before)

    (file,) = (tmp_path / "plans").iterdir()
    assert (file.name, file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (sha256, SOURCE, 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_link_in_place_of_the_bytes_of_a_plan_is_never_followed(plans: PlanRegister, tmp_path: Path) -> None:
    file = tmp_path / "plans" / plans.request(_approval(), SOURCE).sha256
    secret = file.rename(tmp_path / "secret")
    file.symlink_to(secret)

    with pytest.raises(StorageError, match="cannot read"):
        plans.decide("plan", APPROVED)
    plans.request(_approval(), SOURCE)

    assert not file.is_symlink()


class Known(NamedTuple):
    """A plan that a register knows."""

    plan_id: str
    name: str
    sha256: str


ONE = Known("training_plan_11112222-3333-4444-8555-666677778888", "logistic", "ab" * 32)
TWO = Known("training_plan_11119999-3333-4444-8555-666677778888", "tree", "ab12" + "c" * 60)
POSING = Known("training_plan_aaaabbbb-3333-4444-8555-666677778888", ONE.sha256[:12], "ef" * 32)
POSING_WHOLE = Known("training_plan_ccccdddd-3333-4444-8555-666677778888", ONE.sha256, "cd" * 32)


@pytest.fixture
def known(database: Database, plans: PlanRegister) -> PlanRegister:
    """A register that knows these plans."""
    insert = (
        "INSERT INTO plans (plan_id, name, description, sha256, size_bytes, type, status, created, modified, "
        "last_action) VALUES (?, ?, '', ?, 1, 'requested', 'pending', ?4, ?4, ?4)"
    )
    for plan in (POSING_WHOLE, POSING, ONE, TWO):
        database.execute(insert, (*plan, "2026-01-01T00:00:00.000000+00:00"))
    return plans


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (ONE.plan_id, ONE),
        (ONE.sha256, ONE),  # though it is the name of another
        (TWO.sha256, TWO),
        ("11112222", ONE),
        ("training_plan_11119", TWO),
        ("ab12", TWO),
        ("tree", TWO),
        ("111", "at least 4 characters"),
        ("aba", "at least 4 characters"),
        ("training_plan_aaaa", POSING),
        (
            "training_plan_a",
            "'training_plan_a' is too short: give at least 4 characters of the id after training_plan_",
        ),
        ("training_plan_", "no training plan 'training_plan_' here"),
        ("training_plan_ab12", "fedmon node plan list"),  # a digest has no such prefix
        ("1111", f"'1111' matches 2 training plans: {ONE.plan_id}, {TWO.plan_id}; see: fedmon node plan list"),
        (ONE.sha256[:12], "matches 2 "),
        ("logist", "fedmon node plan list"),
        ("", "fedmon node plan list"),
        ("*" * 6, "fedmon node plan list"),
        (TWO.sha256.upper(), "fedmon node plan list"),
        ("training", "fedmon node plan list"),
    ],
)
def test_a_plan_goes_by_its_id_digest_beginning_or_name(
    known: PlanRegister, reference: str, expected: Known | str
) -> None:
    if isinstance(expected, Known):
        assert known.get(reference).plan_id == expected.plan_id
        return
    with pytest.raises((NotFoundError, ConflictError, InvalidInputError), match=expected):
        known.get(reference)


@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_a_killed_node_has_no_approval_without_its_line_and_message_and_loses_nothing_acknowledged(
    tmp_path: Path, kills: int
) -> None:
    rounds = seeded()
    quota = {"requests_per_s": 10_000, "changes_per_hour": 100_000}
    folder = write_node_folder(tmp_path / "n", quota=quota)
    acknowledged = set[tuple[str, str]]()
    command = [sys.executable, "-c", DECIDE_FOR_EVER, str(folder), str(kills)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as nodes:
        assert nodes.stdout is not None
        pid = lines_left = 0
        for kind, word in map(str.split, nodes.stdout):
            if kind == "begun":
                pid, lines_left = int(word), rounds.randint(1, 20)
                continue
            acknowledged.add((kind, word))
            lines_left -= 1
            if lines_left == 0:
                threading.Event().wait(rounds.uniform(0, 0.02))  # anywhere in what it does meanwhile
                os.kill(pid, signal.SIGKILL)

    with desk_of(folder) as desk:
        plans, database = desk.registers.plans, desk.registers.database
        kept = {("approval", plan.sha256) for plan in plans.all()}
        approved = {("approved", plan.sha256) for plan in plans.all() if plan.status is APPROVED}
        told = {
            ("approved", json.loads(row["message"])["sha256"]) for row in database.rows("SELECT message FROM outbox")
        }
        answered = {
            ("approval", json.loads(row["reply"])["sha256"]) for row in database.rows("SELECT reply FROM effects")
        }
    lines = {("approved", line["sha256"]) for line in audited(folder) if line.get("status") == "approved"}
    assert acknowledged <= kept | approved
    assert (answered, told) == (kept, approved)
    assert approved <= lines
    assert verify(folder).ok
