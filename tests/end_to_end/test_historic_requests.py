"""Scripts of Fed-BioMed over real nodes: the historic names do the main job."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedmon.common.plan_source import load_source
from fedmon.common.settings.values import ResearcherSettings
from fedmon.common.training_plan import TrainingPlan
from fedmon.researcher.federation import Federation
from fedmon.researcher.requests import Requests
from tests.support.brokers import Broker
from tests.support.fedbiomed4 import Message, V4Node, payload
from tests.support.historic_repository import HistoricRepository
from tests.support.node_process import NO_RUNS, NodeProcess, plain_environment, write_node_with_cells
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

(BLOOD,) = payload("search_reply")["databases"]
ROOT = Path(__file__).parents[2]


class Rows(TrainingPlan):
    def run(self, context: object) -> dict[str, int]:  # noqa: ARG002 - a plan need not look at what it is given
        return {"rows": 3}


# --- real nodes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """Three real nodes: two hold a table and obey everybody, the third obeys bob alone."""
    with ExitStack() as stack:
        running = {}
        for node_id, researchers in (("north", ["*"]), ("south", ["*"]), ("strict", ["bob"])):
            folder = tmp_path_factory.mktemp(node_id) / node_id
            write_node_with_cells(folder, url=lasting_broker.url, runs=NO_RUNS, researchers=researchers)
            running[node_id] = stack.enter_context(NodeProcess(folder))
        yield running


@pytest.fixture
def requests(lasting_broker: Broker, tmp_path: Path, nodes: dict[str, NodeProcess]) -> Iterator[Requests]:
    with lasting_broker.researcher(tmp_path) as federation, Requests(federation) as made:
        wait_until(lambda: set(nodes) <= set(federation.nodes().online), what="three nodes online")
        yield made


def test_a_historic_script_finds_asks_and_hears_of_decisions(
    requests: Requests, nodes: dict[str, NodeProcess], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    pinged, listed = requests.ping_nodes(), requests.list(verbose=True)
    found, nothing = requests.search(("cells", "south")), requests.search(["unheard of"])
    named = requests.training_plan_approve(Rows, "counts rows", nodes=["north", "south", "strict", "nowhere"])
    everybody = requests.training_plan_approve(Rows, "counts rows")
    elapsed_s = time.monotonic() - started

    assert sorted(pinged) == ["north", "south"]
    assert {node: [one["name"] for one in datasets] for node, datasets in listed.items()} == {
        "north": ["cells"],
        "south": ["cells"],
    }
    assert listed["north"][0]["shape"] == [3, 2]
    assert str(nodes["north"].folder) not in str(listed)
    assert list(found) == ["south"]
    assert len(found["south"][0]["dtypes"]) == 2
    assert nothing == {}
    assert named == {"north": True, "south": True, "strict": False, "nowhere": False}
    assert everybody == {"north": True, "south": True, "strict": False}
    assert elapsed_s < 25
    assert "policy" in caplog.text

    approve = ("node", "plan", "approve", "Rows", "--sha256", load_source(Rows).sha256, "--note", "fine")
    document_here(*approve, "--dir", nodes["north"].folder)
    (decision,) = requests.get_messages(["plan-decision"], time=10)
    assert (decision["node_id"], decision["status"], decision["note"]) == ("north", "approved", "fine")


def of_alice(broker: Broker, tmp_path: Path) -> dict[str, str]:
    return plain_environment(
        FEDMON_RESEARCHER_FOLDER=str(tmp_path / "alice"),
        MQTT_BROKER="127.0.0.1",
        MQTT_BROKER_PORT=str(broker.port),
        RESEARCHER_ID="alice",
    )


def test_the_page_for_migrants_runs_as_it_stands(
    lasting_broker: Broker, nodes: dict[str, NodeProcess], tmp_path: Path
) -> None:
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/howtos/migrating-from-fedbiomed.md").read_text(), re.DOTALL
    )
    (tmp_path / "plan.py").write_bytes(load_source(Rows).source)

    done = subprocess.run(
        [sys.executable, "-c", block], env=of_alice(lasting_broker, tmp_path), cwd=tmp_path, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()[-2:]) == ["north True", "south True"]
    assert str(dict.fromkeys(nodes, True) | {"strict": False}) in done.stdout


# --- nodes of Fed-BioMed 4.4 --------------------------------------------------------------------------------------


@pytest.fixture
def v4(mosquitto: Broker, tmp_path: Path) -> Iterator[tuple[Requests, list[V4Node]]]:
    with ExitStack() as stack:
        found = [
            stack.enter_context(V4Node(mosquitto, "node_1", databases=(BLOOD,))),
            stack.enter_context(V4Node(mosquitto, "node_2")),
        ]
        settings = ResearcherSettings(
            id="alice", broker=mosquitto.settings, folder=tmp_path, wire="fedbiomed4", timeout_s=10.0
        )
        federation = stack.enter_context(Federation(settings=settings))
        requests = stack.enter_context(Requests(federation))
        wait_until(lambda: sorted(requests.ping_nodes()) == ["node_1", "node_2"])
        yield requests, found
        assert [node.faults for node in found] == [[], []]


def test_nodes_of_version_4_4_answer_the_same_script(v4: tuple[Requests, list[V4Node]]) -> None:
    requests, _ = v4

    listed, found = requests.list(), requests.search(tuple(BLOOD["tags"]))

    without_types = {name: value for name, value in BLOOD.items() if name != "dtypes"}
    assert listed == {"node_1": [without_types], "node_2": []}
    assert found == {"node_1": [BLOOD]}
    assert requests.search(["unheard of"]) == {}


def test_what_is_sent_by_hand_reaches_nodes_of_version_4_4_and_comes_back_as_it_was(
    v4: tuple[Requests, list[V4Node]],
) -> None:
    requests, _ = v4
    with HistoricRepository() as repository:
        plan = {"researcher_id": "alice", "training_plan_url": repository.put("plan.py", b"import math\n")}
        requests.send_message({"command": "approval", "description": "d", "sequence": 41, **plan})
        approvals = requests.get_responses(["approval"])
        other = plan | {"training_plan_url": repository.put("other.py", b"import math\n")}
        for each in (plan, other):
            requests.send_message({"command": "training-plan-status", "job_id": "mine", **each}, client="node_1")
        status, next_status = requests.get_responses(["training-plan-status"])
        gone = plan | {"training_plan_url": f"{plan['training_plan_url']}.gone"}
        requests.send_message({"command": "approval", "description": "d", "sequence": 42, **gone}, client="node_1")
        (failure,) = requests.get_responses(["approval"], only_successful=False)

    assert {(one["node_id"], one["sequence"], one["success"], one["status"]) for one in approvals} == {
        ("node_1", 41, True, 200),
        ("node_2", 41, True, 200),
    }
    assert (failure["node_id"], failure["sequence"], failure["success"]) == ("node_1", 42, False)
    assert status.keys() == payload("training_plan_status_reply").keys()
    assert (status["job_id"], status["training_plan_url"]) == ("mine", plan["training_plan_url"])
    assert next_status["training_plan_url"] == other["training_plan_url"]
    assert status["status"] == "Not Registered"


def test_the_number_that_a_script_gets_is_the_one_that_a_node_of_version_4_4_hears(
    v4: tuple[Requests, list[V4Node]],
) -> None:
    requests, (node, _) = v4
    ping = {"command": "ping", "researcher_id": "alice"}

    numbers = [requests.send_message(ping, client="node_1", add_sequence=True) for _ in range(3)]
    pongs = requests.get_responses(["pong"])

    first = numbers[0] or 0
    assert numbers == [first, first + 1, first + 2]
    assert sorted(pong["sequence"] for pong in pongs) == numbers
    assert set(numbers) <= {asked["sequence"] for asked in node.asked("ping")}


def train(node: V4Node) -> Message:
    return payload("train_request") | {"researcher_id": "alice", "dataset_id": f"data of {node.node_id}"}


def test_nodes_of_version_4_4_train_and_their_replies_are_collected(v4: tuple[Requests, list[V4Node]]) -> None:
    requests, nodes = v4

    for node in nodes:
        requests.send_message(train(node), client=node.node_id)
    replies = requests.get_responses(["train", "error"], timeout=60)

    assert [node.asked("train") for node in nodes] == [[train(node)] for node in nodes]
    expected = [node.reply("train_reply", train(node), dataset_id=train(node)["dataset_id"]) for node in nodes]
    assert sorted(replies, key=lambda one: one["node_id"]) == expected
    assert requests.queue.qsize() == 0


def test_a_round_of_training_takes_its_time_and_is_asked_for_once(
    v4: tuple[Requests, list[V4Node]], mosquitto: Broker
) -> None:
    requests, (node, _) = v4
    node.answer = lambda message: [] if message["command"] == "train" else node.honest(message)
    requests.send_message(train(node), client="node_1")
    wait_until(lambda: node.asked("train"), what="the question")
    mosquitto.restart()
    wait_until(lambda: requests.ping_nodes() == ["node_1", "node_2"], what="both nodes after a restart of the broker")
    early = requests.get_responses(["train", "error"], timeout=1.0)

    (reply,) = node.honest(train(node))
    node.send(reply)
    late = requests.get_responses(["train", "error"], timeout=60)

    assert list(early) == []
    assert list(late) == [reply]
    assert len(node.asked("train")) == 1


def test_why_a_node_of_version_4_4_does_not_train_is_collected_also_if_it_came_later(
    v4: tuple[Requests, list[V4Node]], mosquitto: Broker
) -> None:
    requests, _ = v4
    with V4Node(mosquitto, "node_3") as node:
        error = node.reply("error", train(node), errnum="FB313: no dataset matching request")
        node.answer = lambda _message: [error]
        requests.send_message(train(node), client="node_3")
        replies = requests.get_responses(["train", "error"], timeout=60, only_successful=False)

    assert list(replies) == [error]


def test_scalars_of_version_4_4_reach_the_monitor_callback_field_for_field(
    v4: tuple[Requests, list[V4Node]],
) -> None:
    requests, (node, _) = v4
    scalar = payload("add_scalar") | {"node_id": "node_1", "researcher_id": "alice"}
    seen: list[Message] = []
    requests.add_monitor_callback(seen.append)

    def heard() -> bool:
        node.send(scalar, topic="general/monitoring")
        return bool(seen)

    wait_until(heard)
    assert seen[0] == scalar
