"""What others sent is shown on every screen without characters that hide or steer, and in a pipe as it is."""

from __future__ import annotations

import json
import termios
from pathlib import Path

import pytest

from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.node_process import NodeProcess, fedmon, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.recording_node import RecordingNode
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

HIDDEN = "\x9b31m\u202e\u00ad\u200b\u061c\x7f\U000e0041\u3164\x1b[2J"


def on_terminal(*words: str, term: str = "dumb") -> str:
    """Run a verb on a terminal and return what it showed."""
    with Terminal(*words, term=term, columns=200) as terminal:
        return terminal.end()[1]


def hidden_in(text: str) -> set[str]:
    return set(HIDDEN.replace("31m", "").replace("[2J", "")) & set(text)


@pytest.fixture
def asked(mosquitto: Broker, tmp_path: Path) -> Path:
    """Return the folder of a node that was asked under an id with hidden characters."""
    folder = write_node_folder(tmp_path / "n", url=mosquitto.url)
    with NodeProcess(folder), RawResearcher(mosquitto) as raw:
        wait_until(raw.answered, what="the node to answer")
        raw.ask("ping", id=f"id{HIDDEN}")
    return folder


def test_an_owner_sees_no_hidden_character(asked: Path) -> None:
    verb = ("node", "audit", "show", "--event", "command", "--dir", str(asked))

    screen, document, piped = on_terminal(*verb), on_terminal(*verb, "--json"), fedmon(*verb, "--json").stdout

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
        found = {"datasets": [dataset | times | {"description": HIDDEN}], "count": 1, "next_offset": None}
        return node.reply(request, "list", success=True, **found)

    with EchoNode(mosquitto.port, "west", answer=answer) as node:
        verb = ("datasets", "--broker", mosquitto.url)
        screen, document, piped = on_terminal(*verb), on_terminal(*verb, "--json"), fedmon(*verb, "--json").stdout

    assert (hidden_in(screen), hidden_in(document)) == (set(), set())
    assert "\\u00ad" in document
    assert {"\u00ad", "\x9b", "\u202e"} <= set(piped)


def test_a_terminal_shows_states_in_colours_and_a_pipe_none(mosquitto: Broker) -> None:
    with EchoNode(mosquitto.port, "west"):
        screens = [on_terminal(verb, "--broker", mosquitto.url, term="xterm") for verb in ("nodes", "ping")]
        piped = fedmon("ping", "--broker", mosquitto.url).stdout

    for screen, state in zip(screens, ("online", "ok"), strict=True):
        assert f"\x1b[32m● {state}" in screen
    assert "\x1b" not in piped
    assert piped.split()[:2] == ["node", "status"]


def test_watch_draws_in_place_hears_its_keys_and_gives_the_terminal_back(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "west", url=mosquitto.url)
    with NodeProcess(folder), Terminal("watch", "--broker", mosquitto.url, "--interval", "0.5") as watch:
        before = termios.tcgetattr(watch.master)[3] & termios.ECHO
        watch.read_until(" west ")
        assert "\x1b[?1049h" in watch.shown
        assert "q quit  s sort  a not measured  ◐ high  ✕ silent" in watch.shown
        assert "NOT MEASURED" not in watch.shown
        watch.press("a")
        watch.read_until("NOT MEASURED")
        watch.press("s")
        watch.read_until(" west ")
        watch.press("q")
        watch.read_until("\x1b[?1049l")

        assert watch.process.wait(60) == 0
        assert termios.tcgetattr(watch.master)[3] & termios.ECHO == before


def test_watch_gives_the_terminal_back_when_it_is_terminated(mosquitto: Broker) -> None:
    with Terminal("watch", "--broker", mosquitto.url) as watch:
        watch.read_until("waiting for the first sample")
        watch.process.terminate()

        watch.read_until("\x1b[?1049l")


def test_watch_shows_warnings_on_its_last_line_and_all_of_them_at_its_end(mosquitto: Broker) -> None:
    with EchoNode(mosquitto.port, "west") as node, Terminal("watch", "--broker", mosquitto.url) as watch:
        watch.read_until("waiting for the first sample")
        node.publish("general/monitoring/west", b"junk")
        watch.read_until("first sample   unreadable messages (metrics): 1 so far")
        watch.press("q")
        watch.read_until("WARNING fedmon.researcher.session.inbox: unreadable messages (metrics): 1 so far; the latest")

        assert watch.shown.index("\x1b[?1049l") < watch.shown.index("unreadable")


def test_record_counts_on_one_line_until_its_end(mosquitto: Broker, tmp_path: Path) -> None:
    words = ("record", str(tmp_path / "store"), "--broker", mosquitto.url)
    with RecordingNode(mosquitto.port, "west") as node, Terminal(*words) as record:
        node.wait(lambda: node.leased)
        node.sample(2)
        record.read_until("\r2 samples, 1 node, 0 lost")
        record.process.terminate()
        record.read_until(f"\r\x1b[K{tmp_path / 'store'}: 2 samples, 1 node")


def test_logs_says_that_it_waits(mosquitto: Broker) -> None:
    with Terminal("logs", "--broker", mosquitto.url) as logs:
        logs.read_until("waiting for log lines at WARNING or above; Ctrl-C ends")
