"""Junk on the wire of a real node: counted and logged, nothing stops, the next valid message is served."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, write_node_folder
from tests.support.raw_researcher import RawResearcher, plan_fields
from tests.support.shell_here import document_here
from tests.support.waiting import wait_until

VALID = {
    "command": "ping",
    "protocol_version": "fedmon/1",
    "researcher_id": "raw",
    "id": "x1",
    "session": "s",
    "sequence": 1,
    "expires": "2100-01-01T00:00:00Z",
}


@pytest.fixture(scope="module")
def node(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node") / "ward"
    with NodeProcess(write_node_folder(folder, url=lasting_broker.url)) as running:
        yield running
        assert "Traceback" not in running.log()


@pytest.fixture
def raw(lasting_broker: Broker, node: NodeProcess) -> Iterator[RawResearcher]:
    # Each test is another researcher: what the node answers to junk is rationed for each.
    with RawResearcher(lasting_broker, f"raw-{uuid.uuid4().hex[:8]}") as researcher:
        wait_until(researcher.answered, what="the node to answer")
        yield researcher


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in VALID.items() if key != name}).encode()


def changed(**fields: object) -> bytes:
    return json.dumps(VALID | fields).encode()


NOT_TEXT: tuple[object, ...] = ([], {}, 7, None, True)
JUNK: dict[str, tuple[bytes, str]] = {
    "invalid JSON": (b'{"command": "ping"', "malformed"),
    "an array": (b"[1, 2]", "malformed"),
    "an empty payload": (b"", "malformed"),
    "binary noise": (os.urandom(500) + b"\xff", "malformed"),
    "another major version": (changed(protocol_version="fedmon/2"), "version"),
    "no version": (without("protocol_version"), "version"),
    "an unknown command": (changed(command="explode"), "unknown-command"),
    "no command": (without("command"), "unknown-command"),
    **{f"the command {word!r}": (changed(command=word), "unknown-command") for word in NOT_TEXT},
    "a wrong type": (changed(sequence="1"), "malformed"),
    "a negative sequence": (changed(sequence=-1), "malformed"),
    "no id": (without("id"), "malformed"),
    "no session": (without("session"), "malformed"),
    "no sequence": (without("sequence"), "malformed"),
    "no expiry": (without("expires"), "malformed"),
    "no researcher": (without("researcher_id"), "malformed"),
    "an expiry that passed": (changed(expires="2020-01-01T00:00:00Z"), "expired"),
    "NaN": (json.dumps(VALID).replace('"x1"', "NaN").encode(), "malformed"),
    "infinity": (changed(sequence=float("inf")), "malformed"),
    "nesting 100,000 deep": (b"[" * 100_000 + b"]" * 100_000, "too-large"),
    "nesting 100,000 deep in a field": (
        json.dumps(VALID)[:-1].encode() + b', "x": ' + b"[" * 45_000 + b"]" * 45_000 + b"}", "malformed"
    ),
    "an over-long payload": (changed(description="x" * 120_000), "too-large"),
    "another sender in the body": (changed(researcher_id="mallory"), "wrong-address"),
    "tags that are no list": (changed(command="search", tags="mri"), "malformed"),
    "a lease of more than a minute": (changed(command="monitor", action="start", lease_s=61.0), "malformed"),
    "a plan with another digest": (
        changed(command="approval", name="p", sha256="0" * 64, size_bytes=1, source="x"), "malformed"
    ),
    "a plan without bytes": (changed(command="approval", name="p", sha256="0" * 64, size_bytes=1), "malformed"),
}  # fmt: skip


@pytest.mark.parametrize("kind", JUNK)
def test_junk_is_answered_with_its_reason_and_the_next_message_is_served(kind: str, raw: RawResearcher) -> None:
    payload, code = JUNK[kind]

    raw.send(payload.replace(b'"raw"', json.dumps(raw.researcher_id).encode()))
    wait_until(lambda: raw.errors(code), what=f"an error reply of code {code}")

    assert raw.errors(code)[0]["node_id"] == "ward"
    assert raw.errors(code)[0]["reason"]
    assert raw.ask("ping")["command"] == "pong"


def test_a_retained_command_has_no_effect_after_a_reconnect(mosquitto: Broker, tmp_path: Path) -> None:
    with RawResearcher(mosquitto) as raw:
        message = raw.message("approval", name="p", sha256="0" * 64, size_bytes=1, source="x")
        raw.send(message, topic="general/nodes/raw/late", retain=True)
        with NodeProcess(write_node_folder(tmp_path / "late", url=mosquitto.url)):
            pong = wait_until(lambda: raw.answered("pong"), what="the node to answer")

    assert pong is not None
    assert pong["node_id"] == "late"
    assert not [reply for reply in raw.replies if reply["id"] == message["id"]]


def test_a_flood_of_junk_costs_no_memory_and_few_replies(raw: RawResearcher, node: NodeProcess) -> None:
    daemon = psutil.Process(node.pid)
    before = daemon.memory_info().rss

    for _ in range(5_000):
        raw.send(b'{"command": "ping", "x": ' + b"1" * 200)
    ping = raw.message("ping")
    raw.send(ping)

    assert raw.reply_to(ping, 50)["command"] == "pong"
    assert daemon.memory_info().rss - before < 20 * 2**20
    assert len(raw.errors("malformed")) < 500
    status = document_here("node", "status", "--dir", node.folder)
    assert status["live"]["counters"]["refused malformed"] >= 4_000


def test_the_same_request_twice_has_one_effect_and_one_answer(raw: RawResearcher, node: NodeProcess) -> None:
    message = raw.message("approval", **plan_fields("twice = 1\n"))

    raw.send(message)
    raw.reply_to(message)
    raw.send(message)
    wait_until(lambda: sum(reply["id"] == message["id"] for reply in raw.replies) == 2, what="the second reply")

    first, second = (reply for reply in raw.replies if reply["id"] == message["id"])
    assert first == second
    plans = document_here("node", "plan", "list", "--dir", node.folder)
    assert [plan["sha256"] for plan in plans["plans"]].count(message["sha256"]) == 1


def test_an_id_used_again_for_something_else_is_refused(raw: RawResearcher) -> None:
    messages = [raw.message("approval", **plan_fields(source), id="same") for source in ("x = 1\n", "x = 2\n")]

    for message in messages:
        raw.send(message)
    replies = wait_until(lambda: (found := [r for r in raw.replies if r["id"] == "same"])[1:] and found)

    assert [reply["command"] for reply in replies] == ["approval", "error"]
    assert (replies[1]["code"], "use a new id" in replies[1]["reason"]) == ("refused", True)
