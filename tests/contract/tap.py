"""A bare MQTT client: hears every message of a federation as bytes, and can send any."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.listener import Subscriber
from tests.support.waiting import wait_until


class Heard(NamedTuple):
    """One message, with QoS and retain flag as its sender set them; one that is no JSON has a ``text``."""

    topic: str
    qos: int
    retain: bool
    message: dict[str, Any]


class Tap(Subscriber):
    """Hears everything under ``general`` at the QoS of its sender; a context manager."""

    def __init__(self, url: str, *, on_message: Callable[[Heard], None] | None = None) -> None:
        super().__init__(int(url.rpartition(":")[2]), protocol=mqtt.MQTTv5)
        self.heard: list[Heard] = []
        self._on_heard = on_message
        options = SubscribeOptions(qos=1, retainAsPublished=True, noLocal=True)
        self._client.on_connect = lambda client, *_: client.subscribe("general/#", options=options)

    def send(self, topic: str, message: dict[str, Any], *, qos: int = 1, retain: bool = False) -> None:
        """Publish a message."""
        self._client.publish(topic, json.dumps(message).encode(), qos=qos, retain=retain)

    def first(self, topic: str, **fields: Any) -> Heard | None:
        """Return the first message so far on a topic (a pattern) that has these fields."""
        for each in list(self.heard):
            if re.fullmatch(topic, each.topic) and fields.items() <= each.message.items():
                return each
        return None

    def wait_for(self, topic: str, *, timeout_s: float = 60.0, **fields: Any) -> Heard:
        """Wait for the first message on a topic (a pattern) that has these fields."""
        return wait_until(lambda: self.first(topic, **fields), timeout_s, what=f"{fields} on {topic}")

    def hear(self, message: mqtt.MQTTMessage) -> None:
        if message.payload:
            is_json = message.payload.startswith(b"{")
            content = json.loads(message.payload) if is_json else {"text": message.payload.decode()}
            heard = Heard(message.topic, message.qos, message.retain, content)
            self.heard.append(heard)
            if self._on_heard is not None:
                self._on_heard(heard)
