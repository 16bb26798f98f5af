"""A run over commands and a federation whose process is killed again and again: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.states import ResourceState
from tests.experiment.types.conftest import TwoNodes, two

__all__ = ["two"]  # the fixture

SCRIPT = """
import os, sys, threading
from fedmon import Federation
from fedmon.experiment.controller import ExperimentController

url, folder, log, plan_file, run_dir, after_s = sys.argv[1:]
fed = Federation(url, folder=folder + "/alice", researcher_id="alice").start()
fed.nodes()
if run_dir:
    ec = ExperimentController.reconnect(run_dir, federation=fed)
else:
    ec = ExperimentController("both", folder + "/runs", federation=fed)
    def command(name):
        return ec.register_resource("local::Process", command=["sh", "-c", f"echo {name} >> {log}; sleep 0.1"])
    nodes = [ec.register_resource("fedmon::Node", nodeId=name) for name in ("a", "b")]
    plan = ec.register_resource("fedmon::TrainingPlan", plan=plan_file, connectedTo=nodes)
    jobs = [ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], tags=["cells"]) for _ in range(3)]
    first, last, middle = command("first"), command("last"), [command(f"middle{each}") for each in range(3)]
    total = ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=jobs)
    for later, earlier in ((jobs[0], first), (middle, jobs[0]), (jobs[1:], middle), (last, jobs[1:])):
        ec.register_condition(later, "START", earlier, "STOPPED")
print(ec.run_dir, flush=True)
threading.Timer(float(after_s), lambda: os.kill(os.getpid(), 9)).start()
ec.deploy()
ec.wait_finished(ec.resources)
threading.Event().wait()
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_is_killed_again_and_again_does_each_step_once(two: TwoNodes, tmp_path: Path, seed: int) -> None:
    chance, log, run_dir = random.Random(seed), tmp_path / "log", ""
    before = set(two.fed.jobs().runs())
    for _ in range(6):
        words = [two.url, str(two.folder), str(log), str(two.plan), run_dir, str(chance.uniform(0.0, 0.8))]
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=90)
        assert done.returncode == -signal.SIGKILL, done.stderr
        run_dir = done.stdout.strip()

    with ExperimentController.reconnect(run_dir, federation=two.fed) as ec:
        ec.deploy()  # where it was killed before it could ask for that
        steps = [
            guid for guid in ec.resources if ec.get_resource(guid).get_rtype() in ("fedmon::Job", "local::Process")
        ]
        (total,) = ec.get_resources_by_type("fedmon::Aggregator")
        assert ec.wait_finished([*steps, total.guid], timeout=90), [
            (each.guid, each.state.name, each.reason) for each in ec.snapshot.resources.values()
        ]

        assert {ec.state(guid) for guid in steps} == {ResourceState.STOPPED}
        assert json.loads(ec.get(total.guid, "result"))["rows"] == 18
    assert sorted(log.read_text().split()) == ["first", "last", "middle0", "middle1", "middle2"]
    ran = {job_id: set(nodes) for job_id, nodes in two.fed.jobs().runs().items() if job_id not in before}
    assert list(ran.values()) == [{"a", "b"}] * 3
