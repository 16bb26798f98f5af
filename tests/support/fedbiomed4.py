"""Parties of Fed-BioMed 4.4, made of nothing but an MQTT client and JSON.

They are as strict as the real ones: a message with a field too many, too few or of another type, of another version or
with an unknown command ends them. Unlike the real ones they say so, in `faults`.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import paho.mqtt.client as mqtt

from tests.support.brokers import Broker
from tests.support.listener import Subscriber
from tests.support.waiting import wait_until

PAYLOADS = Path(__file__).parent.parent / "data" / "fedbiomed4"
Message = dict[str, Any]
Types = dict[str, type | tuple[type, ...]]

_MAY_BE_NULL = {"epoch", "num_samples_trained", "sample_size"}
_COMMANDS = ("ping", "list", "search", "approval", "training_plan_status", "train")


def payload(name: str) -> Message:
    """Return one of the payloads that were written down by hand."""
    document: Message = json.loads((PAYLOADS / f"{name}.json").read_text())
    return document


def _shapes(*names: str) -> dict[str, Types]:
    """Return by command the fields and types of recorded messages; a field that is null there may be anything."""
    return {
        (message := payload(name))["command"]: {
            field: (type(value), NoneType) if field in _MAY_BE_NULL else object if value is None else type(value)
            for field, value in message.items()
        }
        for name in names
    }


REQUESTS = _shapes(*(f"{command}_request" for command in _COMMANDS))
REPLIES = _shapes(*(f"{command}_reply" for command in _COMMANDS), "error", "log", "add_scalar")
RECORD: Types = {
    "name": str, "data_type": str, "tags": list, "description": str, "shape": list, "dataset_id": str,
    "dataset_parameters": (dict, NoneType),
}  # fmt: skip
"""What a node tells of a dataset when asked to list; a search brings ``dtypes``, a list, as well."""


def fault(message: object, shapes: dict[str, Types]) -> str:
    """Return what a program of version 4.4 would stop at; empty when it would not."""
    if not isinstance(message, dict) or message.get("protocol_version") != "1":
        return f"not of version 1: {message}"
    types = shapes.get(message.get("command", ""))
    if types is None:
        return f"unknown command: {message}"
    if message.keys() != types.keys():
        return f"fields {sorted(message.keys() ^ types.keys())} are missing or unknown: {message}"
    wrong = [name for name, kind in types.items() if not isinstance(message[name], kind)]
    return f"fields {wrong} are of another type: {message}" if wrong else ""


class Party(Subscriber):
    """A client with a random id and a clean start, as version 4.4 has it; a context manager.

    It hears at QoS 1, unlike the real ones, to see at which QoS others publish.
    """

    def __init__(self, broker: Broker, shapes: dict[str, Types], topics: tuple[str, ...], send_topic: str) -> None:
        super().__init__(broker.port, *topics)
        self._shapes, self._send_topic = shapes, send_topic
        self.heard: list[Message] = []
        self.faults: list[str] = []
        self.qos: set[int] = set()

    def send(self, message: Message | bytes, *, topic: str | None = None) -> None:
        """Publish a message, or bytes as they are, at QoS 0."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._client.publish(topic or self._send_topic, data)

    def handle(self, message: Message) -> None:
        """Do what this party does with a message that it understands."""

    def hear(self, message: mqtt.MQTTMessage) -> None:
        if self.faults:
            return
        self.qos.add(message.qos)
        try:
            document = json.loads(message.payload)
        except ValueError:
            self.faults.append(f"invalid JSON: {message.payload[:200]!r}")
            return
        problem = fault(document, self._shapes)
        if problem:
            self.faults.append(problem)
            return
        self.handle(document)
        self.heard.append(document)


class V4Researcher(Party):
    """A researcher of version 4.4: hears the replies to everybody."""

    def __init__(self, broker: Broker, researcher_id: str = "researcher_v4") -> None:
        super().__init__(
            broker, REPLIES, ("general/researcher", "general/monitoring", "general/logger"), "general/nodes"
        )
        self.researcher_id = researcher_id

    def request(self, name: str, **fields: Any) -> Message:
        """Return a request that was written down by hand, under our id; ``fields`` replaces values."""
        return payload(f"{name}_request") | {"researcher_id": self.researcher_id} | fields

    def replies(self, command: str) -> list[Message]:
        """Return what came to us with one command."""
        return [one for one in list(self.heard) if one["command"] == command]

    def ask(self, name: str, *, answer: str, **fields: Any) -> Message:
        """Send a request and return the next message of the command that answers it."""
        before = len(self.replies(answer))
        self.send(self.request(name, **fields))
        wait_until(lambda: len(self.replies(answer)) > before or self.faults, what=f"a reply {answer} to {name}")
        assert not self.faults, self.faults
        return self.replies(answer)[before]


class V4Node(Party):
    """A node of version 4.4: answers in order, and says nothing to a search without a match.

    ``answer(message)`` may be replaced; it returns a list of messages or bytes.
    """

    def __init__(self, broker: Broker, node_id: str, *, databases: tuple[Message, ...] = ()) -> None:
        super().__init__(broker, REQUESTS, ("general/nodes", f"general/{node_id}"), "general/researcher")
        self.node_id, self.databases = node_id, databases
        self.answer: Callable[[Message], list[Message | bytes]] = self.honest
        self.decided: dict[str, str] = {}

    def handle(self, message: Message) -> None:
        for answer in self.answer(message):
            self.send(answer)

    def honest(self, message: Message) -> list[Message | bytes]:
        """Return what an honest node answers."""
        match message["command"]:
            case "ping":
                return [self.reply("ping_reply", message, sequence=message["sequence"])]
            case "list":
                listed = [{k: v for k, v in one.items() if k != "dtypes"} for one in self.databases]
                return [self.reply("list_reply", message, databases=listed, count=len(listed))]
            case "search":
                found = [one for one in self.databases if set(message["tags"]) <= set(one["tags"])]
                return [self.reply("search_reply", message, databases=found, count=len(found))] if found else []
            case "approval":
                status, _ = self._download(message["training_plan_url"])
                success = status == 200
                fields = {"sequence": message["sequence"], "status": status if success else 0, "success": success}
                return [self.reply("approval_reply", message, **fields)]
            case "train":
                copied = {name: message[name] for name in ("job_id", "dataset_id")}
                return [self.reply("train_reply", message, **copied)]
            case _:
                _, source = self._download(message["training_plan_url"])
                word = self.decided.get(hashlib.sha256(source).hexdigest(), "Not Registered")
                copied = {name: message[name] for name in ("job_id", "training_plan_url")}
                return [self.reply("training_plan_status_reply", message, status=word, **copied)]

    def reply(self, name: str, request: Message, **fields: Any) -> Message:
        """Return a reply that was written down by hand, from us to who asked; ``fields`` replaces values."""
        return payload(name) | {"node_id": self.node_id, "researcher_id": request["researcher_id"]} | fields

    def asked(self, command: str) -> list[Message]:
        """Return the requests of one command that arrived."""
        return [one for one in list(self.heard) if one["command"] == command]

    @staticmethod
    def _download(url: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, b""
