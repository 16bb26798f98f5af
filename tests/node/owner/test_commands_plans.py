"""Commands about plans: exact bytes, and a push after the commit."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError, InvalidInputError, StorageError
from fedmon.node.registers.grants import Declared
from fedmon.node.registers.plan_source import CodeCheck
from tests.node.owner.owner_desks import PLAN, ask_approval, desk_of, done, made_folder, running_node
from tests.node.runs.run_desks import bench

OTHER = b"rate = 0.2\n"


def test_the_push_follows_the_commit_and_never_goes_before_it(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")
    seen: list[tuple[tuple[str, ...], int]] = []
    running = running_node(push=lambda researchers: seen.append((researchers, _committed_messages(folder))))
    with desk_of(folder, running=running) as desk:
        plan_id = ask_approval(desk)
        desk.registers.plans.record_check(hashlib.sha256(PLAN).hexdigest(), CodeCheck())

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


def test_a_running_node_reads_no_plan_itself(tmp_path: Path) -> None:
    submitted, digest = list[str](), hashlib.sha256(PLAN).hexdigest()
    running = running_node(check_plan=submitted.append)
    with desk_of(made_folder(tmp_path / "n"), running=running) as desk:
        plan_id = ask_approval(desk)
        for command, args in (("plan-show", {}), ("plan-decide", {"status": "approved"})):
            with pytest.raises(ConflictError, match="is being read: try again"):
                done(desk, command, plan=plan_id, **args)
        assert submitted == [digest] * 2
        desk.registers.plans.record_check(digest, CodeCheck())
        assert done(desk, "plan-show", plan=plan_id)["proposed"]["researchers"] == ("alice",)

        check = CodeCheck(declared=Declared(scalars=("loss",)), problem="line 1: odd")
        registered = done(desk, "plan-register", source=OTHER, name="p", check=check)["plan"]
        (kept,) = desk.registers.plans.grants.of(hashlib.sha256(OTHER).hexdigest())
        assert (kept.grant.scalars, registered["checked"], registered["problem"]) == (("loss",), True, "line 1: odd")
        assert (desk.registers.plans.unchecked(), len(submitted)) == ((), 2)


def test_a_plan_whose_file_was_lost_before_it_was_read_is_not_waited_for(tmp_path: Path) -> None:
    with desk_of(made_folder(tmp_path / "n"), running=running_node(check_plan=lambda _sha256: None)) as desk:
        plan_id = ask_approval(desk)
        for file in (tmp_path / "n" / "plans").iterdir():
            file.unlink()

        for command, args in (("plan-show", {}), ("plan-decide", {"status": "approved"})):
            with pytest.raises(StorageError, match="plan"):
                done(desk, command, plan=plan_id, **args)


@pytest.mark.parametrize(
    ("measures", "says"), [(False, "only a node that measures takes values"), (True, "'loss' was dropped")]
)
def test_values_that_a_node_cannot_take_are_refused(tmp_path: Path, measures: bool, says: str) -> None:
    with bench(tmp_path / "n", is_ready=False, metrics={"enabled": measures}) as node:

        def flood() -> None:
            for number in range(10_000):
                node.owner("add-scalar", name="loss", value=number)

        with pytest.raises(ConflictError, match=says):
            flood()


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("plan-burn", {}),
        ("plan-show", {}),
        ("plan-show", {"plan": 3}),
        ("plan-show", {"plan": "x", "more": 1}),
        ("plan-decide", {"plan": "x", "status": "maybe"}),
        ("policy-change", {"verb": "allow", "wish": {"log_level": "debug"}}),
        ("job-watch", {"job_id": "a", "pids": ["x"]}),
    ],
)
def test_an_unknown_command_or_value_is_wrong_use(tmp_path: Path, command: str, args: dict[str, object]) -> None:
    with desk_of(made_folder(tmp_path / "n")) as desk, pytest.raises(InvalidInputError):
        done(desk, command, **args)
