"""After kill -9 the replies that nobody had taken are there: in order, none lost, none twice but one that says so."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.echo_nodes import VERSION, Message, now_utc
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.waiting import wait_until

SENT = 1500
"""More than are taken while this process looks again: 300 are taken in 50 ms."""
ROUNDS = 5


def reply(sequence: int) -> Message:
    return {
        "command": "pong",
        "protocol_version": VERSION,
        "node_id": "a",
        "researcher_id": "alice",
        "id": f"asked-{sequence}",
        "session": "an earlier process",
        "sequence": sequence,
        "time": now_utc(),
        "boot": 1,
        "agent_version": "echo",
    }


class Taker:
    """Researchers one after the other on one folder, and the ledger outside of them."""

    def __init__(self, broker: Broker, tmp_path: Path) -> None:
        self._broker, self._folder, self._ledger = broker, tmp_path / "alice", tmp_path / "ledger"
        self._ledger.touch()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, mode: str) -> None:
        command = [sys.executable, "-m", "tests.researcher.replies.taker_process", self._broker.url]
        self.process = subprocess.Popen([*command, str(self._folder), str(self._ledger), mode])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def take_and_die(self, number: int) -> None:
        before, enough = len(self.lines()), len(self.taken()) + number
        self.start("take")
        # If this process stands still for a second, all are taken.
        wait_until(lambda: len(self.taken()) >= enough or ["end"] in self.lines()[before:])
        self.kill()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._ledger.read_text().splitlines()]

    def taken(self) -> list[tuple[int, bool]]:
        return [(int(words[1]), words[2] == "True") for words in self.lines() if words[0] == "took"]


@pytest.fixture
def taker(mosquitto: Broker, tmp_path: Path) -> Iterator[Taker]:
    made = Taker(mosquitto, tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def test_replies_survive_kill_9_of_who_keeps_and_of_who_takes_them(mosquitto: Broker, taker: Taker) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with EchoNode(mosquitto.port, "a") as node:
        taker.start("keep")
        wait_until(taker.lines)
        for sequence in range(SENT):
            node.publish("general/researcher/alice/main/a", reply(sequence), qos=0 if sequence % 50 else 1)
        wait_until(lambda: ["kept", str(SENT)] in taker.lines())
    taker.kill()

    for _ in range(ROUNDS):
        taker.take_and_die(chance.randint(1, 30))
    taker.start("take")
    assert taker.process is not None
    assert taker.process.wait(60) == 0

    taken = taker.taken()
    once = [sequence for number, (sequence, _) in enumerate(taken) if sequence not in dict(taken[:number])]
    again = [
        (sequence, redelivered)
        for number, (sequence, redelivered) in enumerate(taken)
        if sequence in dict(taken[:number])
    ]
    assert once == list(range(SENT))
    assert all(redelivered for _, redelivered in again)
    assert len(again) <= ROUNDS
    assert [words[1] for words in taker.lines() if words[0] == "start"] == ["main"] * (ROUNDS + 2)
