"""A run over commands and a federation whose process is killed 100 times: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fedmon.experiment import ExperimentController, ResourceState
from tests.experiment.own_types import killed
from tests.experiment.types.conftest import two
from tests.support.two_nodes import TwoNodes

__all__ = ["two"]  # the fixture

KILLS, RUNS = 5, 20
SCRIPT = """
import os, sys, threading
from fedmon import Federation
from fedmon.experiment import ExperimentController

url, folder, log, plan_file, run_dir, after_s = sys.argv[1:]
fed = Federation(url, folder=folder + "/alice", researcher_id="alice").start()
fed.nodes()
if run_dir:
    ec = ExperimentController.reconnect(run_dir, federation=fed)
else:
    ec = ExperimentController("both", folder + "/runs", federation=fed)
    def command(name, after=()):
        words = ["sh", "-c", f"echo {name} >> {log}; sleep 0.1"]
        return ec.register_resource("local::Process", command=words, after=after)
    def job(after):
        return ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], tags=["cells"], after=after)
    nodes = [ec.register_resource("fedmon::Node", nodeId=name) for name in ("a", "b")]
    plan = ec.register_resource("fedmon::TrainingPlan", plan=plan_file, connectedTo=nodes)
    one = job(command("first"))
    middle = [command(f"middle{each}", one) for each in range(3)]
    others = [job(middle), job(middle)]
    command("last", others)
    ec.register_resource("fedmon::Aggregator", function="sum", connectedTo=[one, *others])
print(ec.run_dir, flush=True)
threading.Timer(float(after_s), lambda: os.kill(os.getpid(), 9)).start()
ec.deploy()
threading.Event().wait()
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_that_is_killed_again_and_again_does_each_step_once(two: TwoNodes, tmp_path: Path, seed: int) -> None:
    chance, log, run_dir = random.Random(seed), tmp_path / "log", ""
    before = set(two.fed.jobs().runs())
    for _ in range(KILLS):
        (run_dir,) = killed(SCRIPT, two.url, two.folder, log, two.plan, run_dir, chance.uniform(0.0, 0.8))

    with ExperimentController.reconnect(run_dir, federation=two.fed) as ec:
        ec.deploy()  # where it was killed before it could ask for that
        steps = [*ec.filter_resources("fedmon::Job"), *ec.filter_resources("local::Process")]
        (total,) = ec.filter_resources("fedmon::Aggregator")
        assert ec.wait_finished([*steps, total], timeout=300), ec.snapshot.resources

        assert {ec.state(guid) for guid in steps} == {ResourceState.STOPPED}
        assert json.loads(ec.get(total, "result"))["rows"] == 18
    assert sorted(log.read_text().split()) == ["first", "last", "middle0", "middle1", "middle2"]
    ran = {job_id: set(nodes) for job_id, nodes in two.fed.jobs().runs().items() if job_id not in before}
    assert list(ran.values()) == [{"a", "b"}] * 3
