"""A grant from its request to its last run: asked for, decided, run within, refused outside, and seen by both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.wire.messages import PlanDecision
from fedmon.experiment import ExperimentController, ResourceState
from fedmon.researcher.runs.errors import RunFailedError
from tests.support.brokers import Broker
from tests.support.environment import researcher_environment
from tests.support.node_process import NodeProcess, write_node_with_cells
from tests.support.shell_here import document_here, fedmon_here
from tests.support.waiting import wait_until

PLAN = """from fedmon import TrainingPlan


class Rows(TrainingPlan):
    arguments = {"least": range(10)}

    def run(self, context):
        return {"rows": len(list(context.dataset.rows()))}
"""


def test_two_runs_are_granted_and_the_third_is_refused(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_with_cells(
        tmp_path / "north", url=mosquitto.url, runs={"sandbox": "limits"}, metrics={"enabled": False}
    )
    plan = tmp_path / "rows.py"
    plan.write_text(PLAN)
    environ = researcher_environment(mosquitto.url, tmp_path / "shell")
    decisions: list[PlanDecision] = []
    with NodeProcess(folder), mosquitto.researcher(tmp_path) as fed:
        wait_until(lambda: "north" in fed.nodes(), what="the node")
        fed.on("decision", decisions.append)

        # given a plan that was asked for in a shell, and granted for two runs
        words = ("plan", "request", str(plan), "--dataset", "cells", "--purpose", "to count")
        document_here(*words, environ=environ)
        shown = fedmon_here("node", "plan", "show", "rows", "--dir", str(folder)).stdout
        assert "alice asks for cells (dataset_" in shown
        assert "to count" in shown
        document_here("node", "plan", "approve", "rows", "--yes", "--runs", "2", "--dir", folder)

        # then the decision has its terms, and so has the status
        (decision,) = wait_until(lambda: decisions, what="the decision")
        assert decision.grant is not None
        assert (decision.grant.researchers, decision.grant.runs) == (("alice",), 2)
        assert decision.grant.arguments == {"least": "range(10)"}
        assert "2 runs left" in str(fed.plan_status(plan))

        # and when it runs, one outside is refused with the words that ask for it, and does not count
        outside = fedmon_here("run", str(plan), "--tags", "cells", "-a", "least=10", environ=environ)
        assert outside.returncode == 4, outside.stdout
        assert "argument 'least' is 10, and its rule is range(10)" in outside.stderr
        assert "fedmon plan request rows.py --dataset cells --purpose" in outside.stderr
        for _ in range(2):
            assert fed.run(plan, tags=["cells"], args={"least": 9}).result(timeout_s=60) == {"north": {"rows": 3}}
        third = fed.run(plan, tags=["cells"])
        assert third.states()["north"].state == "outside-grant"
        with pytest.raises(RunFailedError, match="its 2 runs are used up") as failed:
            third.result(timeout_s=60)
        assert failed.value.exit_code == 4
        assert "0 runs left" in str(fed.plan_status(plan))

        # and an experiment asks for what its jobs need
        with ExperimentController("trial", tmp_path / "runs", federation=fed) as ec:
            other = tmp_path / "other.py"
            other.write_text(PLAN.replace("Rows", "Others"))
            node = ec.register_resource("fedmon::Node", nodeId="north")
            resource = ec.register_resource("fedmon::TrainingPlan", plan=str(other), connectedTo=[node])
            job = ec.register_resource("fedmon::Job", tags=["cells", "north"], connectedTo=[resource, node])
            ec.deploy()
            wait_until(lambda: ec.state(resource) is ResourceState.RESERVED, what="the request for approval")
            shown = fedmon_here("node", "plan", "show", "other", "--dir", str(folder)).stdout
            assert "alice asks for cells (dataset_" in shown
            document_here("node", "plan", "approve", "other", "--yes", "--dir", folder)
            assert ec.wait_finished([job], timeout=60)
            assert ec.state(job) is ResourceState.STOPPED
