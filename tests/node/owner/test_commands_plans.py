"""Commands about plans: exact bytes, and a push after the commit."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError
from tests.node.owner.owner_desks import PLAN, ask_approval, desk_of, done, made_folder, running_node


def test_the_push_follows_the_commit_and_never_goes_before_it(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    seen: list[tuple[tuple[str, ...], int]] = []
    running = running_node(push=lambda researchers: seen.append((researchers, _committed_messages(folder))))
    with desk_of(folder, running=running) as desk:
        plan_id = ask_approval(desk)

        done(desk, "plan-decide", plan=plan_id, status="approved")

    assert seen == [(("alice",), 1)]


def _committed_messages(folder: Path) -> int:
    with sqlite3.connect(folder / "state.sqlite") as other:
        return int(other.execute("SELECT count(*) FROM outbox").fetchone()[0])


@pytest.mark.parametrize("reference", ["logistic", hashlib.sha256(PLAN).hexdigest()[:12]])
def test_a_name_or_a_prefix_approves_nothing_by_itself(tmp_path: Path, reference: str) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk:
        ask_approval(desk)

        with pytest.raises(InvalidInputError, match="approve by the whole id or sha256"):
            done(desk, "plan-decide", plan=reference, status="approved")

        assert done(desk, "plan-show", plan=reference)["plan"]["status"] == "pending"


def test_a_file_that_changes_between_look_and_registration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.py"
    file.write_bytes(PLAN)
    digest = hashlib.sha256(PLAN).hexdigest()
    with desk_of(made_folder(tmp_path / "n")) as desk:
        with pytest.raises(ConflictError, match="changed while"):
            done(desk, "plan-register", path=str(file), sha256="0" * 64, name="p")

        registered = done(desk, "plan-register", path=str(file), sha256=digest, name="p")["plan"]

    assert (registered["status"], registered["type"], registered["sha256"]) == ("approved", "registered", digest)


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
