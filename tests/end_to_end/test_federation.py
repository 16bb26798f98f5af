"""The main job over both engines: find nodes, ask them, let owners decide, watch, and survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from fedmon.common.settings.values import ResearcherSettings
from fedmon.common.wire.messages import PlanDecision, PlanStatus
from fedmon.researcher.federation import Federation
from fedmon.researcher.roster import Node, NodeState
from tests.support.brokers import ENGINES, Broker, answering
from tests.support.node_process import NO_RUNS, NodeProcess, write_node_folder, write_node_with_cells
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

PLAN = """
from fedmon import TrainingPlan


class Rows(TrainingPlan):
    def run(self, context):
        return {"rows": 3}
"""


@pytest.fixture(scope="module", params=list(ENGINES))
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests with an engine; who stops it starts it again."""
    running = Broker(request.param, tmp_path_factory.mktemp(request.param))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def started(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    with ExitStack() as stack:
        running = {}
        folder = tmp_path_factory.mktemp("nodes")
        for node_id in ("north", "south"):
            made = write_node_with_cells(folder / node_id, url=broker.url, runs=NO_RUNS)
            running[node_id] = stack.enter_context(NodeProcess(made))
        yield running


@pytest.fixture
def nodes(started: dict[str, NodeProcess]) -> dict[str, NodeProcess]:
    """Two nodes that run, whatever the test before did to them."""
    for node in started.values():
        if not node.alive():
            node.start()
    return started


@pytest.fixture
def federation(broker: Broker, tmp_path: Path, nodes: dict[str, NodeProcess]) -> Iterator[Federation]:
    with broker.researcher(tmp_path) as fed:
        wait_until(lambda: {"north", "south"} <= set(fed.nodes().online), what="two nodes online")
        yield fed


def undelivered(node: NodeProcess) -> dict[str, int]:
    """Return how many messages a node keeps for each researcher, as its owner is told."""
    found: dict[str, int] = document_here("node", "status", "--dir", node.folder)["undelivered"]
    return found


def test_every_node_answers_ping_list_and_search(federation: Federation) -> None:
    pings, listed, found = federation.ping(), federation.datasets(), federation.search(["cells", "south"])

    assert set(pings.ok) == {"north", "south"}
    assert [d.name for d in listed.ok["north"].datasets] == ["cells"]
    assert listed.ok["north"].datasets[0].shape == [3, 2]
    assert {node: reply.count for node, reply in found.ok.items()} == {"north": 0, "south": 1}


def test_an_owners_decision_is_pushed_and_the_digest_is_the_same_everywhere(
    federation: Federation, nodes: dict[str, NodeProcess], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text(PLAN)
    decisions: list[PlanDecision] = []
    federation.on("decision", decisions.append)

    asked = federation.approve(plan, nodes=["north"])
    sha256 = asked.ok["north"].sha256
    folder = nodes["north"].folder
    shown = document_here("node", "plan", "show", sha256, "--dir", folder)
    document_here("node", "plan", "approve", sha256, "--note", "fine", "--dir", folder)
    wait_until(lambda: decisions, what="the decision")

    assert shown["plan"]["sha256"] == sha256
    assert [(d.node_id, d.status.value, d.note, d.sha256) for d in decisions] == [("north", "approved", "fine", sha256)]
    assert federation.plan_status(plan, nodes=["north"]).ok["north"].status is PlanStatus.APPROVED
    assert federation.plan_status(plan, nodes=["south"]).ok["south"].status is None
    wait_until(lambda: undelivered(nodes["north"]) == {}, what="the decision to be acknowledged")


def undecided(federation: Federation, folder: Path, name: str) -> tuple[str, list[PlanDecision]]:
    """Ask node north to approve a plan; return its digest, and the decisions that come from now on."""
    plan, decisions = folder / "plan.py", list[PlanDecision]()
    plan.write_text(PLAN.replace("Rows", name))
    federation.on("decision", decisions.append)
    return federation.approve(plan, nodes=["north"]).ok["north"].sha256, decisions


def test_a_decision_made_while_a_researcher_was_denied_is_pushed_once_it_is_allowed(
    federation: Federation, nodes: dict[str, NodeProcess], tmp_path: Path
) -> None:
    sha256, decisions = undecided(federation, tmp_path, "Denied")

    for words in (("policy", "deny", "*"), ("plan", "reject", sha256), ("policy", "allow", "*")):
        document_here("node", *words, "--dir", nodes["north"].folder)

    wait_until(lambda: decisions, what="the decision")
    assert [(each.sha256, each.status.value) for each in decisions] == [(sha256, "rejected")]


def test_a_decision_made_while_the_node_is_stopped_is_pushed_at_its_start(
    federation: Federation, nodes: dict[str, NodeProcess], tmp_path: Path
) -> None:
    sha256, decisions = undecided(federation, tmp_path, "Others")
    node = nodes["north"]

    assert node.stop() == 0
    document_here("node", "plan", "reject", sha256, "--note", "no", "--dir", node.folder)
    waiting = undelivered(node)
    node.start()
    wait_until(lambda: decisions, what="the decision")

    assert waiting == {"alice": 1}
    assert [(d.status.value, d.note) for d in decisions] == [("rejected", "no")]


def test_live_metrics_come_numbered_and_none_is_lost(federation: Federation) -> None:
    with federation.monitor(interval_s=0.2, nodes=["north"]) as watch:
        samples = [watch.next(timeout_s=60) for _ in range(6)]

    numbers = [sample.seq for sample in samples if sample]
    assert numbers == list(range(numbers[0], numbers[0] + 6))
    assert watch.lost == 0
    assert samples[-1] is not None
    assert samples[-1].values["host_memory_total_bytes"] > 0  # type: ignore[operator]


def test_a_killed_node_is_seen_offline_within_two_seconds_with_a_reason(
    federation: Federation, nodes: dict[str, NodeProcess]
) -> None:
    seen: list[Node] = []
    federation.on("presence", seen.append)

    nodes["south"].kill()
    wait_until(lambda: any(node.state is NodeState.OFFLINE for node in seen), what="south offline")

    assert {(node.node_id, node.reason) for node in seen if node.state is NodeState.OFFLINE} == {
        ("south", "connection lost")
    }
    assert federation.ping().ok.keys() == {"north"}


def test_node_and_researcher_work_again_after_the_brokers_return(broker: Broker, federation: Federation) -> None:
    broker.kill()
    wait_until(lambda: not federation.status().connected, what="the loss to be noticed")

    broker.start()

    wait_until(lambda: answering(federation) == {"north", "south"}, what="both nodes to answer")


def test_a_node_that_starts_before_its_broker_answers_once_it_is_there(broker: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "early", url=broker.url)
    broker.stop()

    with NodeProcess(folder):
        wait_until((folder / "control.sock").exists, what="the node to run")
        broker.start()
        with broker.researcher(tmp_path, "bob") as fed:
            wait_until(lambda: "early" in answering(fed), what="the node to answer")


def test_mqtt_5_works_end_to_end_on_mosquitto(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "five", url=mosquitto.url, broker={"mqtt_version": "5"})
    version_5 = msgspec.structs.replace(mosquitto.settings, mqtt_version="5")
    settings = ResearcherSettings(id="bob", broker=version_5, folder=tmp_path / "bob")

    with NodeProcess(folder) as node, Federation(settings=settings) as fed:
        wait_until(lambda: "five" in answering(fed), what="the node to answer")
        with fed.monitor(interval_s=0.2) as watch:
            assert watch.next(timeout_s=60) is not None
        node.kill()
        wait_until(lambda: fed.nodes()["five"].state is NodeState.OFFLINE, what="five offline")


def test_a_stopped_node_ends_and_says_so(federation: Federation, nodes: dict[str, NodeProcess]) -> None:
    code = nodes["north"].stop()
    wait_until(lambda: federation.nodes()["north"].state is NodeState.OFFLINE, what="north offline")

    assert code == 0
    assert federation.nodes()["north"].reason == "stopped by its owner"
    assert "another process uses the id" not in nodes["north"].log()
    assert "error" not in document_here("node", "audit", "verify", "--dir", nodes["north"].folder)
