"""`fedmon node plan`: what is asked for, what an approval would grant, and what it gave."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.wire.messages import TrainingPlanStatus
from fedmon.node.registers.grants import Declared
from fedmon.node.registers.plan_source import check_source
from tests.node.owner.owner_desks import asked, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.node.runs.run_desks import Bench, bench, digest
from tests.support.envelopes import approval, envelope
from tests.support.node_process import audited

PLAN = b"""from fedmon import TrainingPlan


class Bins(TrainingPlan):
    arguments = {"bins": range(5, 51), "task": ["mean", "sum"], "columns": [str], "edges": [range(3)]}
    scalars = ("loss", "accuracy")
    texts = ("report",)
    values = 50
"""
BAD = {
    "no dict": ('arguments = ["bins"]', "arguments cannot be read as a declaration: it is a dict of literals"),
    "a call": ('arguments = {"bins": open("x")}', "is no rule: a rule is int, float"),
    "an infinite one": ('arguments = {"bins": [1e999]}', "arguments cannot be read"),
    "no step": ('arguments = {"bins": range(1, 9, 0)}', "is no rule: a rule is int, float"),
    "bytes": ('arguments = {"bins": [b"x"]}', "is no rule: a rule is int, float"),
    "no names": ("scalars = (1, 2)", "scalars cannot be read as a declaration: it is a tuple of names"),
    "one text": ('scalars = "loss"', "it is a tuple of names"),
    "no number": ("values = 0.5", "values cannot be read as a declaration: it is a number of values"),
    "twice": ("arguments = {}\n    arguments = {}", "arguments is declared twice"),
    "too long": (f'arguments = {{"{"x" * 20_000}": int}}', "the declarations take more than 16384 bytes"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "n")
    (tmp_path / "cells.csv").write_text("a,b\n1,2\n")
    told(made, "dataset", "add", str(tmp_path / "cells.csv"), "--name", "cells", "--tags", "cells")
    return made


def bad(line: str) -> bytes:
    """Return a plan whose class has this line."""
    return f"from fedmon import TrainingPlan\n\n\nclass Bad(TrainingPlan):\n    {line}\n".encode()


def test_the_proposed_grant_has_what_was_asked_for_and_declared(folder: Path) -> None:
    told(folder, "policy", "allow", "alice")
    plan_id = asked(folder, PLAN)
    (dataset,) = told(folder, "dataset", "list")["datasets"]

    shown = told(folder, "plan", "show", plan_id)
    text = node(folder, "plan", "show", plan_id).stdout

    grant = shown["proposed"]
    assert (grant["researchers"], grant["datasets"]) == (["alice"], [dataset["dataset_id"]])
    assert grant["arguments"] == {
        "bins": "range(5, 51)", "task": ["mean", "sum"], "columns": "[str]", "edges": "[range(3)]",
    }  # fmt: skip
    assert (grant["scalars"], grant["texts"], grant["values"]) == (["loss", "accuracy"], ["report"], 50)
    assert 365 <= (datetime.datetime.fromisoformat(grant["until"]) - utc_now()).days <= 366
    assert "alice asks for all listed" in text
    assert 'bins: range(5, 51); task: one of "mean", "sum"' in " ".join(text.split())


def test_an_approval_gives_the_terms_that_its_owner_named(folder: Path, tmp_path: Path) -> None:
    plan_id = asked(folder, PLAN)
    rules = tmp_path / "rules.json"
    rules.write_text('{"bins": "range(10)", "task": ["sum"]}')

    decided = told(
        folder, "plan", "approve", plan_id, "--for", "alice,bob", "--dataset", "cells", "--arguments", str(rules),
        "--runs", "5", "--until", "2999-06-30", "--values", "7", "--release", "ask", "--note", "fine",
    )  # fmt: skip

    grant = decided["grant"]
    assert (grant["researchers"], len(grant["datasets"]), grant["runs"]) == (["alice", "bob"], 1, 5)
    assert grant["arguments"] == {"bins": "range(10)", "task": ["sum"]}
    assert (grant["until"], grant["values"], grant["release"]) == ("2999-07-01T00:00:00Z", 7, "ask")
    assert (grant["note"], decided["tells"]) == ("fine", ["alice"])
    (kept,) = told(folder, "plan", "show", plan_id)["grants"]
    assert (kept["grant"], kept["runs_left"]) == (grant, 5)
    told(folder, "dataset", "remove", "cells")
    screen = node(folder, "plan", "show", plan_id).stdout
    assert f"--- grant, 5 runs left ---\nfor        alice, bob\ndatasets   removed ({grant['datasets'][0]})\n" in screen
    assert [line["grant"] for line in audited(folder, "plan-decision")] == [grant]


def test_the_note_to_one_researcher_is_told_to_no_other(tmp_path: Path) -> None:
    folder, sha256 = tmp_path / "n", digest(PLAN)

    def notes(node: Bench, researcher_id: str) -> list[str]:
        asked = approval(PLAN, by=researcher_id, name="bins")
        status = TrainingPlanStatus(sha256=sha256, **envelope(researcher_id))
        return [node.ask(asked)["note"], node.ask(status)["note"]]

    with bench(folder, is_ready=False) as before:
        assert notes(before, "alice") == ["", ""]
    told(folder, "plan", "approve", sha256, "--for", "alice", "--note", "as agreed with you")

    with bench(folder, is_ready=False) as after:
        assert notes(after, "alice") == ["as agreed with you"] * 2
        assert notes(after, "bob") == ["", ""]
    told(folder, "plan", "reject", sha256, "--note", "not safe")
    with bench(folder, is_ready=False) as rejected:
        assert notes(rejected, "bob")[1] == "not safe"


def test_the_difference_to_the_grant_of_the_approved_version_is_shown(folder: Path) -> None:
    given = told(folder, "plan", "approve", asked(folder, PLAN), "--dataset", "cells", "--until", "never")["grant"]

    text = node(folder, "plan", "show", asked(folder, PLAN.replace(b"51", b"101"))).stdout

    difference = text.partition("--- difference to the grant of the approved version")[2].partition("--- source")[0]
    assert "-arguments: bins: range(5, 51)" in difference
    assert "+arguments: bins: range(5, 101)" in difference
    assert "scalars" not in difference
    assert ("-until: without end" in difference, given.get("until")) == (True, None)


@pytest.mark.parametrize("case", BAD)
def test_a_declaration_that_cannot_be_read_declares_nothing(case: str) -> None:
    line, says = BAD[case]

    check = check_source(bad(line))

    assert check.declared == Declared()
    assert (check.parses, says in check.problem, "line 5" in check.problem or case in ("twice", "too long")) == (
        True, True, True,
    ), check  # fmt: skip


def test_a_plan_whose_declaration_cannot_be_read_is_registered_without_it(tmp_path: Path, folder: Path) -> None:
    plan = tmp_path / "bad.py"
    plan.write_bytes(bad(BAD["a call"][0]))

    done = node(folder, "plan", "register", str(plan))
    plan.write_bytes(bad(BAD["a call"][0]) + b"#\n")
    other = told(folder, "plan", "register", str(plan), "--name", "other")["plan"]

    assert "PROBLEM: line 5: arguments cannot be read" in " ".join(done.stdout.split())
    assert "line 5: arguments cannot be read" in other["problem"]
    (kept,) = told(folder, "plan", "show", "bad")["grants"]
    assert kept["grant"]["arguments"] == {}


def test_rules_that_cannot_be_read_are_refused(folder: Path, tmp_path: Path) -> None:
    plan_id = asked(folder, PLAN)
    file = tmp_path / "rules.json"
    large = json.dumps(dict.fromkeys(map(str, range(2000)), "int"))
    for text, says in (
        ("{", "is not JSON"), ("[1]", "object"), ('{"a": "x"}', "argument 'a'"),
        ('{"a": "b = int"}', "argument 'a'"), (large, "the rules take more than 16384 bytes"),
    ):  # fmt: skip
        file.write_text(text)
        assert says in refused(folder, "plan", "approve", plan_id, "--arguments", str(file), code=2)
    assert "cannot read the rules" in refused(folder, "plan", "approve", plan_id, "--arguments", "none.json", code=2)
