"""A researcher made of nothing but an MQTT client and JSON: it can say what ours never would."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

import paho.mqtt.client as mqtt

from tests.support.brokers import Broker
from tests.support.listener import Subscriber
from tests.support.waiting import wait_until


def plan_fields(source: str, name: str = "p") -> dict[str, Any]:
    """Return a plan as the fields of a request for its approval."""
    content = source.encode()
    digest = hashlib.sha256(content).hexdigest()
    return {"name": name, "sha256": digest, "size_bytes": len(content), "source": source}


class RawResearcher(Subscriber):
    """Hears every reply to ``researcher_id``; a context manager."""

    def __init__(self, broker: Broker, researcher_id: str = "raw") -> None:
        super().__init__(broker.port, f"general/researcher/{researcher_id}/#")
        self.researcher_id = researcher_id
        self._sequence = 0
        self.replies: list[dict[str, Any]] = []

    def message(self, command: str, **fields: Any) -> dict[str, Any]:
        """Return a valid message; ``fields`` adds or replaces."""
        self._sequence += 1
        return {
            "command": command,
            "protocol_version": "fedmon/1",
            "researcher_id": self.researcher_id,
            "id": uuid.uuid4().hex,
            "session": "raw-session",
            "sequence": self._sequence,
            "expires": "2100-01-01T00:00:00Z",
        } | fields

    def send(
        self, payload: bytes | dict[str, Any], *, topic: str | None = None, qos: int = 1, retain: bool = False
    ) -> None:
        """Publish bytes, or a message as JSON, to every node or on a topic."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self._client.publish(topic or f"general/nodes/{self.researcher_id}", data, qos=qos, retain=retain)

    def reply_to(self, message: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the reply that echoes a message's id."""
        found = wait_until(
            lambda: [reply for reply in list(self.replies) if reply.get("id") == message["id"]],
            timeout_s,
            what=f"a reply to {message['command']}",
        )
        return found[0]

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a valid message, to one node if it names that, and return its reply."""
        message = self.message(command, **fields)
        own = f"/{fields['node_id']}" if "node_id" in fields else ""
        self.send(message, topic=f"general/nodes/{self.researcher_id}{own}")
        return self.reply_to(message)

    def answered(self, command: str | None = None) -> dict[str, Any] | None:
        """Send another ping, and return the first reply (of a command) so far; for `wait_until`."""
        self.send(self.message("ping"))
        return next((reply for reply in list(self.replies) if command in (None, reply["command"])), None)

    def heard(self, command: str) -> list[dict[str, Any]]:
        """Return the replies and messages of one command so far."""
        return [reply for reply in list(self.replies) if reply["command"] == command]

    def errors(self, code: str) -> list[dict[str, Any]]:
        """Return the error replies of one code so far."""
        return [reply for reply in self.heard("error") if reply["code"] == code]

    def hear(self, message: mqtt.MQTTMessage) -> None:
        self.replies.append(json.loads(message.payload))
