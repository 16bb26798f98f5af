"""What others sent is shown on every screen without characters that hide or steer, and in a pipe as it is."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import termios
from pathlib import Path
from typing import Self

import pytest

from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.node_process import NO_RUNS, NodeProcess, fedmon, plain_environment, write_node_folder
from tests.support.raw_researcher import RawResearcher
from tests.support.recording_node import RecordingNode
from tests.support.shell import FEDMON
from tests.support.waiting import wait_until

HIDDEN = "\x9b31m\u202e\u00ad\u200b\u061c\x7f\U000e0041\u3164\x1b[2J"


def on_terminal(*words: str, term: str = "dumb") -> str:
    """Run a verb on a terminal and return what it showed."""
    master, slave = pty.openpty()
    environ = plain_environment(TERM=term, COLUMNS="200")
    shown = b""
    with subprocess.Popen([*FEDMON, *words], env=environ, stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        try:
            while chunk := os.read(master, 65_536):
                shown += chunk
        except OSError:  # Linux says EIO once nobody has the other end open
            pass
    os.close(master)
    return shown.decode()


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


class LiveVerb:
    """A verb on a terminal of 80 columns and 24 lines that goes on; a context manager."""

    def __init__(self, *words: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        environ = plain_environment(TERM="xterm-256color")
        self.process = subprocess.Popen([*FEDMON, *words], env=environ, stdin=slave, stdout=slave, stderr=slave)
        self.slave, self.shown = slave, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    def press(self, key: str) -> None:
        """Press a key; what was shown before is forgotten."""
        self.shown = ""
        os.write(self.master, key.encode())

    def shows(self, text: str) -> bool:
        """Tell whether a text was shown since the last key."""
        while select.select([self.master], [], [], 0.05)[0]:
            self.shown += os.read(self.master, 65_536).decode(errors="replace")
        return text in self.shown


def test_watch_draws_in_place_hears_its_keys_and_gives_the_terminal_back(mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "n", node_id="west", url=mosquitto.url, runs=NO_RUNS)
    with NodeProcess(folder), LiveVerb("watch", "--broker", mosquitto.url, "--interval", "0.5") as watch:
        before = termios.tcgetattr(watch.slave)[3] & termios.ECHO
        wait_until(lambda: watch.shows(" west "), what="the first screen")
        assert "\x1b[?1049h" in watch.shown
        assert "q quit  s sort  a not measured  ◐ high  ✕ silent" in watch.shown
        assert "NOT MEASURED" not in watch.shown
        watch.press("a")
        wait_until(lambda: watch.shows("NOT MEASURED"), what="what is not measured")
        watch.press("s")
        wait_until(lambda: watch.shows(" west "), what="the screen in the other order")
        watch.press("q")
        wait_until(lambda: watch.shows("\x1b[?1049l"), what="the end")

        assert watch.process.wait(60) == 0
        assert termios.tcgetattr(watch.slave)[3] & termios.ECHO == before


def test_watch_gives_the_terminal_back_when_it_is_terminated(mosquitto: Broker) -> None:
    with LiveVerb("watch", "--broker", mosquitto.url) as watch:
        wait_until(lambda: watch.shows("waiting for the first sample"), what="the first screen")
        watch.process.terminate()

        wait_until(lambda: watch.shows("\x1b[?1049l"), what="the usual screen")


def test_watch_shows_warnings_on_its_last_line_and_all_of_them_at_its_end(mosquitto: Broker) -> None:
    with EchoNode(mosquitto.port, "west") as node, LiveVerb("watch", "--broker", mosquitto.url) as watch:
        wait_until(lambda: watch.shows("waiting for the first sample"), what="the first screen")
        node.publish("general/monitoring/west", b"junk")
        wait_until(
            lambda: watch.shows("first sample   unreadable messages (metrics): 1 so far"),
            what="the warning in place of the keys",
        )
        watch.press("q")
        wait_until(
            lambda: watch.shows(
                "WARNING fedmon.researcher.session.inbox: unreadable messages (metrics): 1 so far; the latest"
            ),
            what="the warnings",
        )

        assert watch.shown.index("\x1b[?1049l") < watch.shown.index("unreadable")


def test_record_counts_on_one_line_until_its_end(mosquitto: Broker, tmp_path: Path) -> None:
    words = ("record", str(tmp_path / "store"), "--broker", mosquitto.url)
    with RecordingNode(mosquitto.port, "west") as node, LiveVerb(*words) as record:
        node.wait(lambda: node.leased)
        node.sample(2)
        wait_until(lambda: record.shows("\r2 samples, 1 node, 0 lost"), what="the line")
        record.process.terminate()
        wait_until(lambda: record.shows(f"\r\x1b[K{tmp_path / 'store'}: 2 samples, 1 node"), what="the summary")


def test_logs_says_that_it_waits(mosquitto: Broker) -> None:
    with LiveVerb("logs", "--broker", mosquitto.url) as logs:
        wait_until(lambda: logs.shows("waiting for log lines at WARNING or above; Ctrl-C ends"), what="the line")
