"""Federations of hundreds and thousands of nodes: simulated ones, on one connection."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.echo_nodes import Message
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.crowd import Crowd
from tests.support.waiting import wait_until


def names(count: int) -> list[str]:
    return [f"n{number:05d}" for number in range(count)]


class Silence:
    """Has some nodes answer a command only when each was asked again."""

    def __init__(self, command: str, silent: list[str]) -> None:
        self._command, self._silent = command, set(silent)
        self._asked: set[str] = set()

    def answers(self, node_id: str, request: Message) -> bool:
        if request["command"] != self._command or node_id not in self._silent or node_id in self._asked:
            return True
        self._asked.add(node_id)
        return False


def test_more_than_200_silent_nodes_are_asked_again_by_one_broadcast(mosquitto: Broker, federate: Open) -> None:
    crowd = Crowd(mosquitto.port, names(230))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == 230)
        crowd.answers = Silence("list", names(220)).answers

        outcomes = federation.datasets()

    topics = [topic for topic, _ in crowd.requests("list")]
    assert len(outcomes.ok) == 230
    assert topics == ["general/nodes/alice"] * 2
    assert len({request["id"] for _, request in crowd.requests("list")}) == 1


def test_fewer_silent_nodes_named_ones_and_those_asked_to_approve_are_asked_again_one_by_one(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.py"
    plan.write_text("rows = 1\n")
    crowd = Crowd(mosquitto.port, names(230))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == 230)
        crowd.answers = Silence("list", names(20)).answers
        federation.datasets()
        crowd.answers = Silence("search", names(220)).answers
        federation.search(["breast"], nodes=names(220))
        crowd.answers = Silence("approval", names(220)).answers
        approved = federation.approve(plan)

    def again(command: str, first: int) -> set[str]:
        return {topic for topic, _ in crowd.requests(command)[first:]}

    assert again("list", 1) == {f"general/nodes/alice/{name}" for name in names(20)}
    assert again("search", 220) == {f"general/nodes/alice/{name}" for name in names(220)}
    assert again("approval", 1) >= {f"general/nodes/alice/{name}" for name in names(220)}
    assert len(approved.ok) == 230


def test_replies_to_a_running_list_are_kept_off_the_disk_for_a_second_and_approvals_are_not(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    plan, queue = tmp_path / "plan.py", tmp_path / "alice" / "replies" / "alice" / "data.db"
    plan.write_text("rows = 1\n")

    def stored() -> int:
        with contextlib.closing(sqlite3.connect(queue)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            (table,) = [name for name in tables if name.startswith("queue")]
            return int(connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0])

    def stored_after_s(command: str, ask: Callable[[], object]) -> float:
        crowd.answers = lambda node_id, request: request["command"] != command or node_id != "n00009"
        wait_until(lambda: stored() == 0)
        started = time.monotonic()
        caller = threading.Thread(target=ask)
        caller.start()
        wait_until(lambda: stored() == 9)
        took_s = time.monotonic() - started
        crowd.answers = lambda _node_id, _request: True
        caller.join(60)
        return took_s

    crowd = Crowd(mosquitto.port, names(10))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == 10)

        assert stored_after_s("list", federation.datasets) >= 1.0
        # A busy machine may take a second for one.
        wait_until(lambda: stored_after_s("approval", lambda: federation.approve(plan)) < 1.0, 60)
        wait_until(lambda: stored() == 0)


def test_nodes_beyond_the_bound_are_counted_logged_once_and_reported(
    mosquitto: Broker, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    settings = msgspec.structs.replace(federate(instance="first").settings, max_nodes=60)
    with Crowd(mosquitto.port, names(70)):
        federation = federate(settings=settings)
        wait_until(lambda: federation.nodes().beyond == 10)
        nodes, pongs = federation.nodes(), federation.ping()

    assert len(nodes) == 60 <= len(pongs.ok)
    assert "10 more were heard of and are not kept track of: raise max_nodes" in str(nodes)
    assert federation.status().counters["nodes beyond max_nodes"] == 10
    assert sum("more than 60 nodes" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_very_many_nodes_are_shown_shortly_and_soon(mosquitto: Broker, federate: Open, count: int) -> None:
    crowd = Crowd(mosquitto.port, names(count))
    with crowd:
        federation = federate(timeout_s=60)
        wait_until(lambda: len(federation.nodes().online) == count, 60)
        crowd.say(names(30), "offline", "stopped by its owner")
        wait_until(lambda: len(federation.nodes().online) == count - 30)
        taken_s = []
        for _ in range(10):
            # Time of this thread alone: others of the suite are at work.
            started = time.thread_time()
            nodes = federation.nodes()
            shown = str(nodes)
            taken_s.append(time.thread_time() - started)

    assert min(taken_s) <= 0.05
    assert f"{count - 30} online, 30 offline; 10 more that are not online" in shown
    assert [line.split()[0] for line in shown.splitlines()[2:22]] == names(20)
    assert len(shown.splitlines()) == 24
    assert len(nodes.rows()) == count
    assert f"{count - 30} online" in repr(nodes)
    assert nodes._repr_html_().count("<tr>") == 21
