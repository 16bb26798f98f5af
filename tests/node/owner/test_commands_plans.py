"""The owner decides about exact bytes: who is meant, what is written down first, and who hears of it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from fedmon.common.wire.messages import PlanDecision
from fedmon.node.registers.database import Database
from fedmon.node.registers.plans import PlanRegister
from fedmon.node.requests.audit import Audit
from tests.node.owner.owner_desks import PLAN, ask_approval, desk_of, done, events, made_folder, running_node

DIGEST = hashlib.sha256(PLAN).hexdigest()


class Known(NamedTuple):
    """A plan that a register knows."""

    plan_id: str
    name: str
    sha256: str


ONE = Known("training_plan_11112222-3333-4444-8555-666677778888", "logistic", "ab" * 32)
TWO = Known("training_plan_11119999-3333-4444-8555-666677778888", "tree", "ab12" + "c" * 60)


@contextlib.contextmanager
def _plans(tmp_path: Path, *known: Known) -> Iterator[PlanRegister]:
    """Open a register that knows these plans."""
    insert = (
        "INSERT INTO plans (plan_id, name, description, sha256, size_bytes, type, status, created, modified, "
        "last_action) VALUES (?, ?, '', ?, 1, 'requested', 'pending', ?4, ?4, ?4)"
    )
    with Audit(tmp_path) as audit, Database(tmp_path / "state.sqlite") as database:
        for plan in known:
            database.execute(insert, (*plan, "2026-01-01T00:00:00.000000+00:00"))
        yield PlanRegister(database, tmp_path / "plans", audit=audit)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (ONE.plan_id, ONE),
        (TWO.sha256, TWO),
        ("11112222", ONE),
        ("training_plan_11119", TWO),
        ("abab", ONE),
        ("ab12", TWO),
        ("tree", TWO),
    ],
)
def test_a_plan_goes_by_its_id_digest_beginning_or_name(tmp_path: Path, reference: str, expected: Known) -> None:
    with _plans(tmp_path, ONE, TWO) as plans:
        assert expected.plan_id == plans.get(reference).plan_id


@pytest.mark.parametrize("reference", ["111", "aba"])
def test_a_beginning_of_less_than_four_characters_is_too_short(tmp_path: Path, reference: str) -> None:
    with _plans(tmp_path, ONE, TWO) as plans, pytest.raises(InvalidInputError, match="at least 4 characters"):
        plans.get(reference)


@pytest.mark.parametrize("reference", ["logist", "tre", "", "*", "zz" * 32])
def test_what_is_unknown_finds_nothing(tmp_path: Path, reference: str) -> None:
    with _plans(tmp_path, ONE, TWO) as plans, pytest.raises(NotFoundError, match="plan list"):
        plans.get(reference)


def test_an_ambiguous_beginning_lists_the_candidates(tmp_path: Path) -> None:
    with _plans(tmp_path, ONE, TWO) as plans:
        for beginning in ("1111", "training_plan_"):
            with pytest.raises(ConflictError, match=f"{beginning}' stands for 2 .*: {ONE.plan_id}, {TWO.plan_id}; "):
                plans.get(beginning)


def test_a_name_never_goes_before_the_digest_of_another_plan(tmp_path: Path) -> None:
    posing = Known("training_plan_aaaabbbb-3333-4444-8555-666677778888", ONE.sha256[:12], "ef" * 32)
    posing_whole = Known("training_plan_ccccdddd-3333-4444-8555-666677778888", ONE.sha256, "cd" * 32)

    with _plans(tmp_path, posing_whole, posing, ONE) as plans:
        assert ONE.plan_id == plans.get(ONE.sha256).plan_id
        with pytest.raises(ConflictError, match="stands for 2"):
            plans.get(ONE.sha256[:12])


def test_a_decision_is_in_the_audit_and_in_every_askers_outbox(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    (folder / "boot").write_text("7\n")
    with desk_of(folder) as desk:
        plan_id = ask_approval(desk)
        ask_approval(desk, by="bob")

        result = done(desk, "plan-decide", plan=plan_id, status="approved", note="fine", by="eve")
        unacked = [desk.registers.outbox.unacked(who)[0] for who in ("alice", "bob")]
        waiting = [message for message in unacked if isinstance(message, PlanDecision)]

    assert {"approved"} == {result["plan"]["status"], *(message.status.value for message in waiting)}
    assert [(m.sha256, m.note, m.boot, m.node_id) for m in waiting] == [(DIGEST, "fine", 7, "hospital-a")] * 2
    assert events(folder) == ["plan-decision"]


def test_deciding_the_same_again_changes_nothing_and_tells_nobody(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        plan_id = ask_approval(desk)
        first = done(desk, "plan-decide", plan=plan_id, status="rejected", note="no")

        again = done(desk, "plan-decide", plan=plan_id, status="rejected", note="no")

        assert (first["changed"], again["changed"]) == (True, False)
        assert desk.registers.outbox.waiting() == {"alice": 1}
    assert events(tmp_path / "n") == ["plan-decision"]


def test_the_push_follows_the_commit_and_never_goes_before_it(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    seen: list[tuple[tuple[str, ...], int]] = []
    running = running_node(push=lambda researchers: seen.append((researchers, _committed_messages(folder))))
    with desk_of(folder, running=running) as desk:
        plan_id = ask_approval(desk)

        done(desk, "plan-decide", plan=plan_id, status="approved")

    assert seen == [(("alice",), 1)]


def _committed_messages(folder: Path) -> int:
    import sqlite3

    with sqlite3.connect(folder / "state.sqlite") as other:
        return int(other.execute("SELECT count(*) FROM outbox").fetchone()[0])


def test_another_digest_than_the_one_shown_decides_nothing(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        plan_id = ask_approval(desk)

        with pytest.raises(ConflictError, match=rf"has SHA-256 {DIGEST} and not"):
            done(desk, "plan-decide", plan=plan_id, status="approved", sha256="0" * 64)

        assert done(desk, "plan-show", plan=plan_id)["plan"]["status"] == "pending"
        assert desk.registers.outbox.waiting() == {}


def test_the_beginning_of_an_id_approves_nothing_by_itself(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        plan_id = ask_approval(desk)

        with pytest.raises(InvalidInputError, match="approve by the whole id or sha256"):
            done(desk, "plan-decide", plan=plan_id[:-2], status="approved")

        assert done(desk, "plan-show", plan=plan_id)["plan"]["status"] == "pending"


def test_an_audit_that_cannot_be_written_lets_nothing_be_approved(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        plan_id = ask_approval(desk)
        desk.registers.audit.close()

        with pytest.raises((StorageError, OSError, ValueError)):
            done(desk, "plan-decide", plan=plan_id, status="approved")

    with desk_of(folder) as desk:
        assert done(desk, "plan-show", plan=plan_id)["plan"]["status"] == "pending"
        assert desk.registers.outbox.waiting() == {}


def test_bytes_that_were_altered_on_the_disk_are_never_approved(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    with desk_of(folder) as desk:
        plan_id = ask_approval(desk)
        desk.registers.plans.settle()
        desk.registers.plans.settle()
        (folder / "plans" / DIGEST).write_bytes(b"print('something else')\n")

        with pytest.raises(StorageError, match="no longer holds the bytes"):
            done(desk, "plan-decide", plan=plan_id, status="approved")

        assert [plan["status"] for plan in done(desk, "plan-list")["plans"]] == ["pending"]


def test_a_reset_plan_is_pending_without_its_note(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        plan_id = ask_approval(desk)
        done(desk, "plan-decide", plan=plan_id, status="rejected", note="no")

        result = done(desk, "plan-decide", plan=plan_id, status="pending")["plan"]

    assert (result["status"], result["note"], result["decided"]) == ("pending", "", None)


def test_a_file_that_changes_between_look_and_registration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.py"
    file.write_bytes(PLAN)
    with desk_of(made_folder(tmp_path / "n")) as desk:
        with pytest.raises(ConflictError, match="changed while"):
            done(desk, "plan-register", path=str(file), sha256="0" * 64, name="p")

        registered = done(desk, "plan-register", path=str(file), sha256=DIGEST, name="p")["plan"]

    assert (registered["status"], registered["type"], registered["sha256"]) == ("approved", "registered", DIGEST)


def test_a_plan_is_compared_with_what_was_approved_last_under_its_name(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        first = ask_approval(desk)
        second = ask_approval(desk, PLAN.replace(b"3", b"4"))
        with pytest.raises(NotFoundError, match="plan show"):
            done(desk, "plan-diff", plan=second)
        done(desk, "plan-decide", plan=first, status="approved")

        result = done(desk, "plan-diff", plan=second)

    assert (first, False) == (result["against"]["plan_id"], result["same"])
    assert [line for line in result["diff"].splitlines() if line[1:7] == "epochs"] == ["-epochs = 3", "+epochs = 4"]


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("plan-burn", {}),
        ("plan-show", {}),
        ("plan-show", {"plan": 3}),
        ("plan-show", {"plan": "x", "more": 1}),
        ("plan-decide", {"plan": "x", "status": "maybe"}),
        ("plan-list", {"status": "unknown"}),
        ("plan-list", {"sort": "weight"}),
    ],
)
def test_an_unknown_command_or_value_is_wrong_use(tmp_path: Path, command: str, args: dict[str, object]) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk, pytest.raises(InvalidInputError):
        done(desk, command, **args)
