"""Two real nodes with a dataset each, for the resource types of a federation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.experiment.controller import ExperimentController
from tests.support.node_process import NodeProcess
from tests.support.two_nodes import TwoNodes, two_nodes
from tests.support.waiting import wait_until


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
    with two_nodes(tmp_path_factory.mktemp("federation")) as running:
        yield running


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
