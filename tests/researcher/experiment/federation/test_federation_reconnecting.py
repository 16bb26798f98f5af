"""Experiments over a federation that are taken up again after the death of their process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.researcher.experiment.controller import ExperimentController
from fedmon.researcher.experiment.states import ResourceState
from tests.researcher.experiment.federation.conftest import TwoNodes
from tests.support.waiting import wait_until

STARTED, STOPPED, FAILED = ResourceState.STARTED, ResourceState.STOPPED, ResourceState.FAILED

SCRIPT = """
import os, sys
from fedmon import Federation
from fedmon.researcher.experiment.controller import ExperimentController
from fedmon.researcher.experiment.states import ResourceAction, ResourceState

url, folder, plan_file = sys.argv[1:]
fed = Federation(url, folder=folder + "/alice", researcher_id="alice").start()
ec = ExperimentController("trial", folder + "/runs", federation=fed)
nodes = [ec.register_resource("fedmon::Node", nodeId=name) for name in ("a", "b")]
plan = ec.register_resource("fedmon::TrainingPlan", plan=plan_file, connectedTo=nodes)
short = ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], tags=["cells"])
long = ec.register_resource("fedmon::Job", connectedTo=[plan, nodes[0]], args={"reports": 1, "spin": True})
total = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=short)
after = ec.register_resource("fedmon::Job", connectedTo=[plan, nodes[0]], inputsFrom=total)
command = ec.register_resource("local::Process", command=["sleep", "60"], critical=False)
ec.register_condition(after, ResourceAction.START, long, ResourceState.STOPPED)
ec.deploy()
assert ec.wait_finished(total, timeout=20) and ec.wait_started([long, command], timeout=20)
print(ec.run_dir, ec.get(command, "pid"), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def before(two: TwoNodes) -> set[str]:
    return set(two.fed.jobs().runs())


@pytest.fixture
def left(two: TwoNodes, before: set[str]) -> Iterator[Path]:
    words = [sys.executable, "-c", SCRIPT, two.url, str(two.folder), str(two.plan)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run_dir, pid = done.stdout.split()
    yield Path(run_dir)
    subprocess.run(["kill", "-9", pid], check=True)


def test_runs_are_adopted_and_what_waited_for_them_goes_on(two: TwoNodes, before: set[str], left: Path) -> None:
    with ExperimentController.reconnect(left, federation=two.fed) as ec:
        (_, _, _, _, long, total, after, command) = ec.resources
        job_id = ec.get(long, "jobId")
        wait_until(lambda: ec.state(command) is FAILED)
        assert "was a child of the process that died" in ec.snapshot.resources[command].reason
        wait_until(lambda: ec.get_resource(long).handle is not None)  # type: ignore[attr-defined]
        assert ec.state(long) is STARTED
        assert json.loads(ec.get(total, "result"))["rows"] == 6

        ec.stop(long)

        assert ec.wait_finished([long, after], timeout=20), ec.snapshot.resources
        assert ec.get(long, "jobId") == job_id
        assert ec.get_resource(after).results["a"]["mean"] == 5.0  # type: ignore[attr-defined]
        mine = {ec.get(guid, "jobId") for guid in ec.resources if ec.get_resource(guid).is_rm_instance("fedmon::Job")}
    assert {job_id for job_id in two.fed.jobs().runs() if job_id not in before} == mine
