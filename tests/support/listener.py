"""Everything that passes a broker, as JSON: for tests of what a party says of itself."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any, NamedTuple, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers import Broker


class Heard(NamedTuple):
    """One message; ``retained`` tells that it lay at the broker before we came."""

    topic: str
    message: dict[str, Any]
    retained: bool


class Subscriber:
    """A client that hears filters at QoS 1; a context manager. A subclass takes messages in ``hear``.

    ``options`` are those of paho's client.
    """

    def __init__(self, port: int, *filters: str, client_id: str = "", **options: Any) -> None:
        self._port = port
        self._ready = threading.Event()
        client_id = client_id or f"test-{uuid.uuid4().hex[:8]}"
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, **options)
        self._client.on_connect = lambda client, *_: client.subscribe([(each, 1) for each in filters])
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _client, _userdata, message: self.hear(message)

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def hear(self, message: mqtt.MQTTMessage) -> None:
        """Take a message, on the thread of the client."""


class Listener(Subscriber):
    """Keeps everything that it hears."""

    def __init__(self, broker: Broker, topic_filter: str = "general/#") -> None:
        super().__init__(broker.port, topic_filter)
        self.heard: list[Heard] = []

    def topics(self, *, retained: bool = False) -> set[str]:
        """Return the topics of messages so far, or of those alone that were ``retained``."""
        return {each.topic for each in list(self.heard) if each.retained or not retained}

    def batches(self, stream: str) -> list[dict[str, Any]]:
        """Return the batches of one stream so far."""
        heard = list(self.heard)
        return [each.message for each in heard if "/monitoring" in each.topic and each.message.get("stream") == stream]

    def presences(self, node_id: str) -> list[dict[str, Any]]:
        """Return what one party said of itself so far."""
        return [each.message for each in list(self.heard) if each.topic == f"general/status/{node_id}"]

    def logs(self, node_id: str) -> list[dict[str, Any]]:
        """Return one party's log records so far."""
        return [each.message for each in list(self.heard) if each.topic == f"general/logger/{node_id}"]

    def hear(self, message: mqtt.MQTTMessage) -> None:
        if message.payload:
            self.heard.append(Heard(message.topic, json.loads(message.payload), message.retain))
