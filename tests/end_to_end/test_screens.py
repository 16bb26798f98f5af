"""What others sent is shown on every screen without characters that hide or steer, and in a pipe as it is."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.node_process import NO_RUNS, NodeProcess, plain_environment, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

HIDDEN = "\x9b31m\u202e\u00ad\u200b\u061c\x7f\U000e0041\u3164\x1b[2J"


def on_terminal(*words: str, term: str = "dumb") -> str:
    """Run a verb on a terminal and return what it showed."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fedmon", *words]
    environ = plain_environment(TERM=term, COLUMNS="200")
    shown = b""
    with subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        try:
            while chunk := os.read(master, 65_536):
                shown += chunk
        except OSError:  # Linux says EIO once nobody has the other end open
            pass
    os.close(master)
    return shown.decode()


def in_pipe(*words: str) -> str:
    """Run a verb whose output a program reads, and return it."""
    command = [sys.executable, "-m", "fedmon", *words]
    return subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=True).stdout


def hidden_in(text: str) -> set[str]:
    return set(HIDDEN.replace("31m", "").replace("[2J", "")) & set(text)


@pytest.fixture
def asked(mosquitto: Broker, tmp_path: Path) -> Path:
    """Return the folder of a node that was asked under an id with hidden characters."""
    folder = write_node_folder(tmp_path / "n", node_id="n", url=mosquitto.url, runs=NO_RUNS)
    with NodeProcess(folder), RawResearcher(mosquitto) as raw:
        wait_until(raw.answered, what="the node to answer")
        raw.ask("ping", id=f"id{HIDDEN}")
    return folder


def test_an_owner_sees_no_hidden_character(asked: Path) -> None:
    verb = ("node", "audit", "show", "--event", "command", "--dir", str(asked))

    screen, document, piped = on_terminal(*verb), on_terminal(*verb, "--json"), in_pipe(*verb, "--json")

    assert (hidden_in(screen), hidden_in(document)) == (set(), set())
    assert "\\u00ad" in document
    assert "u00ad" in screen or "xad" in screen
    assert json.loads(document) == json.loads(piped)
    assert {"\u00ad", "\x9b", "\u202e"} <= set(piped)


def test_a_researcher_sees_no_hidden_character(mosquitto: Broker, tmp_path: Path) -> None:
    dataset = {"dataset_id": "dataset_1", "name": f"cells{HIDDEN}", "data_type": "csv", "tags": ["a"]}
    times = {"created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"}

    def answer(request: dict[str, object]) -> object:
        if request["command"] != "list":
            return node.honest(request)
        echo = {name: request[name] for name in ("researcher_id", "id", "session", "sequence")}
        found = {"datasets": [dataset | times | {"description": HIDDEN}], "count": 1, "next_offset": None}
        return echo | found | {"command": "list", "protocol_version": "fedmon/1", "node_id": "west", "success": True}

    with EchoNode(mosquitto.port, "west", answer=answer) as node:
        verb = ("datasets", "--broker", mosquitto.url)
        screen, document, piped = on_terminal(*verb), on_terminal(*verb, "--json"), in_pipe(*verb, "--json")

    assert (hidden_in(screen), hidden_in(document)) == (set(), set())
    assert "\\u00ad" in document
    assert {"\u00ad", "\x9b", "\u202e"} <= set(piped)


def test_a_terminal_shows_states_in_colours_and_a_pipe_none(mosquitto: Broker) -> None:
    with EchoNode(mosquitto.port, "west"):
        screens = [on_terminal(verb, "--broker", mosquitto.url, term="xterm") for verb in ("nodes", "ping")]
        piped = in_pipe("ping", "--broker", mosquitto.url)

    for screen, state in zip(screens, ("online", "ok"), strict=True):
        assert f"\x1b[32m{state}" in screen
    assert "\x1b" not in piped
    assert piped.split()[:2] == ["node", "status"]
