"""How jobs end: released while they run, with nodes that fail, and whatever cannot be written down."""

from __future__ import annotations

from typing import Any

from fedmon.researcher.experiment.controller import ExperimentController
from fedmon.researcher.experiment.states import FailureLevel, ResourceState
from tests.researcher.experiment.federation.conftest import TwoNodes


def running_job(two: TwoNodes, ec: ExperimentController, *node_ids: str, **attributes: Any) -> int:
    nodes = [ec.register_resource("fedmon::Node", nodeId=node_id) for node_id in node_ids]
    plan = ec.register_resource("fedmon::TrainingPlan", plan=two.plan, connectedTo=nodes)
    job = ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], **attributes)
    ec.deploy()
    assert ec.wait_started(job, timeout=20)
    return job


def test_an_experiment_that_is_released_while_a_job_runs_did_not_fail(two: TwoNodes, ec: ExperimentController) -> None:
    job = running_job(two, ec, "a", "b", args={"reports": 1, "spin": True})

    ec.shutdown()

    assert {each.state for each in ec.snapshot.resources.values()} == {ResourceState.RELEASED}
    assert (ec.failure_level, ec.snapshot.resources[job].reason) == (FailureLevel.OK, "")
    assert ResourceState.FAILED not in [state for state, _ in ec.snapshot.resources[job].times]
    assert "a: stopped (" in ec.get(job, "outcome")
