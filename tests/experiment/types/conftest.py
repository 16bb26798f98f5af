"""Two real nodes with a dataset each, for the resource types of a federation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedmon.experiment.controller import ExperimentController
from fedmon.researcher.federation import Federation
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_with_cells
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

PLAN = """
import fedmon


class {name}(fedmon.TrainingPlan):
    arguments = {{"reports": int, "spin": [True, "a", "b"], "fails": str}}
    scalars = ("loss",)

    def run(self, context):
        print("hello from", context.node_id, flush=True)
        for step in range(context.arguments.get("reports", 0)):
            context.report(step=step, loss=1.0 / (step + 1))
        while context.arguments.get("spin") in (True, context.node_id):
            pass
        if context.arguments.get("fails") == context.node_id:
            raise ValueError("no column radius")
        rows = len(list(context.dataset.rows())) if context.dataset else 0
        return {{"rows": rows, "mean": 2.0, **{{name: value + 1 for name, value in context.inputs.items()}}}}
"""


class TwoNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes a and b, of which b lets leave what plans print; ``plan`` is approved on both."""

    url: str
    folder: Path
    plan: Path
    fed: Federation
    processes: dict[str, NodeProcess]
    broker: Broker

    def decide(self, node_id: str, what: str, sha256: str) -> None:
        """Decide about a plan as its owner does."""
        done = fedmon_here("node", "plan", what, sha256, "--dir", str(self.folder / node_id))
        assert done.returncode == 0, done.stderr

    def plan_named(self, name: str) -> Path:
        """Write a plan that nobody has seen."""
        path = self.folder / f"{name.lower()}.py"
        path.write_text(PLAN.format(name=name))
        return path


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def process(ec: ExperimentController, words: object, **attributes: Any) -> int:
    return ec.register_resource("local::Process", command=words, **attributes)


def wired(ec: ExperimentController, plan: Path | type, *node_ids: str, **attributes: Any) -> tuple[list[int], int]:
    """Register nodes, and a plan that is connected to them."""
    nodes = [ec.register_resource("fedmon::Node", nodeId=node_id) for node_id in node_ids]
    return nodes, ec.register_resource("fedmon::TrainingPlan", plan=plan, connectedTo=nodes, **attributes)


def job_on(ec: ExperimentController, plan: int, nodes: list[int], **attributes: Any) -> int:
    return ec.register_resource("fedmon::Job", connectedTo=[plan, *nodes], **attributes)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[ExperimentController]:
    """An experiment without a federation."""
    with ExperimentController("local", tmp_path) as made:
        yield made


@pytest.fixture(scope="package")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("federation")
    plan = folder / "echo.py"
    plan.write_text(PLAN.format(name="Echo"))
    with ExitStack() as opened:
        broker = Broker("mosquitto", tmp_path_factory.mktemp("broker"))
        opened.callback(broker.stop)
        nodes: dict[str, NodeProcess] = {}
        for node_id in ("a", "b"):
            write_node_with_cells(
                folder / node_id,
                node_id=node_id,
                url=broker.url,
                policy={"researchers": ["*"], "job_output": node_id == "b"},
                metrics={"interval_s": 0.2},
            )
            nodes[node_id] = opened.enter_context(NodeProcess(folder / node_id))
        fed = opened.enter_context(Federation(broker.url, folder=folder / "alice", researcher_id="alice"))
        wait_until(lambda: {"a", "b"} <= set(fed.nodes().online), what="two nodes")
        found = TwoNodes(url=broker.url, folder=folder, plan=plan, fed=fed, processes=nodes, broker=broker)
        sha256 = fed.approve(plan).ok["a"].sha256
        for node_id in nodes:
            found.decide(node_id, "approve", sha256)
        yield found
        for node in nodes.values():
            node.stop()


@pytest.fixture
def ec(two: TwoNodes) -> Iterator[ExperimentController]:
    with ExperimentController("trial", two.folder / "runs", federation=two.fed) as made:
        yield made


@pytest.fixture
def node_b(two: TwoNodes) -> Iterator[NodeProcess]:
    """Node b for a test that stops it; runs again afterwards, whatever became of the test."""
    process = two.processes["b"]
    yield process
    if process.alive():
        process.signal(signal.SIGCONT)
    else:
        process.start()
    wait_until(lambda: "b" in two.fed.nodes().online, what="node b")
