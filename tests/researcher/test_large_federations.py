"""Federations of hundreds and thousands of nodes: simulated ones, on one connection."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec
import paho.mqtt.client as mqtt
import pytest

from bench.echo_nodes import Message, answer_to, presence, without_delay
from fedmon.common.store.recording import Recording
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import sample
from tests.support.environment import researcher_environment
from tests.support.listener import Subscriber
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

WAIT_S = 60.0


class Crowd(Subscriber):
    """Nodes that share one connection; a context manager. Each says to be online and answers honestly.

    ``answers(node_id, request)`` tells whether a node answers a request. ``received`` holds topic and request.
    """

    def __init__(self, port: int, node_ids: Sequence[str]) -> None:
        super().__init__(port, "general/nodes/+", "general/nodes/+/+")
        self.node_ids = list(node_ids)
        self.answers: Callable[[str, Message], bool] = lambda _node_id, _request: True
        self.received: list[tuple[str, Message]] = []
        self._client.max_inflight_messages_set(1000)
        self._client.on_socket_open = without_delay

    def __enter__(self) -> Self:
        super().__enter__()
        self.say(self.node_ids, "online")
        return self

    def say(self, node_ids: Sequence[str], state: str, reason: str = "") -> None:
        """Publish the presence of nodes, and wait until the broker has them."""
        for node_id in node_ids:
            text = json.dumps(presence(node_id, 1, state, reason))
            sent = self._client.publish(f"general/status/{node_id}", text, qos=1, retain=True)
        sent.wait_for_publish(WAIT_S)

    def sample(self, messages: Sequence[Message]) -> None:
        """Publish batches of samples, each under its node's name."""
        for message in messages:
            sent = self._client.publish(f"general/monitoring/{message['node_id']}", json.dumps(message), qos=1)
        sent.wait_for_publish(WAIT_S)

    def requests(self, command: str) -> list[tuple[str, Message]]:
        """Return topic and request of one command, in the order in which they arrived."""
        return [(topic, request) for topic, request in self.received if request["command"] == command]

    def hear(self, message: mqtt.MQTTMessage) -> None:
        request = json.loads(message.payload)
        self.received.append((message.topic, request))
        levels = message.topic.split("/")
        for node_id in self.node_ids if len(levels) == 3 else levels[3:]:
            reply = answer_to(node_id, 1, request) if self.answers(node_id, request) else None
            if reply is not None:
                topic = f"general/researcher/{request['researcher_id']}/{request['instance']}/{node_id}"
                self._client.publish(topic, json.dumps(reply), qos=1)


def names(count: int) -> list[str]:
    return [f"n{number:05d}" for number in range(count)]


def to(count: int) -> set[str]:
    return {f"general/nodes/alice/{name}" for name in names(count)}


class Silence:
    """Has some nodes answer a command only when each was asked again."""

    def __init__(self, command: str, silent: list[str]) -> None:
        self._command, self._silent = command, set(silent)
        self._asked: set[str] = set()

    def answers(self, node_id: str, request: Message) -> bool:
        if request["command"] != self._command or node_id not in self._silent or node_id in self._asked:
            return True
        self._asked.add(node_id)
        return False


def test_more_than_200_silent_nodes_are_asked_again_by_one_broadcast_and_fewer_or_named_ones_one_by_one(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text("rows = 1\n")
    crowd = Crowd(mosquitto.port, names(230))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == 230)
        crowd.answers = Silence("list", names(220)).answers
        listed = federation.datasets()
        federation.ping()  # broadcasts keep their order: the crowd has heard every earlier one
        many = crowd.requests("list")

        def asks_few_one_by_one() -> bool:  # a busy machine may be late with other answers, too: then once more
            crowd.answers, before = Silence("list", names(20)).answers, len(crowd.requests("list"))
            federation.datasets()
            again = {topic for topic, _ in crowd.requests("list")[before + 1 :]}
            return again >= to(20) and "general/nodes/alice" not in again

        wait_until(asks_few_one_by_one)
        crowd.answers = Silence("search", names(220)).answers
        federation.search(["breast"], nodes=names(220))
        crowd.answers = Silence("approval", names(220)).answers
        approved = federation.approve(plan)

    assert len(listed.ok) == len(approved.ok) == 230
    assert [topic for topic, _ in many[:2]] == ["general/nodes/alice"] * 2
    assert len({request["id"] for _, request in many}) == 1
    # Nodes that are named, or asked to approve, are asked one by one however many they are.
    assert {topic for topic, _ in crowd.requests("search")[220:]} == to(220)
    assert {topic for topic, _ in crowd.requests("approval")[1:]} >= to(220)


def test_nodes_beyond_the_bound_are_counted_logged_once_and_reported(
    mosquitto: Broker, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    settings = msgspec.structs.replace(federate(instance="first").settings, max_nodes=60)
    with Crowd(mosquitto.port, names(70)):
        federation = federate(settings=settings)
        wait_until(lambda: federation.nodes().beyond == 10)
        nodes, pongs = federation.nodes(), federation.ping()
        logged = sum("more than 60 nodes" in record.getMessage() for record in caplog.records)
        environ = researcher_environment(mosquitto.url, settings.folder, FEDMON_RESEARCHER_MAX_NODES="60")
        doctor = document_here("doctor", environ=environ)

    assert len(nodes) == 60 <= len(pongs.ok)
    assert "10 more were heard of and are not kept track of: raise max_nodes" in str(nodes)
    assert federation.status().counters["nodes beyond max_nodes"] == 10
    assert [check["found"] for check in doctor["checks"] if check["name"] == "max_nodes"] == [
        "10 nodes are not kept track of, beyond max_nodes = 60"
    ]
    assert logged == 1


@pytest.mark.parametrize("count", [1_001, pytest.param(10_000, marks=pytest.mark.soak)])
def test_very_many_nodes_are_shown_shortly_and_soon_on_longer_leases(
    mosquitto: Broker, federate: Open, count: int
) -> None:
    crowd = Crowd(mosquitto.port, names(count))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == count)
        crowd.say(names(30), "offline", "stopped by its owner")
        wait_until(lambda: len(federation.nodes().online) == count - 30)
        taken_s = []
        for _ in range(10):
            # Time of this thread alone: others of the suite are at work.
            started = time.thread_time()
            nodes = federation.nodes()
            shown = str(nodes)
            taken_s.append(time.thread_time() - started)
        with federation.monitor():
            leases = wait_until(lambda: crowd.requests("monitor"))

    assert {request["lease_s"] for _, request in leases} == {60.0}
    assert min(taken_s) <= 0.05
    assert f"{count - 30} online, 30 offline; 10 more that are not online" in shown
    assert [line.split()[0] for line in shown.splitlines()[2:22]] == names(20)
    assert len(shown.splitlines()) == 24
    assert len(nodes.rows()) == count
    assert f"{count - 30} online" in repr(nodes)
    assert nodes._repr_html_().count("<tr>") == 21


SERIES = 30


def batch(node_id: str, seq: int, length: int, value: Callable[[str], float]) -> Message:
    """Return samples of one node, one a second."""
    times = [1_800_000_000.0 + at for at in range(seq, seq + length)]
    columns = {f"series_{number}": [value(f"{node_id} {number}") for _ in times] for number in range(SERIES)}
    return sample(node_id, seq, times, columns)


class Walks:
    """Random walks with four decimals, as measured values often are."""

    def __init__(self) -> None:
        self._random, self._at = random.Random(1), dict[str, float]()

    def __call__(self, name: str) -> float:
        self._at[name] = round(self._at.get(name, 50.0) + self._random.gauss(0, 0.01), 4)
        return self._at[name]


@contextlib.contextmanager
def flow(crowd: Crowd, *, speed: float) -> Iterator[Callable[[], int]]:
    """Have each node send ten samples each ten seconds, ``speed`` times as fast, in turn and without a pause.

    Gives a function that returns how many samples of each node were sent.
    """
    ended, sent, value = threading.Event(), [0], Walks()

    def run() -> None:
        started, count = time.monotonic(), len(crowd.node_ids)
        while not ended.is_set():
            for number, node_id in enumerate(crowd.node_ids):
                crowd.sample([batch(node_id, sent[0], 10, value)])
                due = started + (sent[0] + 10 * number / count) / speed
                ended.wait(max(0.0, due - time.monotonic()))
            sent[0] += 10

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: sent[0]
    finally:
        ended.set()
        thread.join(60)


def longest_row(path: Path) -> int:
    with Recording(path, read_only=True) as recording:
        return max((len(batch.t) for batch in recording.read()), default=0)


def test_a_record_merges_its_rows_while_samples_never_pause(mosquitto: Broker, federate: Open, tmp_path: Path) -> None:
    path = tmp_path / "store.fedmon"
    with Crowd(mosquitto.port, names(4)) as crowd, federate(timeout_s=60).record(path) as record:
        wait_until(lambda: crowd.requests("monitor"))
        with flow(crowd, speed=100.0) as sent:
            wait_until(lambda: longest_row(path) >= 150)
            still_coming = sent()
            wait_until(lambda: sent() > still_coming)
        wait_until(lambda: record.counts.pending == 0)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_record_of_100_streams_takes_little_room_after_ten_minutes_without_a_pause(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with (
        Crowd(mosquitto.port, names(100)) as crowd,
        federate(timeout_s=60).record(tmp_path / "store.fedmon") as record,
    ):
        wait_until(lambda: crowd.requests("monitor"))
        with flow(crowd, speed=5.0) as sent:
            wait_until(lambda: sent() >= 650, 600)
            counts = record.counts

    assert counts.stored >= 100 * 600
    assert counts.size_bytes / (counts.stored * SERIES) <= 2.5


def test_with_more_than_200_streams_samples_are_written_in_larger_transactions(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with (
        Crowd(mosquitto.port, names(210)) as crowd,
        federate(timeout_s=60).record(tmp_path / "store.fedmon") as record,
    ):
        wait_until(lambda: crowd.requests("monitor"))
        crowd.sample([batch(name, 0, 1, lambda _: 1.0) for name in names(210)])
        wait_until(lambda: record.counts.stored == 210)
        started = time.monotonic()
        for seq in (1, 2, 3):
            crowd.sample([batch(name, seq, 1, lambda _: 1.0) for name in names(210)])
        wait_until(lambda: record.counts.stored == 840)
        took_s = time.monotonic() - started

    assert took_s >= 4.5
