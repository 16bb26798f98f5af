"""Bare nodes on paho that answer in our wire and do nothing else: the other end of every comparison.

``python -m bench.echo_nodes --port 1883 --nodes 20`` runs them all on one selector loop, prints ``ready`` when each
is subscribed, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import selectors
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

Message = dict[str, Any]
VERSION = "fedmon/1"
EPOCH = "2026-01-01T00:00:00Z"
KEEPALIVE_S = 600
DATASETS: list[Message] = [
    {
        "dataset_id": f"dataset-{number}",
        "name": f"table {number}",
        "data_type": "csv",
        "tags": ["breast", "cancer", f"part-{number}"],
        "description": "rows of a table",
        "shape": [190, 32],
        "dtypes": None,
    }
    for number in range(2)
]


def now_utc() -> str:
    """Return the present moment as the wire writes it."""
    return datetime.now(UTC).isoformat()


def presence(node_id: str, boot: int, state: str = "online", reason: str = "") -> Message:
    """Return the message that a node retains on its status topic."""
    return {
        "command": "status",
        "protocol_version": VERSION,
        "node_id": node_id,
        "boot": boot,
        "state": state,
        "since": now_utc(),
        "reason": reason,
        "agent_version": "echo",
        "capabilities": [],
        "streams": ["host"],
    }


def answer_to(node_id: str, boot: int, request: Message) -> Message | None:
    """Return the reply of an honest node that holds two datasets and approves nothing; null where none is due."""
    command = request["command"]
    reply: Message = {
        "protocol_version": VERSION,
        "node_id": node_id,
        "success": True,
        **{key: request[key] for key in ("researcher_id", "id", "session", "sequence")},
    }
    match command:
        case "ping":
            return reply | {"command": "pong", "time": now_utc(), "boot": boot, "agent_version": "echo"}
        case "list" | "search":
            wanted = set(request.get("tags", ()))
            found = [dataset for dataset in DATASETS if wanted <= set(dataset["tags"])]
            return reply | {"command": command, "datasets": found, "count": len(found), "offset": 0}
        case "approval":
            return reply | {
                "command": "approval",
                "plan_id": f"plan-{request['sha256'][:8]}",
                "sha256": request["sha256"],
                "status": "pending",
            }
        case "training-plan-status":
            return reply | {"command": command, "sha256": request["sha256"], "status": None}
        case "monitor":
            return reply | {
                "command": "monitor",
                "action": request["action"],
                "interval_s": request.get("interval_s") or 5.0,
                "lease_s": request.get("lease_s"),
                "streams": ["host"],
                "capabilities": {},
                "metrics": ["host_cpu_busy_ratio"],
            }
    return None


def without_delay(_client: object, _userdata: object, sock: Any) -> None:
    """Switch Nagle's algorithm off, as both sides of a fair comparison do."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class BareNode:
    """One node on a paho client whose socket other code watches."""

    def __init__(self, host: str, port: int, node_id: str, *, commit: sqlite3.Connection | None) -> None:
        self.node_id, self._commit = node_id, commit
        self.subscribed = False
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, node_id)
        self.client.max_inflight_messages_set(200)
        self.client.on_socket_open = without_delay
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        gone = json.dumps(presence(node_id, 1, "offline", "connection lost"))
        self.client.will_set(f"general/status/{node_id}", gone, qos=1, retain=True)
        self.client.connect(host, port, keepalive=KEEPALIVE_S)

    def answer(self, request: Message) -> Message | None:
        """Return the reply to a request; null where none is due."""
        return answer_to(self.node_id, 1, request)

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe([("general/nodes/+", 0), (f"general/nodes/+/{self.node_id}", 1)])

    def _on_subscribe(self, client: mqtt.Client, *_: Any) -> None:
        client.publish(f"general/status/{self.node_id}", json.dumps(presence(self.node_id, 1)), qos=1, retain=True)
        self.subscribed = True

    def _on_message(self, client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        request = json.loads(message.payload)
        if request["command"] == "approval" and self._commit is not None:
            source = request["source"].encode()
            digest = hashlib.sha256(source).hexdigest()
            with self._commit:
                self._commit.execute("INSERT INTO plans VALUES (?, ?, ?)", (self.node_id, digest, source))
        reply = self.answer(request)
        if reply is not None:
            topic = f"general/researcher/{request['researcher_id']}/{request['instance']}/{self.node_id}"
            client.publish(topic, json.dumps(reply), qos=1)


def serve(host: str, port: int, count: int, prefix: str) -> None:
    """Run nodes until standard input ends."""
    with tempfile.TemporaryDirectory() as folder, selectors.DefaultSelector() as selector:
        commit = sqlite3.connect(f"{folder}/plans.sqlite")
        commit.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE plans (node TEXT, sha256 TEXT, source BLOB)"
        )
        nodes = [BareNode(host, port, f"{prefix}{number:04d}", commit=commit) for number in range(count)]
        make_ready(selector, nodes)
        run(selector, nodes)


def make_ready(selector: selectors.BaseSelector, nodes: Sequence[BareNode]) -> None:
    """Wait until each node is subscribed, and print ``ready``."""
    for node in nodes:
        selector.register(node.client.socket(), selectors.EVENT_READ, node)  # type: ignore[arg-type] # a real socket
    while not all(node.subscribed for node in nodes):
        _turn(selector, 0.05)
        for node in nodes:
            flush(node)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)


def run(
    selector: selectors.BaseSelector, nodes: Sequence[BareNode], publish: Callable[[], float] = lambda: 1.0
) -> None:
    """Run nodes until standard input has a line or ends; ``publish`` returns in how many seconds it is due again."""
    keep_alive_at = time.monotonic()
    while _turn(selector, publish()):
        if time.monotonic() >= keep_alive_at:
            keep_alive_at += KEEPALIVE_S / 10
            for node in nodes:
                node.client.loop_misc()


def _turn(selector: selectors.BaseSelector, timeout_s: float) -> bool:
    """Serve the nodes that have something to read; return False when standard input has something."""
    for key, _ in selector.select(timeout_s):
        if key.data is None:
            return False
        key.data.client.loop_read()
        flush(key.data)
    return True


def flush(node: BareNode) -> None:
    """Send the messages that a node has queued."""
    while node.client.want_write():
        node.client.loop_write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--prefix", default="echo-")
    arguments = parser.parse_args()
    serve(arguments.host, arguments.port, arguments.nodes, arguments.prefix)


if __name__ == "__main__":
    main()
