"""Who is there, as a researcher sees it over a real broker."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.echo_nodes import presence
from fedmon.common.errors import ConflictError, NotFoundError
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.roster import Node, NodeState
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode
from tests.support.waiting import wait_until


def test_nodes_are_known_soon_after_connecting_with_state_and_last_seen(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "a", boot=7), EchoNode(mosquitto.port, "silent") as silent:
        silent.answer = lambda _request: None
        federation = federate()

        started = time.monotonic()
        assert federation.nodes().online == ["a", "silent"]
        took_s = time.monotonic() - started
        wait_until(lambda: federation.nodes()["a"].last_seen, what="the first answer")
        nodes = federation.nodes()

    assert took_s < 6
    assert (nodes["a"].boot, nodes["a"].agent_version, nodes["a"].streams) == (7, "echo", ("host",))
    assert nodes["silent"].last_seen is None
    assert nodes.circumstances.settled


def test_coming_dying_and_leaving_are_told_at_once_and_in_outcomes_with_the_reason(
    mosquitto: Broker, federate: Open
) -> None:
    told: list[Node] = []
    federation = federate()
    federation.on("presence", told.append)
    killed, stopped = EchoNode(mosquitto.port, "killed").start(), EchoNode(mosquitto.port, "stopped").start()
    # A node whose pong comes before its presence is told twice: heard, and then with what it says of itself.
    wait_until(lambda: {str(node.node_id) for node in told if node.boot} == {"killed", "stopped"})

    def gone() -> list[tuple[str, str]]:
        return [(str(node.node_id), node.reason) for node in told if node.state is NodeState.OFFLINE]

    started = time.monotonic()
    killed.die()
    wait_until(gone)
    took_s = time.monotonic() - started
    stopped.stop()
    wait_until(lambda: len(gone()) == 2)
    outcomes = federation.ping()

    assert took_s < 10.0
    assert gone() == [("killed", "connection lost"), ("stopped", "stopped by its owner")]
    for node_id, why in gone():
        assert outcomes[node_id].status is OutcomeStatus.OFFLINE
        assert re.fullmatch(rf"offline since 20.*: {why}", outcomes[node_id].reason)


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_a_callback_that_fails_disturbs_no_other_and_is_logged_once(
    mosquitto: Broker, federate: Open, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    told: list[Node] = []
    federation = federate()

    def failing(node: Node) -> None:
        raise error(node.node_id)

    first = federation.on("presence", failing)
    second = federation.on("presence", told.append)
    with EchoNode(mosquitto.port, "a"), EchoNode(mosquitto.port, "b"):
        wait_until(lambda: {node.node_id for node in told} == {"a", "b"})
    wait_until(lambda: [node.state for node in told].count(NodeState.OFFLINE) == 2)
    wait_until(lambda: federation.status().counters.get("callback errors") == len(told))

    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (first.errors, second.errors) == (len(told), 0)
    assert len(errors) == 1
    assert errors[0].exc_info is not None
    assert federation.status().counters["callback errors"] == len(told)
    assert len(federation.ping()) == 2


def test_a_removed_callback_is_not_called_again(mosquitto: Broker, federate: Open) -> None:
    removed: list[Node] = []
    kept: list[Node] = []
    federation = federate()
    federation.on("presence", kept.append)
    subscription = federation.on("presence", removed.append)
    with EchoNode(mosquitto.port, "a"):
        wait_until(lambda: removed)
        subscription.remove()

    wait_until(lambda: [node.state for node in kept[-1:]] == [NodeState.OFFLINE])

    assert NodeState.OFFLINE not in [node.state for node in removed]


def test_two_processes_under_one_node_id_get_the_outcome_that_says_so(mosquitto: Broker, federate: Open) -> None:
    with EchoNode(mosquitto.port, "someone") as someone:
        federation = federate()
        federation.nodes()
        for boot in (4, 9, 4, 9, 4, 9):
            someone.publish("general/status/twin", presence("twin", boot), retain=True)
        wait_until(lambda: any(node.id_in_use for node in federation.nodes().values()))

        outcomes = federation.ping(timeout_s=0.5)

    assert outcomes["twin"].status is OutcomeStatus.ID_IN_USE
    assert "two processes" in outcomes["twin"].reason


def test_a_presence_of_another_sender_or_of_no_sense_changes_nothing(node: EchoNode, federate: Open) -> None:
    federation = federate()
    federation.nodes()

    node.publish("general/status/b", presence("a", 9, "offline"), retain=True)
    node.publish("general/status/a", presence("a", 1) | {"boot": "many"})
    node.publish("general/status/a", b"\x00\xff")
    wait_until(lambda: sum(federation.status().counters.values()) == 3)

    assert federation.nodes().online == ["a"]
    assert federation.status().counters == {
        "messages naming another sender": 1,
        "unreadable messages (presence)": 2,
    }


def test_a_ghost_is_cleared_at_the_broker_for_everybody(mosquitto: Broker, federate: Open) -> None:
    ghost = EchoNode(mosquitto.port, "ghost").start()
    federation = federate()
    wait_until(lambda: federation.nodes().online == ["ghost"])
    with pytest.raises(ConflictError, match="'ghost' is online"):
        federation.forget("ghost")
    ghost.die()
    wait_until(lambda: not federation.nodes().online)

    forgotten = federation.forget("ghost", timeout_s=30)

    assert forgotten.cleared
    assert len(federation.nodes()) == 0
    assert len(federate(instance="other").nodes()) == 0
    with pytest.raises(NotFoundError, match="'ghost' was never heard of"):
        federation.forget("ghost")


def test_a_ghost_that_is_said_to_be_online_is_cleared(node: EchoNode, federate: Open) -> None:
    for ghost in ("ghost", "job-ghost"):
        node.publish(f"general/status/{ghost}", presence(ghost, 3), retain=True)
    federation = federate()
    wait_until(lambda: set(federation.nodes()) == {"a", "ghost", "job-ghost"})

    def forget_ghost(_: int) -> bool:
        try:
            return federation.forget("ghost", timeout_s=30).cleared
        except NotFoundError:  # the other was done before this one began
            return True

    with ThreadPoolExecutor(2) as pool:
        at_once = list(pool.map(forget_ghost, range(2)))
    federation.forget("job-ghost", timeout_s=30)
    known = list(federation.nodes())
    with pytest.raises(ConflictError, match="'a' is online"):
        federation.forget("a")

    assert (all(at_once), known) == (True, ["a"])
    assert list(federate(instance="other").nodes()) == ["a"]


def test_a_ghost_that_is_cleared_elsewhere_is_gone_here_too(node: EchoNode, federate: Open) -> None:
    node.publish("general/status/ghost", presence("ghost", 3), retain=True)
    here, elsewhere = federate(), federate(instance="other", timeout_s=5.0)
    wait_until(lambda: all("ghost" in each.nodes() for each in (here, elsewhere)))
    outcome = here.ping(timeout_s=1.0)["ghost"]
    wait_until(lambda: here.nodes()["ghost"].state is NodeState.STALE)

    elsewhere.forget("ghost", timeout_s=30)

    wait_until(lambda: set(here.nodes()) == {"a"})

    assert outcome.status is OutcomeStatus.STALE
