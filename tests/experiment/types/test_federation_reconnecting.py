"""Experiments over a federation that are taken up again after the death of their process."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fedmon.common.errors import ConnectionFailedError
from fedmon.experiment.conditions import Metric
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.journal import NAME
from tests.experiment.own_types import FAILED, READY, RESERVED, START, STARTED, STOPPED, killed, killed_now, started
from tests.experiment.types.conftest import job_on, process, wired
from tests.support.node_process import NodeProcess
from tests.support.ports import free_port
from tests.support.two_nodes import TwoNodes
from tests.support.waiting import pause, wait_until

SCRIPT = """
import os, sys
from fedmon import Federation
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.states import ResourceAction, ResourceState

url, folder, plan_file = sys.argv[1:]
fed = Federation(url, folder=folder + "/alice", researcher_id="alice").start()
ec = ExperimentController("trial", folder + "/runs", federation=fed)
nodes = [ec.register_resource("fedmon::Node", nodeId=name) for name in ("a", "b")]
plan = ec.register_resource("fedmon::TrainingPlan", plan=plan_file, connectedTo=nodes)
short = ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], tags=["cells"])
long = ec.register_resource("fedmon::Job", connectedTo=[plan, nodes[0]], args={"reports": 1, "spin": True})
total = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=short)
after = ec.register_resource("fedmon::Job", connectedTo=[plan, nodes[0]], inputsFrom=total)
command = ec.register_resource("local::Process", command=["sleep", "600"], critical=False)
lost = ec.register_resource("fedmon::Job", connectedTo=[plan, nodes[1]], args={"spin": True}, critical=False)
ec.register_condition(after, ResourceAction.START, long, ResourceState.STOPPED)
ec.deploy()
there = ec.wait_finished(total, timeout=60) and ec.wait_started([long, command, lost], timeout=60)
assert there, [(each.guid, each.state.name, each.reason) for each in ec.snapshot.resources.values()]
print(ec.run_dir, ec.get(command, "pid"), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def before(two: TwoNodes) -> set[str]:
    return set(two.fed.jobs().runs())


@pytest.fixture
def left(two: TwoNodes, before: set[str]) -> str:
    return killed(SCRIPT, two.url, two.folder, two.plan)[0]


def test_a_run_stays_as_it_was_while_no_broker_can_be_reached(
    two: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ExperimentController("unreached", tmp_path, federation=two.fed)
    node = before.register_resource("fedmon::Node", nodeId="a")
    started(before, node)
    before.give_up()
    monkeypatch.setenv("FEDMON_BROKER_URL", f"mqtt://127.0.0.1:{free_port()}")
    monkeypatch.setenv("FEDMON_RESEARCHER_TIMEOUT_S", "5")
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "bob"))

    with pytest.raises(ConnectionFailedError):
        ExperimentController.reconnect(before.run_dir)

    with ExperimentController.reconnect(before.run_dir, federation=two.fed) as ec:
        assert (ec.state(node), ec.abort) == (STARTED, False)


def test_runs_are_adopted_and_what_waited_for_them_goes_on(
    two: TwoNodes, node_b: NodeProcess, before: set[str], left: str
) -> None:
    node_b.kill()
    wait_until(lambda: "b" not in two.fed.nodes().online)
    with ExperimentController.reconnect(left, federation=two.fed) as ec:
        (_, _, _, _, long, total, after, command, lost) = ec.resources
        job_id = ec.get(long, "jobId")
        assert ec.state(command) is STARTED
        assert ec.state(long) is STARTED
        assert json.loads(ec.get(total, "result"))["rows"] == 6
        wait_until(lambda: ec.get_resource(lost).handle is not None)  # type: ignore[attr-defined]
        assert ec.state(lost) is STARTED  # nobody knows more while its node is away
        node_b.start()
        wait_until(lambda: "b" in two.fed.nodes().online)
        ec.stop(lost)
        assert ec.wait_finished(lost, timeout=60), ec.explain(lost)
        assert (ec.state(lost), ec.get(lost, "outcome")[:12]) == (STOPPED, "b: stopped (")

        ec.stop(long)

        assert ec.wait_finished([long, after], timeout=60), ec.snapshot.resources
        assert ec.get(long, "jobId") == job_id
        assert ec.get_resource(after).results["a"]["mean"] == 5.0  # type: ignore[attr-defined]
        mine = {ec.get(guid, "jobId") for guid in ec.resources if ec.get_resource(guid).is_rm_instance("fedmon::Job")}
    assert {job_id for job_id in two.fed.jobs().runs() if job_id not in before} == mine


def test_numbers_count_once_and_a_plan_that_waits_for_an_owner_needs_its_file_no_more(
    two: TwoNodes, ec: ExperimentController, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = two.plan_named("Pending")
    monkeypatch.chdir(two.folder)
    [node], plan = wired(ec, two.plan, "a")
    pending = ec.register_resource("fedmon::TrainingPlan", plan="pending.py", connectedTo=node)
    job = job_on(ec, plan, [node], args={"reports": 3, "spin": True})
    short, long = (process(ec, ["true"], critical=False) for _ in "12")
    for waiting, samples in ((short, 3), (long, 4)):
        metric = Metric(name="loss", comparison=">", value=0, samples=samples)
        ec.register_condition(waiting, START, job, metric=metric)
    ec.deploy(wait_all_ready=False)
    assert ec.wait_finished(short, timeout=60), ec.explain(short)
    wait_until(lambda: ec.state(pending) is RESERVED)
    left = killed_now(ec)
    source.unlink()
    monkeypatch.chdir("/")

    with ExperimentController.reconnect(left, federation=two.fed) as again:
        two.decide("a", "approve", again.get(pending, "sha256"))
        assert again.wait(pending, READY, timeout=60), again.explain(pending)
        again.stop(job)
        assert again.wait_finished(job, timeout=60)

        assert again.get_start_time(long) is None
    assert (left / NAME).read_text().count('"event":"measured"') == 3


def test_numbers_of_an_aggregator_count_once_though_its_process_died_before_it_ended(
    two: TwoNodes, ec: ExperimentController
) -> None:
    job = ec.register_resource("fedmon::Job")
    total = ec.register_resource("fedmon::Aggregator", function=lambda _: {"rows": 7}, connectedTo=job)
    ec.get_resource(job).set_stopped()
    ec.deploy(total)
    assert ec.wait_finished(total, timeout=60), ec.explain(total)
    left = killed_now(ec) / NAME
    kept, measured, rest = left.read_text().partition('"event":"measured"')
    left.write_text(kept + measured + rest[: rest.index("\n") + 1])

    with ExperimentController.reconnect(left.parent, federation=two.fed) as again:
        assert again.wait_finished(total, timeout=60), again.explain(total)

    assert left.read_text().count(measured) == 1


def test_a_plan_of_all_nodes_knows_later_whose_approval_is_pending(two: TwoNodes, ec: ExperimentController) -> None:
    plan = ec.register_resource("fedmon::TrainingPlan", plan=two.plan_named("Everywhere"), atLeast=1)
    ec.deploy(wait_all_ready=False)
    wait_until(lambda: ec.state(plan) is RESERVED)
    two.decide("a", "approve", ec.get(plan, "sha256"))
    assert ec.wait_deployed(plan, timeout=60), ec.explain(plan)

    with ExperimentController.reconnect(killed_now(ec), federation=two.fed) as again:
        two.decide("b", "approve", again.get(plan, "sha256"))

        wait_until(lambda: again.get(plan, "approvedBy") == "a,b")


def test_an_aggregator_whose_function_is_not_known_any_more_fails_alone(
    two: TwoNodes, ec: ExperimentController
) -> None:
    [node], plan = wired(ec, two.plan, "a")
    job = job_on(ec, plan, [node], tags=["cells"])
    done, late = (
        ec.register_resource("fedmon::Aggregator", function=lambda parts: parts["a"], connectedTo=job) for _ in "12"
    )
    hold = process(ec, ["true"])
    ec.register_condition(late, START, hold, STOPPED)
    name = ec.get(late, "function")
    ec.deploy([node, plan, job, done, late], wait_all_ready=False)
    assert ec.wait_finished(done, timeout=60), ec.explain(done)
    left = killed_now(ec)
    journal = (left / NAME).read_text()
    (left / NAME).write_text(journal.replace(name, "gone:step"))

    with ExperimentController.reconnect(left, federation=two.fed) as again:
        again.deploy(hold)
        again.wait(late, FAILED, timeout=60)

        assert "aggregation 'gone:step' is not registered" in again.get_resource(late).reason
        assert "register_aggregation(function, name)" in again.get_resource(late).reason
        assert (again.state(job), again.state(done)) == (STOPPED, STOPPED)
        assert again.get_resource(done).result == {"rows": 3, "mean": 2.0}  # type: ignore[attr-defined]


def test_what_was_asked_of_a_node_that_is_away_waits_for_it_and_is_begun_once(
    two: TwoNodes, ec: ExperimentController, node_b: NodeProcess, before: set[str]
) -> None:
    [node], plan = wired(ec, two.plan, "b")
    ec.set(node, "grace", "10m")
    job, fresh = (job_on(ec, plan, [node], tags=["cells"]) for _ in "12")
    data = ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=node)
    ec.deploy([node, plan])
    assert ec.wait_started(plan, timeout=60)
    pause(node_b.pid)
    ec.deploy([job, data], wait_all_ready=False)
    wait_until(lambda: ec.get(job, "jobId") is not None)
    left = killed_now(ec)
    node_b.signal(signal.SIGCONT)
    assert ec.wait_finished(job, timeout=60), ec.explain(job)
    node_b.stop()
    wait_until(lambda: "b" not in two.fed.nodes().online)

    with ExperimentController.reconnect(left, federation=two.fed) as again:
        again.deploy(fresh)
        for guid in (job, fresh, data):
            wait_until(lambda guid=guid: "it waits for node b" in str(again.explain(guid)), what=f"the wait of {guid}")  # type: ignore[misc]
        node_b.start()

        assert again.wait_finished([job, fresh], timeout=60), [again.explain(guid) for guid in (job, fresh)]
        assert again.wait_started(data, timeout=60), again.explain(data)
        assert again.get(job, "jobId") == ec.get(job, "jobId")
        assert again.get_resource(job).results == {"b": {"rows": 3, "mean": 2.0}}  # type: ignore[attr-defined]
    assert len(set(two.fed.jobs().runs()) - before) == 2
