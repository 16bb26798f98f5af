"""Very many simulated nodes on one connection, for tests of large federations."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.echo_nodes import Message, answer_to, presence, without_delay

WAIT_S = 60.0


class Crowd:
    """Nodes that share one connection; a context manager. Each says to be online and answers honestly.

    ``answers(node_id, request)`` tells whether a node answers a request. ``received`` holds topic and request.
    """

    def __init__(self, port: int, node_ids: Sequence[str]) -> None:
        self.node_ids, self._port = list(node_ids), port
        self.answers: Callable[[str, Message], bool] = lambda _node_id, _request: True
        self.received: list[tuple[str, Message]] = []
        self._subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, "crowd")
        self._client.max_inflight_messages_set(1000)
        self._client.on_socket_open = without_delay
        self._client.on_connect = lambda client, *_: client.subscribe(
            [("general/nodes/+", 0), ("general/nodes/+/+", 1)]
        )
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._on_message

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._subscribed.wait(WAIT_S)
        self.say(self.node_ids, "online")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

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

    def _on_message(self, client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        request = json.loads(message.payload)
        self.received.append((message.topic, request))
        levels = message.topic.split("/")
        for node_id in self.node_ids if len(levels) == 3 else levels[3:]:
            reply = answer_to(node_id, 1, request) if self.answers(node_id, request) else None
            if reply is not None:
                topic = f"general/researcher/{request['researcher_id']}/{request['instance']}/{node_id}"
                client.publish(topic, json.dumps(reply), qos=1)
