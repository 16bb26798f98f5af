"""Which runs a grant admits: a table of grants and runs, and what a refusal says."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.errors import ConflictError
from fedmon.common.wire.messages import TrainingPlanStatus
from fedmon.node.registers.grants import MAX_REQUESTS
from fedmon.node.registers.plan_source import MAX_TEXT_LENGTH
from tests.node.owner.owner_desks import done
from tests.node.runs.run_desks import ALICE, PLAN, Bench, bench, digest, run
from tests.support.envelopes import approval, envelope
from tests.support.waiting import wait_until

DECLARING = """from fedmon import TrainingPlan


class Bins(TrainingPlan):
    # {name}
    arguments = {{
        "bins": range(5, 51),
        "rate": float,
        "task": ["mean", "sum"],
        "columns": [str],
    }}
    scalars = ("loss",)

    def run(self, context):
        return {{}}
"""
SILENT = DECLARING.replace("    arguments", "    rules")
ONCE = {"runs": 1}
GRANTS: dict[str, tuple[dict[str, list[str] | None], tuple[dict[str, Any], ...]]] = {
    "as asked": ({"alice": ["cells"]}, ({},)),
    "all datasets": ({"alice": None}, ({},)),
    "two researchers": ({"alice": ["cells"], "bob": ["cells"]}, ({},)),
    "everybody": ({"alice": ["cells"]}, ({"researchers": ["*"], "datasets": ["*"]},)),
    "another dataset": ({"alice": ["cells"]}, ({"datasets": ["more"]},)),
    "other arguments": ({"alice": ["cells"]}, ({"arguments": {"bins": "int"}},)),
    "nothing declared": ({"alice": ["cells"]}, ({},)),
    "used up": ({"alice": ["cells"]}, (ONCE,)),
    "over": ({"alice": ["cells"]}, ({"until": "soon"},)),
    "two grants": (
        {"alice": ["cells"]},
        ({}, {"researchers": ["bob"], "datasets": ["more"], "arguments": {"bins": [9]}}),
    ),
}
"""For each grant the researchers that ask, with their datasets, and the terms of each approval."""
TABLE: tuple[tuple[str, str | None, dict[str, Any], str], ...] = (
    ("alice", "cells", {}, "....d..nt."),
    ("alice", "cells", {"bins": 5}, "....d.ant."),
    ("alice", "cells", {"bins": 50}, "....d.ant."),
    ("alice", "cells", {"bins": 51}, "aaaad.anta"),
    ("alice", "cells", {"bins": 4}, "aaaad.anta"),
    ("alice", "cells", {"bins": 5.0}, "aaaadaanta"),
    ("alice", "cells", {"bins": True}, "aaaadaanta"),
    ("alice", "cells", {"rate": 1}, "....daant."),
    ("alice", "cells", {"rate": "1"}, "aaaadaanta"),
    ("alice", "cells", {"task": "sum"}, "....daant."),
    ("alice", "cells", {"task": "max"}, "aaaadaanta"),
    ("alice", "cells", {"columns": ["a", "b"]}, "....daant."),
    ("alice", "cells", {"columns": ["a", 1]}, "aaaadaanta"),
    ("alice", "cells", {"columns": "a"}, "aaaadaanta"),
    ("alice", "cells", {"other": 1}, "aaaadaanta"),
    ("alice", "more", {}, "d.d..ddntd"),
    ("alice", None, {}, ".......nt."),
    ("bob", "cells", {}, "rr..rrrrrd"),
    ("bob", "more", {"bins": 9}, "rrd.rrrrr."),
    ("carol", "cells", {"bins": 99}, "rrrarrrrrr"),
)
"""Runs, each with what comes of it under each grant: admitted, or outside by one of these letters."""
SAYS = {
    "r": "no grant names you",
    "t": "your grant held until",
    "n": "its 1 run is used up",
    "d": "is not granted",
    "a": "argument '",
}


def bins(name: str) -> tuple[str, str]:
    """Return a plan of this name, and its digest."""
    source = DECLARING.format(name=name)
    return source, digest(source.encode())


class Ward:
    """A node with two datasets, both tagged "cells", whose owner decided about a plan for each grant."""

    def __init__(self, node: Bench) -> None:
        self.node = node
        self.datasets = {"cells": node.offer("cells", "cells", "all"), "more": node.offer("more", "cells", "more")}
        self.plans: dict[str, str] = {}

    def owner(self, command: str, **args: Any) -> dict[str, Any]:
        """Have a command of the owner run."""
        return done(self.node.desk(), command, **args)

    def ask(self, source: str, *, by: str, name: str = "bins", **fields: Any) -> dict[str, Any]:
        """Have a researcher ask for the approval of a plan; returns the reply."""
        return self.node.ask(approval(source.encode(), by=by, name=name, **fields))

    def status(self, sha256: str, *, by: str = ALICE) -> dict[str, Any]:
        """Have a researcher ask where a plan stands."""
        return self.node.ask(TrainingPlanStatus(sha256=sha256, **envelope(by)))

    def approve(self, sha256: str, **terms: Any) -> dict[str, Any]:
        """Have the owner approve a plan."""
        return self.owner("plan-decide", plan=sha256, status="approved", terms=terms or None)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    folder = tmp_path_factory.mktemp("node") / "n"
    with bench(folder, is_ready=False, runs={"max_jobs": 256}) as node:
        yield Ward(node)


@pytest.fixture(scope="module")
def ward(opened: Ward) -> Ward:
    soon = utc_now()
    for name, (asking, approvals) in GRANTS.items():
        source = (SILENT if name == "nothing declared" else DECLARING).format(name=name)
        for researcher, datasets in asking.items():
            opened.ask(source, by=researcher, datasets=datasets)
        sha256 = opened.plans[name] = digest(source.encode())
        for terms in approvals:
            if "until" in terms:
                soon = utc_now() + datetime.timedelta(seconds=1.5)
                grant = opened.owner("plan-show", plan=sha256)["proposed"] | {"until": soon.isoformat()}
                opened.owner("plan-decide", plan=sha256, status="approved", grant=grant)
            else:
                opened.approve(sha256, **terms)
    used = run(opened.plans["used up"], dataset_id=opened.datasets["cells"])
    assert opened.node.ask(used)["command"] == "run"
    wait_until(lambda: utc_now() > soon, what="the end of a grant")
    return opened


@pytest.mark.parametrize("grant", GRANTS)
@pytest.mark.parametrize("row", range(len(TABLE)))
def test_a_run_is_admitted_by_its_grant_or_told_how_it_is_outside(row: int, grant: str, ward: Ward) -> None:
    who, dataset, arguments, letters = TABLE[row]
    expected = letters[list(GRANTS).index(grant)]
    request = run(ward.plans[grant], by=who, dataset_id=dataset and ward.datasets[dataset], arguments=arguments)

    reply = ward.node.ask(request)

    if expected == ".":
        assert reply["command"] == "run", reply
        line = ward.node.audit("run")[-1]
        assert (line["job"], len(line["grant"])) == (request.job_id, 36)
        return
    assert (reply["command"], reply.get("code")) == ("error", "outside-grant"), reply
    assert SAYS[expected] in reply["reason"]
    words = f"fedmon plan request bins.py{f' --dataset {dataset}' if dataset else ''} --purpose "
    assert words in reply["reason"]
    assert ward.node.audit("run-refused")[-1]["code"] == "outside-grant"


def test_what_a_refusal_says_reaches_the_owner_who_grants_more(opened: Ward) -> None:
    source, sha256 = bins("more bins")
    opened.ask(source, by=ALICE, datasets=["cells"], purpose="a histogram")
    opened.approve(sha256)
    wide: dict[str, Any] = {"dataset_id": opened.datasets["cells"], "arguments": {"bins": 60}}
    reason = opened.node.ask(run(sha256, **wide))["reason"]
    assert "argument 'bins' is 60, and its rule is range(5, 51)" in reason

    again = opened.ask(source, by=ALICE, datasets=["cells"], purpose="60 bins")
    asked = [plan for plan in opened.owner("requests")["plans"] if plan["sha256"] == sha256]
    standing = opened.status(sha256)

    assert (again["status"], [plan["status"] for plan in asked]) == ("pending", ["approved"])
    assert (standing["status"], len(standing["grants"])) == ("pending", 1)
    asked = opened.owner("plan-show", plan=sha256)["asked"]
    assert [(wish["purpose"], wish["is_open"]) for wish in asked] == [("a histogram", False), ("60 bins", True)]
    assert {wish["researcher_id"] for wish in asked} == {ALICE}

    opened.approve(sha256, arguments={"bins": "range(5, 61)"}, runs=1)

    assert opened.node.ask(run(sha256, **wide))["command"] == "run"
    assert opened.node.ask(run(sha256, **wide))["code"] == "outside-grant"
    assert [each.get("runs_left") for each in opened.status(sha256)["grants"]] == [None, 0]
    assert opened.ask(source, by=ALICE, datasets=["cells"], purpose="60 bins")["status"] == "approved"
    assert sha256 not in {plan["sha256"] for plan in opened.owner("requests")["plans"]}


def test_a_researcher_whom_no_grant_names_is_undecided_and_sees_no_other(opened: Ward) -> None:
    source, sha256 = bins("for alice")
    opened.ask(source, by=ALICE, datasets=["cells"])
    opened.approve(sha256)

    asked = opened.ask(source, by="bob")

    assert (asked["status"], opened.status(sha256, by="bob")["grants"]) == ("pending", [])
    assert opened.status(sha256)["status"] == "approved"
    decided = opened.approve(sha256)
    assert (decided["changed"], decided["tells"], decided["grant"]["researchers"]) == (True, ["bob"], ("bob",))
    (grant,) = opened.status(sha256, by="bob")["grants"]
    assert grant["grant"]["researchers"] == ["bob"]
    assert not opened.approve(sha256, researchers=["bob"])["changed"]


def test_a_request_for_all_datasets_goes_beyond_a_grant_for_one(opened: Ward) -> None:
    source, sha256 = bins("all of them")
    opened.ask(source, by=ALICE, datasets=["cells"])
    opened.approve(sha256)

    asked = opened.ask(source, by=ALICE)
    _, wish = opened.owner("plan-show", plan=sha256)["asked"]
    granted = opened.approve(sha256)["grant"]

    assert (asked["status"], wish["datasets"], wish["is_open"]) == ("pending", None, True)
    assert set(granted["datasets"]) == set(opened.datasets.values())
    assert opened.ask(source, by=ALICE)["status"] == "approved"


def test_a_request_for_all_datasets_stays_decided(opened: Ward) -> None:
    source, sha256 = bins("one of all")
    opened.ask(source, by=ALICE)
    opened.approve(sha256, datasets=["cells"], researchers=["*"])

    assert opened.ask(source, by=ALICE)["status"] == "approved"
    assert opened.ask(source, by="bob")["status"] == "pending"
    opened.approve(sha256, datasets=["cells", "more"], researchers=["*"])
    assert opened.ask(source, by="carol")["status"] == "approved"


def test_an_approval_answers_no_request_that_its_owner_did_not_see(opened: Ward) -> None:
    # given an owner who reads what alice asks for
    source, sha256 = bins("meanwhile")
    opened.ask(source, by=ALICE, datasets=["cells"], purpose="a")

    def seen() -> dict[str, Any]:
        shown = opened.owner("plan-show", plan=sha256)
        return {"plan": sha256, "status": "approved", "grant": shown["proposed"], "asked": shown["asked"]}

    before = seen()

    # when she asks for something else, then the approval is refused
    opened.ask(source, by=ALICE, datasets=["cells,more"], purpose="b")
    with pytest.raises(ConflictError, match="alice asked for something else meanwhile"):
        opened.owner("plan-decide", **before)
    assert opened.status(sha256)["status"] == "pending"

    # and repeated requests, and those of others, do not matter
    after = seen()
    opened.ask(source, by=ALICE, datasets=["cells"], purpose="a")
    opened.ask(source, by="bob", datasets=["more"])
    assert opened.owner("plan-decide", **after)["tells"] == [ALICE]


def test_requests_for_other_datasets_or_purposes_wait_beside_each_other(opened: Ward) -> None:
    # given a script whose datasets and purpose were approved
    source, sha256 = bins("beside")
    nightly: dict[str, Any] = {"by": ALICE, "datasets": ["cells"], "purpose": "nightly"}
    opened.ask(source, **nightly)
    opened.approve(sha256)

    # when it asks again before the owner decided about two other requests
    opened.ask(source, by=ALICE, datasets=["more"])
    opened.ask(source, by=ALICE, datasets=["cells"], purpose="once")
    again = opened.ask(source, **nightly)
    shown = opened.owner("plan-show", plan=sha256)

    # then these wait, and no later request waits after the approval
    assert [(wish["purpose"], wish["is_open"]) for wish in shown["asked"]] == [
        ("nightly", False), ("", True), ("once", True),
    ]  # fmt: skip
    assert (again["status"], opened.status(sha256)["status"]) == ("approved", "pending")
    assert shown["proposed"]["researchers"] == (ALICE,)
    assert set(shown["proposed"]["datasets"]) == set(opened.datasets.values())
    opened.approve(sha256)
    for fields in (nightly, nightly | {"purpose": "once"}, nightly | {"datasets": ["more"]}):
        assert opened.ask(source, **fields)["status"] == "approved"
    assert sha256 not in {plan["sha256"] for plan in opened.owner("requests")["plans"]}


@pytest.mark.parametrize("decisions", [
    ["rejected"], ["rejected", "asked", "rejected"], ["rejected", "pending"], ["approved", "pending"],
])  # fmt: skip
def test_after_a_rejection_or_a_reset_a_request_replaces_the_decided_ones(opened: Ward, decisions: list[str]) -> None:
    source, sha256 = bins(str(decisions))
    opened.ask(source, by="bob", datasets=["cells"])
    for status in ["asked", *decisions]:
        if status == "asked":
            opened.ask(source, by=ALICE, purpose="everything")
        else:
            opened.owner("plan-decide", plan=sha256, status=status)

    opened.ask(source, by=ALICE, datasets=["cells"])
    shown = opened.owner("plan-show", plan=sha256)
    opened.ask(source, by=ALICE, datasets=["cells"], purpose="once")
    later = opened.owner("plan-show", plan=sha256)["asked"]
    opened.approve(sha256, researchers=[ALICE])

    assert shown["proposed"]["datasets"] == (opened.datasets["cells"],)
    assert shown["proposed"]["researchers"] == (("bob", ALICE) if decisions[-1] == "pending" else (ALICE,))
    assert [(wish["researcher_id"], wish["purpose"], wish["is_open"]) for wish in later] == [
        ("bob", "", False), (ALICE, "", True), (ALICE, "once", True),
    ]  # fmt: skip
    assert [opened.status(sha256, by=who)["status"] for who in (ALICE, "bob")] == ["approved", "pending"]
    assert sha256 not in {plan["sha256"] for plan in opened.owner("requests")["plans"]}


def test_of_very_many_requests_the_latest_are_kept(opened: Ward) -> None:
    source, sha256 = bins("very many")
    for number in range(MAX_REQUESTS + 5):
        opened.ask(source, by=ALICE, purpose=f"purpose {number}")

    asked = opened.owner("plan-show", plan=sha256)["asked"]

    assert [wish["purpose"] for wish in asked] == [f"purpose {number}" for number in range(5, MAX_REQUESTS + 5)]


def test_a_status_has_the_latest_grants_that_fit_into_a_message(opened: Ward) -> None:
    source = DECLARING.format(name="large grants")
    opened.ask(source, by=ALICE)
    rules = {name: [f"value {number}" for number in range(300)] for name in "abcd"}
    for runs in range(1, 11):
        opened.approve(digest(source.encode()), arguments=rules, runs=runs)

    status = opened.status(digest(source.encode()))
    terms, note = {"arguments": rules, "runs": 11}, "я" * MAX_TEXT_LENGTH
    opened.owner("plan-decide", plan=digest(source.encode()), status="approved", terms=terms, note=note)
    noted = opened.status(digest(source.encode()))

    assert status["command"] == "training-plan-status", status
    assert [each["grant"]["runs"] for each in status["grants"]] == [5, 6, 7, 8, 9, 10]
    assert ([each["grant"]["runs"] for each in noted["grants"]], noted["note"]) == ([11], note)


def test_a_dataset_that_is_not_offered_cannot_be_asked_for(opened: Ward) -> None:
    reply = opened.ask(DECLARING.format(name="nowhere"), by=ALICE, datasets=["nowhere"])

    assert (reply["code"], "no dataset 'nowhere'" in reply["reason"]) == ("refused", True)


def test_a_word_that_is_a_name_and_a_tag_asks_for_all_that_a_run_with_it_can_mean(tmp_path: Path) -> None:
    source, sha256 = bins("words")
    with bench(tmp_path / "n", is_ready=False) as node:
        ward = Ward(node)
        ward.datasets["all"] = node.offer("all", "brain")
        for words in (["cells"], ["all"], ["cells", "more"], ["more", "cells"]):
            ward.ask(source, by=ALICE, datasets=words)
        asked = ward.owner("plan-show", plan=sha256)["asked"]

    found = [{name for name, one in ward.datasets.items() if one in wish["datasets"]} for wish in asked]
    assert found == [{"cells"}, {"cells", "all"}, {"cells", "more"}]


def test_an_approval_taken_back_ends_all_grants(opened: Ward) -> None:
    source, sha256 = bins("taken back")
    opened.ask(source, by=ALICE)
    opened.approve(sha256)
    opened.approve(sha256, researchers=["bob"])

    opened.owner("plan-decide", plan=sha256, status="pending")
    assert opened.owner("plan-show", plan=sha256)["grants"] == []
    opened.approve(sha256, runs=1)

    assert opened.node.ask(run(sha256, by="bob"))["code"] == "outside-grant"
    assert opened.node.ask(run(sha256))["command"] == "run"
    assert opened.node.ask(run(sha256))["code"] == "outside-grant"


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"until": "2020-01-01"}, "that is over already"),
        ({"until": "tomorrow"}, "give a day such as 2027-06-30"),
        ({"until": "9999-12-31"}, "until"),
        ({"until": "0001-01-01T00:00:00+12:00"}, "until"),
        ({"datasets": ["nowhere"]}, "nowhere"),
        ({"researchers": ["a b"]}, "researcher 'a b' is not usable"),
        ({"arguments": {"bins": "open('x')"}}, "the rule of argument 'bins'"),
        ({"arguments": {"bins": []}}, "the rule of argument 'bins'"),
        ({"arguments": {"bins": "[[[[[[int]]]]]]"}}, "at most 4 deep"),
        ({"arguments": {"bins": list(range(2000))}}, "of 4096 bytes"),
    ],
)
def test_terms_that_mean_nothing_are_refused(terms: dict[str, Any], says: str, opened: Ward) -> None:
    source = DECLARING.format(name="terms")
    opened.ask(source, by=ALICE)

    with pytest.raises(Exception, match=says):
        opened.approve(digest(source.encode()), **terms)


def test_many_values_take_no_time_under_a_large_rule_of_lists(opened: Ward) -> None:
    source = DECLARING.format(name="many values")
    opened.ask(source, by=ALICE)
    opened.approve(digest(source.encode()), arguments={"columns": f"[[{list(range(800))}]]"})
    values = [[number % 800 for number in range(100)]] * 150
    request = run(digest(source.encode()), arguments={"columns": values})
    outside = run(digest(source.encode()), arguments={"columns": [[True]]})

    before = time.process_time()
    replies = [opened.node.ask(each) for each in (request, outside)]

    assert time.process_time() - before < 2.0
    assert [reply.get("code", reply["command"]) for reply in replies] == ["run", "outside-grant"]


def test_refusals_and_grants_name_no_hidden_dataset_and_no_other_researcher(opened: Ward) -> None:
    (source, sha256), node = bins("hidden"), opened.node
    for who in ("alice", "bob"):
        opened.ask(source, by=who, datasets=["cells"])
    rules = {"task": [f"value {n}" for n in range(200)]}
    opened.approve(sha256, researchers=["alice", "bob"], datasets=["cells"], arguments=rules)
    cells, more = (opened.datasets[name] for name in ("cells", "more"))
    policy, before = node.local.policy, node.local.policy.settings
    policy.follow(msgspec.structs.replace(before, datasets={cells: ("alice",)}))
    try:
        reasons = [node.ask(run(sha256, by=by, dataset_id=more))["reason"] for by in ("alice", "bob")]
        grants = [opened.status(sha256, by=by)["grants"][0]["grant"] for by in ("alice", "bob")]
        node.local.delivery.push()
        sent = [each for each in node.said if each["command"] == "plan-decision" and each["sha256"] == sha256]
        long = node.ask(run(sha256, by="alice", dataset_id=cells, arguments={"task": "x" * 9_000}))["reason"]
    finally:
        policy.follow(before)

    for granted, reason in zip(("cells", "none"), reasons, strict=True):
        assert f"dataset more is not granted (granted: {granted}). Ask for it with" in reason
        assert "fedmon plan request bins.py --dataset more --purpose" in reason
    assert [(each["researchers"], each["datasets"]) for each in grants] == [(["alice"], [cells]), (["bob"], [])]
    told = {each["researcher_id"]: (each["grant"]["researchers"], each["grant"]["datasets"]) for each in sent}
    assert told == {"alice": (["alice"], [cells]), "bob": (["bob"], [])}
    assert ("fedmon plan request bins.py" in long, len(long) < 1_500) == (True, True)


@pytest.mark.parametrize("change", ["dataset", "time"])
def test_a_run_that_waited_is_held_to_its_grant_and_dataset(change: str, tmp_path: Path) -> None:
    # given a run that its grant admits before the node knows its sandbox
    with bench(tmp_path / "n", is_ready=False) as node:
        ward = Ward(node)
        source = PLAN.decode()
        sha256 = digest(PLAN)
        ward.ask(source, by=ALICE, datasets=["cells"])
        until = utc_now() + datetime.timedelta(seconds=8 if change == "time" else 60)
        grant = ward.owner("plan-show", plan=sha256)["proposed"] | {"until": until.isoformat()}
        ward.owner("plan-decide", plan=sha256, status="approved", grant=grant)
        request = run(sha256, dataset_id="cells")
        assert node.ask(request)["command"] == "run"

        # when the name is another dataset's, or the grant is over, before it can start
        if change == "dataset":
            node.local.registers.datasets.remove(ward.datasets["cells"])
            assert node.offer("cells", "cells", "all") != ward.datasets["cells"]
        else:
            wait_until(lambda: utc_now() > until, what="the end of a grant")
        node.local.workers.start()

        job = node.over(request.job_id)["job"]

    # then it does not start
    assert job["state"] == "not-started"
    assert ("is not granted" if change == "dataset" else "your grant held until") in job["reason"]
