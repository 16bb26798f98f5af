"""Decisions of owners: safe first, then acknowledged, then told, each once; and whose they are among instances."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.echo_nodes import Message
from fedmon.common.errors import FolderInUseError
from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import PlanDecision, PlanStatus
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.databases import locked
from tests.support.echo_node import EchoNode
from tests.support.envelopes import decision
from tests.support.waiting import stays, wait_until


def decide(node: EchoNode, decision_id: str = "d-1", **changes: Any) -> None:
    node.publish("general/researcher/alice/all/a", msgspec.to_builtins(decision(decision_id)) | changes)


def acked(node: EchoNode) -> list[str]:
    return [one for request in node.sent("ack") for one in request["ids"]]


def test_a_decision_is_told_once_and_acknowledged_each_time_it_comes(node: EchoNode, federate: Open) -> None:
    told: list[PlanDecision] = []
    federation = federate()
    federation.on("decision", told.append)

    for _ in range(3):
        decide(node)
    node.wait(lambda: len(acked(node)) == 3)
    federation.ping()
    wait_until(lambda: told)

    assert [(one.id, one.status, one.note) for one in told] == [("d-1", PlanStatus.APPROVED, "looks good")]
    assert acked(node) == ["d-1"] * 3
    assert node.topics[[one["command"] for one in node.received].index("ack")] == "general/nodes/alice/a"
    wait_until(lambda: federation.status().kept_replies == 0)


def test_a_listener_is_told_all_that_comes_after_it_began_however_busy_the_disk_is(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    # given a thread that waits for the disk
    told: list[PlanDecision] = []
    with EchoNode(mosquitto.port, "a") as node, ThreadPoolExecutor(1) as pool:
        federation = federate()
        (path,) = (tmp_path / "alice").rglob("data.db")
        with locked(path):
            decide(node)
            federation.ping()

            # when a callback is registered meanwhile
            begun = pool.submit(federation.on, "decision", told.append)
            waits = stays(lambda: not begun.done(), 0.2)

        # then that takes until the thread goes on
        begun.result(60)
        decide(node, "d-2")
        wait_until(lambda: len(told) == 2)

    assert waits
    assert [one.id for one in told] == ["d-1", "d-2"]


def test_a_decision_nobody_took_outlives_the_process_and_is_told_by_the_next(node: EchoNode, federate: Open) -> None:
    first_told: list[str] = []
    then_told: list[str] = []

    def failing(one: PlanDecision) -> None:
        first_told.append(one.id)
        raise RuntimeError("the notebook's own mistake")

    federation = federate()
    federation.on("decision", failing)
    decide(node)
    wait_until(lambda: first_told)
    federation.close()

    again = federate()
    again.on("decision", lambda one: then_told.append(one.id))
    wait_until(lambda: then_told)
    decide(node)
    node.wait(lambda: len(acked(node)) == 2)
    again.ping()

    assert (first_told, then_told) == (["d-1"], ["d-1"])


def test_every_instance_hears_of_a_decision_and_only_main_acknowledges(node: EchoNode, federate: Open) -> None:
    told: dict[str, list[str]] = {"main": [], "notebook": []}
    main, notebook = federate(), federate(instance="notebook")
    main.on("decision", lambda one: told["main"].append(one.id))
    notebook.on("decision", lambda one: told["notebook"].append(one.id))

    decide(node)
    decide(node)
    wait_until(lambda: all(told.values()))
    node.wait(lambda: len(acked(node)) == 2)
    notebook.ping()

    assert told == {"main": ["d-1"], "notebook": ["d-1"]}
    assert {request["instance"] for request in node.sent("ack")} == {"main"}


def test_without_main_nobody_acknowledges_so_that_the_node_keeps_the_decision(node: EchoNode, federate: Open) -> None:
    told: list[str] = []
    federation = federate(instance="shell")
    federation.on("decision", lambda one: told.append(one.id))

    decide(node)
    wait_until(lambda: told)
    federation.ping()

    assert stays(lambda: acked(node) == [], 0.1)


@pytest.mark.parametrize("wrong", [{"node_id": "b"}, {"researcher_id": "bob"}, {"status": "maybe"}], ids=str)
def test_a_decision_that_is_not_ours_or_makes_no_sense_is_counted_and_not_acknowledged(
    node: EchoNode, federate: Open, wrong: Message
) -> None:
    told: list[str] = []
    federation = federate()
    federation.on("decision", lambda one: told.append(one.id))

    decide(node, "bad", **wrong)
    decide(node, "good")
    wait_until(lambda: told and acked(node))

    assert told == ["good"]
    assert acked(node) == ["good"]
    assert sum(federation.status().counters.values()) == 1


def test_the_first_process_is_main_and_the_next_get_names_of_their_own(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with EchoNode(mosquitto.port, "a"):
        first, second, third = federate(), federate(), federate()

        instances = [first.instance, second.instance, third.instance]
        answered = [list(one.ping().ok) for one in (first, second, third)]

    assert instances[0] == "main"
    assert len(set(instances)) == 3
    assert answered == [["a"]] * 3
    assert federate(researcher_id="bob").instance == "main"
    with pytest.raises(FolderInUseError, match="in use by process"):
        federate(instance="main")


def test_no_machine_keeps_replies_to_another_with_the_id_of_its_researcher(
    mosquitto: Broker, federate: Open, tmp_path: Path
) -> None:
    with EchoNode(mosquitto.port, "a"):
        laptop = federate()
        # A reply to its first ping, which is older than the server, would be kept there.
        wait_until(lambda: (known := laptop.nodes().get(NodeId("a"))) is not None and known.last_seen)
        server = federate(folder=tmp_path / "server")

        asked = [one.ping().ok.keys() for one in (laptop, server)]
        wait_until(lambda: all(one.status().counters.get("unknown replies") for one in (laptop, server)))

        assert asked == [{"a"}, {"a"}]
        assert [one.instance for one in (laptop, server)] == ["main", "main"]
        assert [one.status().kept_replies for one in (laptop, server)] == [0, 0]


def test_late_and_unknown_replies_are_kept_for_who_asks_for_them_and_errors_logged(
    node: EchoNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate()
    federation.nodes()
    node.answer = lambda _: None
    outcomes = federation.datasets(timeout_s=0.1)
    node.wait(lambda: node.sent("list"))
    late = node.honest(node.sent("list")[0]) or {}
    ahead = f"{int(time.time() + 3600) * 1000:012x}"  # the process that died had a clock that was an hour ahead
    earlier = ["asked-by-a-process-that-died", f"{ahead[:8]}-{ahead[8:]}-7000-8000-000000000000"]

    for changes in ({}, *({"id": one, "session": "earlier"} for one in earlier)):
        node.publish(node.reply_topic(node.sent("list")[0]), late | changes)
    failure = {"command": "error", "success": False, "code": "failed", "reason": "its disk is full"}
    node.publish(node.reply_topic(node.sent("list")[0]), late | failure | {"id": "asked-long-ago"})
    wait_until(lambda: federation.status().kept_replies == 4)
    kept = federation.session.replies.take()

    assert not outcomes.ok
    assert [one.message.id for one in kept] == [late["id"], *earlier, "asked-long-ago"]
    assert federation.status().counters == {"errors from nodes": 1, "late replies": 1, "unknown replies": 3}
    assert "the latest: a: failed: its disk is full" in caplog.text
    assert federation.status().kept_replies == 0
