"""`Messaging`: the historic face of one connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.echo_nodes import Message
from fedmon.common.errors import ConnectionFailedError, InvalidInputError
from fedmon.researcher.federation import Federation
from fedmon.researcher.historic.messaging import ComponentType, Messaging
from fedmon.researcher.requests import Requests
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode, log_record
from tests.support.ports import free_port
from tests.support.stubborn import silent_peer
from tests.support.waiting import wait_until

PING: Message = {"command": "ping", "researcher_id": "alice", "sequence": 5}


class Heard:
    """What a handler was called with."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []

    def __call__(self, msg: Message, topic: str) -> None:
        self.messages.append((topic, msg))

    def commands(self) -> set[tuple[str, str]]:
        return {(topic, message["command"]) for topic, message in self.messages}


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let settings from outside put the researcher's folder into the test's own."""
    monkeypatch.setenv("FEDMON_RESEARCHER_FOLDER", str(tmp_path / "alice"))


@pytest.fixture
def messaging(alice: None, mosquitto: Broker) -> Iterator[Messaging]:
    made = Messaging(Heard(), ComponentType.RESEARCHER, "alice", "127.0.0.1", mosquitto.port)
    yield made
    made.stop()


def heard(messaging: Messaging) -> Heard:
    handler = messaging.handler
    assert isinstance(handler, Heard)
    return handler


def test_it_is_connected_between_start_and_stop_however_often(messaging: Messaging) -> None:
    states = [messaging.is_connected()]
    for _ in range(2):
        messaging.start()
        messaging.start(block=False)
        states.append(messaging.is_connected())
        messaging.stop()
        messaging.stop()
        states.append(messaging.is_connected())

    assert states == [False, True, False, True, False]
    assert messaging.default_send_topic() == "general/nodes"
    assert not messaging.is_failed()


def test_replies_logs_and_metrics_go_to_the_handler_on_the_historic_topics(
    mosquitto: Broker, messaging: Messaging
) -> None:
    log = log_record("INFO", "a plan came in")
    scalar = {"command": "add_scalar", "protocol_version": "fedmon/1", "node_id": "a", "metric": {"loss": 0.5}}
    with EchoNode(mosquitto.port, "a") as node:
        messaging.start()

        def all_heard() -> bool:
            messaging.send_message(PING)
            messaging.send_message({"command": "list", "researcher_id": "alice"}, client="a")
            node.publish("general/logger/a", log)
            node.publish("general/monitoring/a", scalar)
            return len(heard(messaging).commands()) == 4

        wait_until(all_heard)

    assert heard(messaging).commands() == {
        ("general/researcher", "pong"),
        ("general/researcher", "list"),
        ("general/logger", "log"),
        ("general/monitoring", "add_scalar"),
    }
    pong = next(message for _, message in heard(messaging).messages if message["command"] == "pong")
    assert (pong["node_id"], pong["sequence"], pong["success"]) == ("a", 5, True)


def test_start_can_block_until_stop(messaging: Messaging) -> None:
    blocked = threading.Thread(target=messaging.start, kwargs={"block": True})
    blocked.start()
    wait_until(messaging.is_connected)
    alive = blocked.is_alive()

    messaging.stop()
    blocked.join(60)

    assert alive
    assert not blocked.is_alive()


def test_a_stop_during_a_start_ends_the_start_without_an_error(messaging: Messaging) -> None:
    is_stopping = threading.Event()

    def listen_after_another_thread_stopped_it() -> None:
        if is_stopping.is_set():
            messaging.stop()
        messaging.federation.on("telemetry", print)

    messaging.start()
    messaging.at_start(listen_after_another_thread_stopped_it)
    messaging.stop()
    is_stopping.set()

    messaging.start(block=True)

    assert not messaging.is_connected()


class Stopping(Messaging):
    """A connection that another thread stops as soon as it is started, once."""

    is_stopped = False

    def start(self, block: bool = False) -> None:
        super().start(block)
        if not self.is_stopped:
            self.is_stopped = True
            self.stop()


def test_requests_over_a_connection_that_is_stopped_meanwhile_listen_at_its_next_start(
    alice: None, mosquitto: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    messaging = Stopping(None, ComponentType.RESEARCHER, "alice", "127.0.0.1", mosquitto.port)
    with Requests(messaging), EchoNode(mosquitto.port, "a") as node, caplog.at_level(logging.INFO):
        was_connected = messaging.is_connected()
        messaging.start()

        def is_logged() -> bool:
            node.publish("general/logger/a", log_record("INFO", "a plan came in"))
            return "a plan came in" in caplog.text

        wait_until(is_logged)
        messaging.stop()

    assert not was_connected


def test_requests_over_a_connection_that_was_stopped_meanwhile_can_be_closed(alice: None, mosquitto: Broker) -> None:
    messaging = Stopping(None, ComponentType.RESEARCHER, "alice", "127.0.0.1", mosquitto.port)

    Requests(messaging).close()

    assert not messaging.is_connected()


def test_a_stop_during_a_call_at_start_ends_it_without_an_error(messaging: Messaging) -> None:
    def listen_after_another_thread_stopped_it() -> None:
        messaging.stop()
        messaging.federation.on("telemetry", print)

    messaging.start()
    messaging.at_start(listen_after_another_thread_stopped_it)

    assert not messaging.is_connected()


@pytest.mark.usefixtures("alice")
def test_a_closed_port_and_a_silent_peer_end_in_time_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMON_RESEARCHER_TIMEOUT_S", "1")
    with silent_peer() as silent:
        for port in (free_port(), silent):
            messaging = Messaging(
                on_message=None,
                messaging_type=ComponentType.RESEARCHER,
                messaging_id="alice",
                mqtt_broker="127.0.0.1",
                mqtt_broker_port=port,
            )
            started, cpu = time.monotonic(), time.process_time()
            with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{port}"):
                messaging.start()

            assert time.monotonic() - started < 7
            assert time.process_time() - cpu < 0.8
            assert messaging.is_failed()
            assert not messaging.is_connected()


def test_a_researcher_sends_no_errors_and_says_so(messaging: Messaging, caplog: pytest.LogCaptureFixture) -> None:
    messaging.send_error("FB300", extra_msg="boom", researcher_id="bob")

    assert "a researcher sends no errors; not sent to bob: FB300 boom" in caplog.text


@pytest.mark.parametrize("kind", [ComponentType.NODE, 2, None])
def test_only_a_researchers_connection_can_be_made(kind: Any) -> None:
    with pytest.raises(InvalidInputError, match="fedmon node start"):
        Messaging(None, kind, "alice")


def test_requests_uses_the_messaging_that_it_is_given(mosquitto: Broker, messaging: Messaging) -> None:
    with EchoNode(mosquitto.port, "a"):
        with Requests(mess=messaging) as requests:
            wait_until(lambda: requests.ping_nodes() == ["a"])
            same = requests.get_messaging() is messaging is requests.messaging
            requests.send_message(PING)
            wait_until(lambda: ("general/researcher", "pong") in heard(messaging).commands())
            queued = requests.queue.qsize()
        connected = messaging.is_connected()

    assert same
    assert queued == 0
    assert connected


def test_what_is_no_connection_is_ignored_as_ever_but_not_in_silence(
    mosquitto: Broker, alice: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_BROKER_PORT", str(mosquitto.port))
    monkeypatch.setenv("RESEARCHER_ID", "alice")

    with Requests("anything") as requests:
        connected, federation = requests.messaging.is_connected(), requests.messaging.federation

    assert connected
    assert isinstance(federation, Federation)
    assert federation.researcher_id == "alice"
    assert "mess is ignored: a str" in caplog.text
    assert logging.getLogger("fedmon").handlers == []
