"""A node for tests on bare paho: honest unless a test tells it what to answer instead."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import paho.mqtt.client as mqtt

from bench.echo_nodes import VERSION, Message, answer_to, presence, without_delay
from fedmon.common.clock import Deadline
from tests.support.listener import Subscriber

WAIT_S = 60.0


def late_pong(number: int = 1, **fields: Any) -> Message:
    """Return a pong of an honest node to a process that is no more."""
    return {
        "command": "pong",
        "protocol_version": VERSION,
        "node_id": "a",
        "researcher_id": "alice",
        "id": f"asked-{number}",
        "session": "an earlier process",
        "sequence": number,
        "success": True,
        "time": "2026-01-01T00:00:00Z",
        "boot": 1,
        "agent_version": "echo",
    } | fields


def log_record(level: str, text: str, node_id: str = "a") -> Message:
    """Return a record of a node's log."""
    return {
        "command": "log",
        "protocol_version": VERSION,
        "node_id": node_id,
        "boot": 1,
        "time": "2026-11-21T10:00:00Z",
        "level": level,
        "logger": "fedmon.node.requests.router",
        "msg": text,
    }


def sample(
    node_id: str,
    seq: int,
    t: Sequence[float],
    columns: Mapping[str, Sequence[float | None]],
    *,
    boot: int = 1,
    stream: str = "host",
) -> Message:
    """Return samples of one node; ``t`` is their monotonic time too."""
    return {
        "command": "sample",
        "protocol_version": VERSION,
        "node_id": node_id,
        "boot": boot,
        "stream": stream,
        "seq": seq,
        "t": t,
        "mono": t,
        "m": columns,
    }


class EchoNode(Subscriber):
    """One node on one connection; a context manager that leaves in order.

    ``answer(request)`` replaces the honest answer: a reply, bytes as they are, several in a list, or null for none.
    """

    def __init__(
        self,
        port: int,
        node_id: str,
        *,
        boot: int = 1,
        answer: Callable[[Message], Any] | None = None,
        announced: bool = True,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        own = f"general/nodes/+/{node_id}"
        super().__init__(port, "general/nodes/+", own, client_id=node_id, reconnect_on_failure=False)
        self.node_id, self.boot = node_id, boot
        self.answer = answer or self.honest
        self.received: list[Message] = []
        self.topics: list[str] = []
        self._announced = announced
        self._changed = threading.Condition()
        self._client.max_inflight_messages_set(1000)
        self._client.on_socket_open = without_delay
        if credentials is not None:
            self._client.username_pw_set(*credentials)
        if announced:
            gone = json.dumps(presence(node_id, boot, "offline", "connection lost"))
            self._client.will_set(f"general/status/{node_id}", gone, qos=1, retain=True)

    def honest(self, request: Message) -> Message | None:
        """Return what an honest node answers."""
        return answer_to(self.node_id, self.boot, request)

    def reply(self, request: Message, command: str, **fields: Any) -> Message:
        """Return a reply to a request."""
        echoed = {key: request[key] for key in ("researcher_id", "id", "session", "sequence")}
        return {"command": command, "protocol_version": VERSION, "node_id": self.node_id, **echoed, **fields}

    def error(self, request: Message, code: str, reason: str) -> Message:
        """Return an error as the reply to a request."""
        return self.reply(request, "error", success=False, code=code, reason=reason)

    def refuse(self, command: str = "", *, code: str = "refused", reason: str = "not obeyed") -> None:
        """Answer requests of one command, or all, with an error from now on."""
        self.answer = lambda request: (
            self.error(request, code, reason) if command in ("", request["command"]) else self.honest(request)
        )

    def start(self) -> Self:
        """Connect, subscribe, and say to be online."""
        super().__enter__()
        if self._announced:
            self.say("online")
        return self

    def stop(self) -> None:
        """Leave in order."""
        if self._announced and self._client.is_connected():
            self.say("offline", "stopped by its owner")
        super().__exit__()

    def die(self) -> None:
        """Vanish without a word, as a killed process does."""
        sock: Any = self._client.socket()
        sock.shutdown(socket.SHUT_RDWR)
        self._client.loop_stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def say(self, state: str, reason: str = "") -> None:
        """Publish a presence, and wait until the broker has it."""
        self.publish(f"general/status/{self.node_id}", presence(self.node_id, self.boot, state, reason), retain=True)

    def publish(self, topic: str, message: Message | bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish, and wait until the broker has it, or the connection is lost."""
        payload = message if isinstance(message, bytes) else json.dumps(message).encode()
        sent = self._client.publish(topic, payload, qos=qos, retain=retain)
        if threading.current_thread() is not self._client._thread:
            deadline = Deadline(WAIT_S)
            while self._client.is_connected() and not sent.is_published():
                assert not deadline.passed(), f"{self.node_id} could not publish on {topic}"
                sent.wait_for_publish(1.0)

    def reply_topic(self, request: Message) -> str:
        """Return where the reply to a request goes."""
        return f"general/researcher/{request['researcher_id']}/{request['instance']}/{self.node_id}"

    def sent(self, command: str) -> list[Message]:
        """Return the requests of one command that arrived, each once: a slow answer has a request repeated."""
        return list({request.get("id", id(request)): request for request in reversed(self.copies(command))}.values())[
            ::-1
        ]

    def copies(self, command: str) -> list[Message]:
        """Return the requests of one command as often as they arrived."""
        return [request for request in self.received if request["command"] == command]

    def wait(self, condition: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
        """Wait until something holds that arriving messages change."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), f"{self.node_id} timed out after {timeout_s} s"

    def hear(self, message: mqtt.MQTTMessage) -> None:
        request = json.loads(message.payload)
        answers = self.answer(request) if "id" in request else None
        for answer in answers if isinstance(answers, list) else [answers]:
            if answer is not None:
                self.publish(self.reply_topic(request), answer)
        with self._changed:
            self.received.append(request)
            self.topics.append(message.topic)
            self._changed.notify_all()
