"""Requests to bare echo nodes, against a bare fan-out and fan-in on paho with the same nodes in the same run.

``python -m bench.requests --nodes 20``
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from bench.echo_nodes import VERSION, Message, without_delay
from bench.line import medians, print_line
from fedmon.broker.engine import choose_engine
from fedmon.researcher.federation import Federation

PEER = "peer"
PLAN = '''"""A plan of ordinary size."""

import math


class Plan:
    def train(self, rows):
        return [math.sqrt(value) for value in rows]
'''


@contextlib.contextmanager
def echo_nodes(port: int, count: int) -> Iterator[None]:
    """Run echo nodes in a separate process."""
    command = [sys.executable, "-m", "bench.echo_nodes", "--port", str(port), "--nodes", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(10)


class BarePeer:
    """A client written by hand: publish on paho, parse each reply in its callback, count to the number expected."""

    def __init__(self, port: int, count: int) -> None:
        self._count, self._left = count, 0
        self._done = threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, PEER)
        self.client.on_socket_open = without_delay
        self.client.on_message = self._on_message
        subscribed = threading.Event()
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe(f"general/researcher/{PEER}/main/+", 1)
        assert subscribed.wait(5)

    def _on_message(self, _client: Any, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        if json.loads(message.payload)["success"]:
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def ask(self, **fields: Any) -> None:
        """Ask all nodes and wait for all answers."""
        self._left = self._count
        self._done.clear()
        request: Message = {
            "protocol_version": VERSION,
            "researcher_id": PEER,
            "instance": "main",
            "id": str(uuid.uuid4()),
            "session": "s",
            "sequence": 1,
            "expires": "2036-01-01T00:00:00Z",
        }
        self.client.publish(f"general/nodes/{PEER}", json.dumps(request | fields))
        assert self._done.wait(60)

    def approve(self, path: Path) -> None:
        """Hand a plan in by hand."""
        source = path.read_bytes()
        digest = hashlib.sha256(source).hexdigest()
        self.ask(command="approval", name="plan", sha256=digest, size_bytes=len(source), source=source.decode())

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


def milliseconds(run: Callable[[], object]) -> Callable[[], float]:
    """Return a function that times one call."""

    def timed() -> float:
        gc.collect()
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1000

    return timed


def answered(outcomes: Any, count: int) -> None:
    """Make sure that no node was left out."""
    assert len(outcomes.ok) == count, str(outcomes)


def measure(count: int, rounds: int) -> None:
    """Measure every case."""
    with (
        tempfile.TemporaryDirectory() as folder,
        choose_engine("mosquitto")() as broker,
        echo_nodes(broker.port, count),
        Federation(broker.url, folder=folder, timeout_s=60) as federation,
    ):
        plan = Path(folder) / "plan.py"
        plan.write_text(PLAN)
        peer = BarePeer(broker.port, count)
        tags, none = ["breast", "cancer"], ["nothing"]
        cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "ping": (federation.ping, lambda: peer.ask(command="ping")),
            "list": (federation.datasets, lambda: peer.ask(command="list")),
            "search": (lambda: federation.search(tags), lambda: peer.ask(command="search", tags=tags)),
            "search-none": (lambda: federation.search(none), lambda: peer.ask(command="search", tags=none)),
            "approve": (lambda: federation.approve(plan), lambda: peer.approve(plan)),
        }
        assert len(federation.nodes().online) == count
        for case, (ours, by_hand) in cases.items():
            answered(ours(), count)
            by_hand()
            one, other = medians(rounds, milliseconds(ours), milliseconds(by_hand))
            print_line("requests", case, ours=one, peer=other, unit="ms")
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=None, help="default: 100, or 15 with hundreds of nodes")
    arguments = parser.parse_args()
    measure(arguments.nodes, arguments.rounds or (100 if arguments.nodes < 200 else 15))


if __name__ == "__main__":
    main()
