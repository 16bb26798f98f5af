"""How jobs end: released while they run, with nodes that fail, and whatever cannot be written down."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.ids import new_id
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.events import Retry
from fedmon.experiment.states import FailureLevel
from fedmon.experiment.types.job import Job, ending_of
from tests.experiment.own_types import FAILED, READY, RELEASED, START, STARTED, STOPPED, killed_now, started
from tests.experiment.types.conftest import job_on, process, wired
from tests.support.node_process import NodeProcess
from tests.support.two_nodes import TwoNodes
from tests.support.waiting import pause, wait_until


def running_job(two: TwoNodes, ec: ExperimentController, *node_ids: str, **attributes: Any) -> int:
    nodes, plan = wired(ec, two.plan, *node_ids)
    job = job_on(ec, plan, nodes, **attributes)
    started(ec, job)
    return job


def wait_for_reports(ec: ExperimentController, job: int) -> None:
    """Wait until a plan runs on all nodes: one that is stopped while it begins takes its time to end."""
    found = ec.get_resource(job)
    assert isinstance(found, Job)
    wait_until(lambda: found.handle is not None and all(found.handle.scalars.values()))


def test_an_experiment_that_is_released_while_a_job_runs_did_not_fail(two: TwoNodes, ec: ExperimentController) -> None:
    job = running_job(two, ec, "a", "b", args={"reports": 1, "spin": True})
    wait_for_reports(ec, job)

    ec.shutdown()

    assert {each.state for each in ec.snapshot.resources.values()} == {RELEASED}
    assert (ec.failure_level, ec.get_resource(job).reason) == (FailureLevel.OK, "")
    assert FAILED not in [state for state, _ in ec.snapshot.resources[job].times]
    assert ec.get(job, "outcome").startswith("a, b: stopped (")


def test_a_release_stops_what_runs_and_the_job_is_found_again_by_its_id(
    two: TwoNodes, ec: ExperimentController
) -> None:
    job = running_job(two, ec, "a", args={"reports": 1, "spin": True})
    wait_for_reports(ec, job)
    with ExperimentController("again", two.folder / "runs", federation=two.fed) as other:
        again: Any = other.get_resource(other.register_resource("fedmon::Job"))
        assert not again.adopt()
        again.note("jobId", ec.get(job, "jobId"))

        assert again.adopt()
        assert again.state is STARTED
        ec.shutdown()

        wait_until(lambda: again.state is FAILED)
        assert "a: stopped (" in again.reason
    assert ec.state(job) is RELEASED


def test_a_job_that_ended_is_not_sent_again(two: TwoNodes, ec: ExperimentController) -> None:
    job = running_job(two, ec, "a", tags=["cells"])
    assert ec.wait_finished(job, timeout=60), ec.explain(job)
    job_id, outcome, before = ec.get(job, "jobId"), ec.get(job, "outcome"), set(two.fed.jobs().runs())

    ec.deploy([job])
    ec.get_resource(job).start_with_conditions()
    wait_until(lambda: ec.state(job) is STOPPED and not ec.snapshot.resources[job].calling)

    assert (ec.get(job, "jobId"), ec.get(job, "outcome")) == (job_id, outcome)
    assert set(two.fed.jobs().runs()) == before


def test_a_job_whose_start_took_too_long_runs_once(
    two: TwoNodes, ec: ExperimentController, node_b: NodeProcess
) -> None:
    # given a job that node a runs, while the silence of node b takes longer than its start may
    nodes, plan = wired(ec, two.plan, "a", "b")
    job = job_on(ec, plan, nodes, timeouts={"start": 3.0}, retry={"start": Retry(times=100, factor=1.0)})
    hold = process(ec, ["true"])
    ec.register_condition(job, START, hold, STOPPED)
    before = set(two.fed.jobs().runs())
    ec.deploy([*nodes, plan, job], wait_all_ready=False)
    wait_until(lambda: ec.state(job) is READY)
    pause(node_b.pid)
    ec.deploy(hold)
    wait_until(lambda: ec.snapshot.resources[job].attempt >= 1, what="the timeout")
    left = killed_now(ec)

    # when b is there again
    node_b.signal(signal.SIGCONT)

    # then the retry follows the run that there is, also that of another process
    assert ec.wait_finished(job, timeout=60), ec.explain(job)
    with ExperimentController.reconnect(left, federation=two.fed) as again:
        assert again.wait_finished(job, timeout=60), again.explain(job)
        assert {each.state(job) for each in (ec, again)} == {STOPPED}, ec.get_resource(job).reason
    assert set(two.fed.jobs().runs()) - before == {ec.get(job, "jobId")}


def test_a_node_that_was_away_hears_of_a_stop_when_it_is_back(
    two: TwoNodes, ec: ExperimentController, node_b: NodeProcess
) -> None:
    job = running_job(two, ec, "a", "b", args={"reports": 1, "spin": True})
    wait_for_reports(ec, job)
    node_b.kill()
    wait_until(lambda: "b" not in two.fed.nodes().online, what="the loss of b")
    ec.stop(job)
    wait_until(lambda: ec.snapshot.resources[job].returned, what="the stop to be sent")

    node_b.start()

    assert ec.wait_finished(job, timeout=60), ec.explain(job)
    assert "b: stopped (" in ec.get(job, "outcome")


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"atLeast": 2}, "atLeast is 2, and there are 1 nodes: a"),
        ({"inputsFrom": 1}, "resource 1 (fedmon::Node) has no result for resource 3 (fedmon::Job): have it wait for a"),
        ({"args": {"unknown": 1}}, "no node accepted it: a: "),
    ],
)
def test_a_job_that_no_node_can_run_is_not_begun(
    two: TwoNodes, ec: ExperimentController, attributes: dict[str, Any], why: str
) -> None:
    nodes, plan = wired(ec, two.plan, "a")
    job = job_on(ec, plan, nodes, **attributes)
    ec.deploy()

    ec.wait(job, FAILED, timeout=60)

    assert ec.get_resource(job).reason.startswith(f"start failed: {why}")
    assert ec.get(job, "jobId") is None


def test_a_job_that_no_node_knows_after_a_crash_fails(two: TwoNodes, ec: ExperimentController) -> None:
    running: Any = ec.get_resource(ec.register_resource("fedmon::Job"))
    running.note("jobId", new_id())
    running.set_started()
    ec.give_up()

    with ExperimentController.reconnect(ec.run_dir, federation=two.fed) as again:
        assert again.wait(1, FAILED, timeout=60)
        assert "no node that answers knows job" in again.get_resource(1).reason


def test_a_job_goes_to_no_other_node_when_its_own_are_lost(two: TwoNodes, ec: ExperimentController) -> None:
    a, b = (ec.register_resource("fedmon::Node", nodeId=node_id, critical=False) for node_id in "ab")
    plan = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, connectedTo=[a, b])
    job = job_on(ec, plan, [b])
    ec.register_condition(job, START, b, FAILED)
    ec.deploy()
    assert ec.wait_deployed(job, timeout=60), ec.explain(job)

    ec.get_resource(b).fail("lost")

    ec.wait(job, FAILED, timeout=60)
    assert ec.get_resource(job).reason.startswith("start failed: none of its nodes is left")
    assert ec.get(job, "ranOn") is None


def test_the_results_of_a_job_that_is_over_are_those_that_were_kept(two: TwoNodes, ec: ExperimentController) -> None:
    job = running_job(two, ec, "a", tags=["cells"])
    assert ec.wait_finished(job, timeout=60), ec.explain(job)

    Path(ec.run_dir, str(job), "returned", "a.json").write_text('{"rows": 7}')

    assert ec.get_resource(job).results == {"a": {"rows": 7}}  # type: ignore[attr-defined]


def test_a_job_is_released_though_its_results_cannot_be_written(two: TwoNodes, ec: ExperimentController) -> None:
    job = running_job(two, ec, "a", args={"reports": 1, "spin": True})
    wait_for_reports(ec, job)
    Path(ec.run_dir, str(job), "result").mkdir(parents=True)

    ec.shutdown()

    assert "cannot write" in ec.get_resource(job).reason


def test_jobs_do_without_a_node_that_is_lost_and_did_not_fail_for_it_where_all_is_released(
    two: TwoNodes, ec: ExperimentController, node_b: NodeProcess
) -> None:
    nodes = [ec.register_resource("fedmon::Node", nodeId=node_id, grace="10ms", critical=False) for node_id in "ab"]
    data = ec.register_resource("fedmon::Dataset", tags=["cells"], connectedTo=nodes)
    plan = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, connectedTo=nodes)
    short = ec.register_resource("fedmon::Job", connectedTo=[plan, data], args={"spin": "b"}, atLeast=1)
    long = ec.register_resource("fedmon::Job", connectedTo=[plan, data], args={"reports": 1, "spin": True})
    started(ec, [short, long])
    wait_for_reports(ec, long)

    node_b.kill()

    try:
        assert ec.wait_finished(short, timeout=60), ec.explain(short)
        assert ec.get(short, "outcome") == "succeeded on a; b: the node was lost while it ran there"
        assert ec.state(long) is STARTED
        ec.shutdown()
        assert ec.failure_level is FailureLevel.OK
        assert FAILED not in [state for state, _ in ec.snapshot.resources[long].times]
    finally:
        node_b.start()
        wait_until(lambda: {"a", "b"} <= set(two.fed.nodes().online))
        for job in (short, long):
            handle = two.fed.job(ec.get(job, "jobId"))
            handle.stop()
            assert handle.wait(60)  # a node runs so many at a time


def test_a_broker_that_dies_holds_up_what_runs_and_what_is_deployed_and_loses_neither(
    two: TwoNodes, ec: ExperimentController
) -> None:
    job = running_job(two, ec, "a", "b", args={"reports": 2, "spin": True})
    after = ec.register_resource("fedmon::Job", connectedTo=[*ec.get_resource(job).connections], tags=["cells"])
    total = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=after)

    two.broker.kill()
    ec.deploy()
    wait_until(lambda: ec.get_ready_time(after) is not None)
    two.broker.start()
    wait_until(lambda: {"a", "b"} <= set(two.fed.nodes().online))
    ec.stop(job)

    assert ec.wait_finished([job, after, total], timeout=60), (ec.explain(job), ec.explain(after))
    assert {ec.state(guid) for guid in (job, after, total)} == {STOPPED}
    assert json.loads(ec.get(total, "result"))["rows"] == 6
    assert ec.get(job, "ranOn") == "a,b"


@pytest.mark.parametrize(
    ("succeeded", "failed", "stopped", "at_least", "is_well", "outcome"),
    [
        ("ab", {}, "", None, True, "succeeded on every node"),
        ("a", {"b": "x"}, "", None, False, "b: x"),
        ("a", {"b": "x"}, "", 1, True, "succeeded on a; b: x"),
        ("a", {"b": "x"}, "", 2, False, "b: x"),
        ("a", {}, "", 2, False, "it ran on 1 nodes, and atLeast is 2"),
        ("", {"a": "x", "b": "y"}, "ab", 2, True, "a: x; b: y"),
        ("", {"a": "x", "b": "y"}, "a", None, False, "a: x; b: y"),
    ],
)
def test_a_run_is_judged_by_how_many_nodes_it_ended_well_on(
    succeeded: str, failed: dict[str, str], stopped: str, at_least: int | None, is_well: bool, outcome: str
) -> None:
    assert ending_of(list(succeeded), failed, list(stopped), at_least=at_least) == (is_well, outcome)
