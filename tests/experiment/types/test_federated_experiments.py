"""Experiments over real nodes: from a node that is there to results that are put together and collected."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path

import pytest

from fedmon import TrainingPlan
from fedmon.common.errors import StorageError
from fedmon.common.store.recording import Recording
from fedmon.experiment.attributes import TraceAttr
from fedmon.experiment.check.graph import Problem
from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import TraceNotReadableError
from fedmon.experiment.failure import OptionalFailures
from fedmon.researcher.federation import Federation
from tests.experiment.own_types import DISCOVERED, FAILED, NEW, READY, RESERVED, START, STARTED, STOP, STOPPED, started
from tests.experiment.types.conftest import job_on, wired
from tests.support.node_process import NodeProcess
from tests.support.shell_here import fedmon_here
from tests.support.two_nodes import PLAN, TwoNodes
from tests.support.waiting import pause, wait_until


def datasets_missing(ec: ExperimentController) -> list[Problem]:
    return [one for one in ec.plan().problems if one.kind == "missing-dataset"]


def optional(two: TwoNodes) -> ExperimentController:
    """Return an experiment that no failure ends."""
    return ExperimentController("trial", two.folder / "runs", fm=OptionalFailures(), federation=two.fed)


def test_from_nodes_over_an_owners_approval_to_what_is_collected(two: TwoNodes, ec: ExperimentController) -> None:
    nodes, plan = wired(ec, two.plan_named("Fresh"), "a", "b", description="How many rows?")
    dataset = ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=nodes)
    assert [(one.kind, one.severity) for one in ec.plan().problems] == [("approval-needed", "warning")] * 2
    (two.folder / "given.json").write_text('{"extra": 4}')
    first = job_on(ec, plan, [*nodes, dataset], args={"reports": 20}, inputs=two.folder / "given.json")
    ec.enable_trace(first, "stdout")
    aggregate = ec.register_resource("fedmon::Aggregator", function="weighted-mean", connectedTo=first, name="means")
    second = job_on(ec, plan, nodes[:1], inputsFrom="means")
    collector = ec.register_resource("fedmon::Collector", traceName="result", rename="found.json")
    for guid in (first, aggregate, second):
        ec.register_connection(collector, guid)
    ec.register_condition(second, START, aggregate, STOPPED)
    ec.register_condition(second, START, first, metric=Metric(name="loss", comparison="<", value=0.1, samples=3))

    ec.deploy()
    wait_until(lambda: ec.state(plan) is RESERVED)
    wait_until(lambda: ec.state(dataset) is READY)
    assert ec.get(dataset, "foundOn") == "a,b"
    assert ec.state(first) is NEW
    wait_until(lambda: "it waits for the owner of a, b to approve it" in str(ec.explain(plan)))
    assert "it waits for the owner of a, b to approve it" in fedmon_here("experiment", "show", ec.run_dir).stdout
    wait_until(lambda: f"it waits for resource {plan} (fedmon::TrainingPlan) to be READY" in str(ec.explain(first)))
    for node_id in ("a", "b"):
        two.decide(node_id, "approve", ec.get(plan, "sha256"))

    assert ec.wait_finished([second], timeout=60), ec.get_resource(second).reason
    assert {ec.state(guid) for guid in (first, aggregate, second)} == {STOPPED}
    assert json.loads(ec.get(aggregate, "result")) == {"rows": 6, "mean": 2.0, "extra": 5.0}
    assert ec.get_resource(second).results == {"a": {"rows": 7, "mean": 3.0, "extra": 6.0}}  # type: ignore[attr-defined]
    assert ec.get_reserved_time(plan) is not None
    assert ec.release()
    run = Path(ec.run_dir)
    assert json.loads((run / f"{first}.found.json").read_text())["b"] == {"rows": 3, "mean": 2.0, "extra": 5}
    assert json.loads((run / f"{aggregate}.found.json").read_text()) == {"rows": 6, "mean": 2.0, "extra": 5.0}
    assert len((run / str(first) / "scalars").read_text().splitlines()) == 40
    assert "hello from b" in str(ec.trace(first, "stdout"))
    assert "withheld" in str(ec.trace(first, "stdout"))
    assert ec.get(collector, "missing") is None


def test_a_plan_that_an_owner_rejects_fails_and_what_needs_it(two: TwoNodes, ec: ExperimentController) -> None:
    class Refused(TrainingPlan):
        def code(self) -> str:
            return PLAN.format(name="Refused")

    nodes, plan = wired(ec, Refused, "a")
    job = job_on(ec, plan, nodes)
    ec.set(plan, "plan", "# outdated\n" + PLAN.format(name="Refused"))
    assert not ec.plan().errors
    ec.set(plan, "plan", Refused)
    ec.deploy()
    wait_until(lambda: ec.state(plan) is RESERVED)
    assert Path(ec.run_dir, str(plan), "Refused.py").read_text() == PLAN.format(name="Refused")

    two.decide("a", "reject", ec.get(plan, "sha256"))

    wait_until(lambda: ec.state(plan) is FAILED)
    assert "rejected by the owner of a" in ec.get_resource(plan).reason
    wait_until(lambda: ec.state(job) is FAILED)
    assert f"needs resource {plan} (fedmon::TrainingPlan), which is FAILED" in ec.get_resource(job).reason
    assert ec.abort


def test_enough_approvals_and_jobs_suffice_and_an_owner_who_is_silent_holds_up_nothing(
    two: TwoNodes, ec: ExperimentController
) -> None:
    nodes, plan = wired(ec, two.plan_named("Quorum"), "a", "b", atLeast=1)
    data = ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=nodes)
    silent = ec.register_resource("fedmon::TrainingPlan", plan=two.plan_named("Undecided"), connectedTo=nodes[1])
    first, never = job_on(ec, plan, [data]), job_on(ec, silent, nodes[1:])
    pooled = ec.register_resource("fedmon::Aggregator", function="sum", atLeast=1, connectedTo=[first, never])
    whole = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=[first, never])
    ec.deploy(wait_all_ready=False)
    wait_until(lambda: ec.state(plan) is RESERVED)

    two.decide("a", "approve", ec.get(plan, "sha256"))

    assert ec.wait_finished([first, pooled], timeout=60), ec.explain(pooled)
    assert (ec.get(plan, "approvedBy"), ec.get(first, "ranOn")) == ("a", "a")
    assert json.loads(ec.get(pooled, "result")) == {"rows": 3, "mean": 2.0}
    assert (ec.state(silent), ec.state(whole)) == (RESERVED, STARTED)
    two.decide("b", "reject", ec.get(plan, "sha256"))
    two.decide("b", "reject", ec.get(silent, "sha256"))
    wait_until(lambda: ec.state(silent) is FAILED)
    assert ec.state(plan) is STARTED


def test_a_node_that_does_not_answer_holds_up_no_plan_that_needs_fewer(
    two: TwoNodes, node_b: NodeProcess, tmp_path: Path
) -> None:
    pause(node_b.pid)
    with (
        Federation(two.url, folder=tmp_path / "bob", researcher_id="bob") as fed,
        ExperimentController("trial", tmp_path, federation=fed) as ec,
    ):
        _, plan = wired(ec, two.plan_named("Patient"), "a", "b", atLeast=1)
        ec.deploy()

        assert ec.wait(plan, RESERVED, timeout=60), ec.explain(plan)


def test_a_plan_fails_with_too_few_owners_left_and_an_aggregator_with_too_few_jobs(two: TwoNodes) -> None:
    with optional(two) as ec:
        nodes, plan = wired(ec, two.plan_named("Unwanted"), "a", "b", atLeast=2)
        many = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, atLeast=3, connectedTo=nodes)
        pooled = ec.register_resource("fedmon::Aggregator", atLeast=2, connectedTo=job_on(ec, plan, nodes))
        away = ec.register_resource("fedmon::Node", nodeId="nobody")
        shared = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, atLeast=2)
        for node in (nodes[0], nodes[0], away):  # one node of two jobs is one owner
            job_on(ec, shared, [node])
        ec.deploy()
        wait_until(lambda: ec.state(plan) is RESERVED)

        two.decide("b", "reject", ec.get(plan, "sha256"))

        ec.wait([plan, many, pooled], FAILED, timeout=60)
        assert "rejected by the owner of b" in ec.get_resource(plan).reason
        assert "atLeast is 3, and it has 2 nodes" in ec.get_resource(many).reason
        assert "has no 2 jobs: connect it to more" in ec.get_resource(pooled).reason
        wait_until(lambda: f"it waits for resource {away} (fedmon::Node) to be READY" in str(ec.explain(shared)))


def test_a_job_that_fails_somewhere_says_where_and_optional_ones_are_left_out(two: TwoNodes) -> None:
    with optional(two) as ec:
        nodes, plan = wired(ec, two.plan, "a", "b")
        bad = job_on(ec, plan, nodes, args={"fails": "b"}, critical=False)
        good = job_on(ec, plan, nodes[:1])
        ec.enable_trace(good, "stdout")  # which its owner withholds
        aggregate = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=[bad, good])
        wrong = ec.register_resource("fedmon::Aggregator", function="weighted-mean", connectedTo=good)

        ec.deploy()
        ec.wait_finished([aggregate, wrong, bad], timeout=60)

        reason = ec.get_resource(bad).reason
        assert "b: failed (ValueError: no column radius" in reason
        assert ec.get(bad, "outcome") == reason
        assert ec.get_resource(bad).results == {"a": {"rows": 0, "mean": 2.0}}  # type: ignore[attr-defined]
        assert json.loads(ec.get(aggregate, "result")) == {"rows": 0, "mean": 2.0}
        assert "no node has a row" in ec.get_resource(wrong).reason
        with pytest.raises(TraceNotReadableError, match="withheld"):
            ec.trace(good, "stdout")


def test_a_job_is_stopped_by_a_condition_and_a_monitor_records_while_it_runs(
    two: TwoNodes, ec: ExperimentController
) -> None:
    nodes, plan = wired(ec, two.plan, "b")
    job = job_on(ec, plan, nodes, args={"reports": 3, "spin": True})
    monitor = ec.register_resource("fedmon::Monitor", metrics="host_memory_*", interval=0.2, connectedTo=[*nodes, job])
    memory = Metric(name="host_memory_used_ratio", comparison=">", value=0.0, samples=2)
    ec.register_condition(job, STOP, nodes, metric=memory)
    ec.register_condition(job, STOP, job, metric=Metric(name="loss", comparison="<", value=0.4))

    ec.deploy()

    assert ec.wait_finished([job, monitor], timeout=60)
    assert (ec.state(job), ec.state(monitor)) == (STOPPED, STOPPED)
    assert "stopped by researcher alice" in ec.get(job, "outcome")
    assert ec.trace(job, "stdout") == "hello from b\n"
    assert ec.get(monitor, "samples") > 0
    with Recording(str(ec.trace(monitor, "recording", TraceAttr.PATH)), read_only=True) as recording:
        assert "host" in recording.streams("b")


def test_what_nodes_that_are_away_or_silent_may_still_give_is_no_error(
    two: TwoNodes, ec: ExperimentController, node_b: NodeProcess
) -> None:
    nodes, _ = wired(ec, two.plan_named("Divided"), "a", "b", "c", atLeast=2)
    two.decide("a", "reject", two.fed.approve(two.plan_named("Divided")).ok["a"].sha256)
    dataset = ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=nodes[:2])

    assert {one.severity for one in ec.plan().problems} == {"warning"}
    pause(node_b.pid)

    assert [(one.guids, one.severity) for one in datasets_missing(ec)] == [((dataset,), "warning")]


def test_a_monitor_records_the_nodes_of_all_its_jobs(two: TwoNodes, ec: ExperimentController) -> None:
    nodes, plan = wired(ec, two.plan, "a", "b")
    first, second = (job_on(ec, plan, [node], args={"reports": 1, "spin": True}) for node in nodes)
    monitor = ec.register_resource("fedmon::Monitor", interval=0.2, connectedTo=[first, second])
    alone = ec.register_resource("fedmon::Monitor", interval=0.2, connectedTo=nodes)
    ec.register_condition(second, START, first, STOPPED)
    memory = Metric(name="host_memory_used_ratio", comparison=">", value=0.0)

    def is_recorded(node_id: str) -> bool:
        try:
            with Recording(str(ec.trace(monitor, "recording", TraceAttr.PATH)), read_only=True) as recording:
                return "host" in recording.streams(node_id)
        except (TraceNotReadableError, StorageError):  # before its first sample
            return False

    ec.deploy()
    for job, node_id in ((first, "a"), (second, "b")):
        assert ec.wait_started([job, monitor], timeout=60), ec.explain(job)
        wait_until(functools.partial(is_recorded, node_id), what=node_id)
        ec.register_condition(job, STOP, monitor, metric=memory)

    assert ec.wait_finished([first, second, monitor], timeout=60), ec.explain(second)
    assert ec.wait_started(alone, timeout=60)
    ec.stop(alone)
    count = ec.get(alone, "samples")
    assert (ec.state(alone), count > 0) == (STOPPED, True)
    ec.start(alone)
    ec.stop(alone)
    assert ec.get(alone, "samples") >= count  # of both times


def test_datasets_and_nodes_that_are_missing_are_named_before_a_deployment_and_by_it(two: TwoNodes) -> None:
    with optional(two) as ec:
        nodes = [ec.register_resource("fedmon::Node", nodeId=node_id) for node_id in "ab"]
        dataset = ec.register_resource("fedmon::Dataset", tags=["cells", "a"], connectedTo=nodes)
        absent = ec.register_resource("fedmon::Node", nodeId="nobody", timeouts={"deploy": 1.0})
        assert [(one.kind, one.guids, one.text) for one in ec.plan().problems] == [
            ("missing-dataset", (dataset,), "no dataset for tags cells, a: b: it offers none to you"),
            ("offline-node", (absent,), "node nobody was not heard of"),
        ]
        job = ec.register_resource("fedmon::Job", tags=["gone"])
        lost = datasets_missing(ec)[-1]
        assert (lost.severity, lost.text) == ("error", "no dataset for tags gone: a, b: it offers none to you")
        ec.set(job, "atLeast", 1)
        assert datasets_missing(ec)[-1].severity == "warning"  # other nodes may offer it
        ec.remove_resource(job)

        ec.deploy()

        ec.wait([dataset, absent], FAILED, timeout=60)
        reasons = [ec.get_resource(guid).reason for guid in (dataset, absent)]
        assert reasons[0] == "deploy failed: no dataset for tags cells, a: b: it offers none to you"
        assert reasons[1].endswith(": it waited for node nobody, which was not heard of")


def test_a_plan_whose_nodes_are_away_is_asked_of_nobody_else(two: TwoNodes, ec: ExperimentController) -> None:
    away = ec.register_resource("fedmon::Node", nodeId="nobody")
    for plan in (two.plan, two.plan_named("Unseen")):
        ec.register_resource("fedmon::TrainingPlan", plan=plan, connectedTo=away)
    ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=away)
    there = ec.register_resource("fedmon::Node", nodeId="a")
    ec.register_resource("fedmon::TrainingPlan", plan=two.plan, connectedTo=there)  # which is approved
    lost = ec.register_resource("fedmon::TrainingPlan", plan=two.folder / "gone.py", connectedTo=there)

    problems = {(one.kind, one.guids) for one in ec.plan().problems}
    assert problems == {("offline-node", (away,)), ("missing-part", (lost,))}


def test_a_dataset_that_is_two_on_a_node_is_chosen_by_its_id(two: TwoNodes) -> None:
    for name in ("one", "other"):
        words = ("--name", name, "--tags", f"twins,{name}", "--dir", str(two.folder / "a"))
        added = fedmon_here("node", "dataset", "add", str(two.folder / "a" / "table.csv"), *words)
        assert added.returncode == 0, added.stderr
    with optional(two) as ec:
        node = ec.register_resource("fedmon::Node", nodeId="a")
        twins = ec.register_resource("fedmon::Dataset", tags=["twins"], connectedTo=node)
        said = "node a offers more than one; set datasetId of a fedmon::Dataset: "
        (problem,) = ec.plan().problems
        assert (problem.kind, problem.guids, problem.text[: len(said)]) == ("missing-dataset", (twins,), said)
        chosen = problem.text[len(said) :].split()[0]
        one = ec.register_resource("fedmon::Dataset", tags=["twins"], datasetId=chosen, connectedTo=node)

        ec.deploy()

        assert ec.wait(twins, FAILED, timeout=60)
        assert said in ec.get_resource(twins).reason
        assert ec.wait_started(one, timeout=60), ec.explain(one)


def test_a_node_may_return_within_its_grace(two: TwoNodes, ec: ExperimentController, node_b: NodeProcess) -> None:
    patient, hasty = (
        ec.register_resource("fedmon::Node", nodeId="b", grace=grace, critical=False) for grace in ("5m", "10ms")
    )
    plan = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, connectedTo=[hasty])
    job = job_on(ec, plan, [hasty], args={"reports": 1, "spin": True}, critical=False)
    started(ec, [patient, hasty, job])

    node_b.stop()
    wait_until(lambda: ec.state(hasty) is FAILED)
    assert "node b is offline" in ec.get_resource(hasty).reason
    assert "did not come back within 10ms" in ec.get_resource(hasty).reason
    wait_until(lambda: ec.state(job) is FAILED)
    assert ec.get_resource(job).reason.startswith("b: ")
    assert (ec.state(patient), ec.get(patient, "present")) == (STARTED, False)
    late = ec.register_resource("fedmon::Node", nodeId="b")
    ec.deploy(late)
    wait_until(lambda: ec.state(late) is DISCOVERED)
    node_b.start()

    assert ec.wait_started(late, timeout=60)
    wait_until(lambda: ec.get(patient, "present") and ec.get(hasty, "present"))
    assert (ec.state(patient), ec.state(hasty)) == (STARTED, FAILED)


def test_an_experiment_opens_the_federation_of_the_settings_and_closes_it(
    two: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMON_BROKER_URL", two.url)
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "bob"))
    with ExperimentController("own", tmp_path) as ec:
        node = ec.register_resource("fedmon::Node", nodeId="a")
        started(ec, node)
        opened = ec.federation
        assert opened.status().connected
    with pytest.raises(Exception, match="not started"):
        opened.nodes()


def test_without_a_broker_one_try_is_enough_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMON_BROKER_URL", "mqtt://127.0.0.1:1")
    monkeypatch.setenv("FEDMON_RESEARCHER_TIMEOUT_S", "1")
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "bob"))
    begun = time.monotonic()
    with ExperimentController("own", tmp_path, fm=OptionalFailures()) as ec:
        nodes = [ec.register_resource("fedmon::Node", nodeId=f"n{number}") for number in range(40)]
        ec.deploy()

        assert ec.wait_started(nodes, timeout=60).failed == tuple(nodes)
        reasons = {each.reason for each in ec.snapshot.resources.values()}
        assert all("cannot connect to the broker at 127.0.0.1:1" in reason for reason in reasons)
    assert time.monotonic() - begun < 30  # for all of them, a second each, it would be 40
