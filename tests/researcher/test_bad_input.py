"""Bad input on a real broker: counted, logged at a sane rate, and the next valid message is served."""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from bench.echo_nodes import Message
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.federation import Federation
from fedmon.researcher.session.inbox import TALLY_EVERY_S
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.echo_node import EchoNode, late_pong
from tests.support.waiting import wait_until

MEGABYTE = 1024 * 1024
DEEP = b'{"protocol_version":"fedmon/1","command":"pong","x":' + b"[" * 40_000 + b"]" * 40_000 + b"}"


def without(key: str) -> Message:
    return {name: value for name, value in late_pong().items() if name != key}


BAD: dict[str, Message | bytes] = {
    "invalid JSON": b'{"command": "pong"',
    "wrong protocol version": late_pong(protocol_version="fedmon/2"),
    "no protocol version": without("protocol_version"),
    "unknown command": late_pong(command="reboot"),
    "no command": without("command"),
    "wrong field type": late_pong(sequence="one"),
    "missing field": without("time"),
    "NaN": b'{"protocol_version":"fedmon/1","command":"pong","sequence":NaN}',
    "deep nesting": DEEP,
    "over-long payload": json.dumps(late_pong(agent_version="x" * 150_000)).encode(),
    "a list": b"[]",
    "empty payload": b"",
    "binary noise": bytes(range(256)),
    "not UTF-8": b'{"protocol_version":"fedmon/1","command":"\xff\xfe"}',
    "huge number": b'{"protocol_version":"fedmon/1","sequence":' + b"9" * 5000 + b"}",
}
WRONG: dict[str, tuple[Message | bytes, str]] = {
    **{what: (message, "unreadable messages (reply)") for what, message in BAD.items()},
    "body naming another sender": (late_pong(node_id="b"), "messages naming another sender"),
    "reply for another researcher": (late_pong(researcher_id="bob"), "replies for another researcher"),
}


def test_a_reply_that_is_wrong_or_belongs_elsewhere_is_counted_and_the_next_request_is_served(
    node: EchoNode, federate: Open
) -> None:
    federation = federate()
    federation.nodes()
    expected: Counter[str] = Counter()
    served = {}

    def found() -> Counter[str]:
        counters = federation.status().counters
        return Counter({counter: counters.get(counter, 0) for counter in expected})

    for what, (message, counter) in WRONG.items():
        expected[counter] += 1
        node.publish("general/researcher/alice/main/a", message)
        wait_until(lambda: found() >= expected, what=what)
        served[what] = list(federation.ping().ok)

    assert served == {what: ["a"] for what in WRONG}
    assert found() == expected
    assert federation.status().kept_replies == 0


def test_an_answer_with_a_wrong_sequence_session_or_kind_never_counts(node: EchoNode, federate: Open) -> None:
    wrong: list[Message] = [{"sequence": 999}, {"session": "another"}, {"command": "list", "datasets": [], "count": 0}]
    federation = federate()
    federation.nodes()

    def counted() -> int:
        return federation.status().counters.get("replies of a wrong session, sequence or kind", 0)

    def is_refused(changes: Message) -> bool:
        before, seen = counted(), set[str]()

        def once(request: Message) -> list[Message]:
            answers = [] if request["id"] in seen else [(node.honest(request) or {}) | changes]
            seen.add(request["id"])
            return answers

        node.answer = once
        outcomes = federation.ping(timeout_s=0.4)
        wait_until(lambda: counted() > before, what=changes)
        return not outcomes.ok

    assert [changes for changes in wrong if not is_refused(changes)] == []


def test_a_node_cannot_answer_for_another(node: EchoNode, mosquitto: Broker, federate: Open) -> None:
    def as_b(request: Message) -> bytes:
        lie = json.dumps((node.honest(request) or {}) | {"node_id": "b"}).encode()
        node.publish(f"general/researcher/alice/main/{node.node_id}", lie)
        return json.dumps(node.honest(request)).encode()

    with EchoNode(mosquitto.port, "b", answer=lambda _: None):
        federation = federate("a", "b")
        node.answer = as_b

        outcomes = federation.ping(timeout_s=5.0)

    assert list(outcomes.ok) == ["a"]
    assert federation.status().counters["messages naming another sender"] >= 1


@pytest.mark.parametrize(
    ("changes", "counter"),
    [({}, "replies of a wrong session, sequence or kind"), ({"sequence": "one"}, "unreadable messages (reply)")],
)
def test_a_node_that_was_not_asked_is_not_among_the_outcomes(
    node: EchoNode, mosquitto: Broker, federate: Open, changes: Message, counter: str
) -> None:
    with EchoNode(mosquitto.port, "b") as stranger:
        federation = federate()
        wait_until(lambda: len(federation.ping().ok) == 2)
        node.answer = lambda request: stranger.publish(
            "general/researcher/alice/main/b", (stranger.honest(request) or {}) | changes
        )

        outcomes = federation.ping(nodes=["a"], timeout_s=1.0)
        wait_until(lambda: federation.status().counters.get(counter))

    assert list(outcomes) == ["a"]
    assert outcomes["a"].status is OutcomeStatus.TIMED_OUT


def test_a_retained_reply_is_refused(node: EchoNode, mosquitto: Broker, federate: Open) -> None:
    node.publish("general/researcher/alice/main/a", late_pong(), retain=True)

    federation = federate()
    wait_until(lambda: federation.status().counters)

    assert federation.status().counters == {"retained messages refused (reply)": 1}
    assert list(federation.ping().ok) == ["a"]


def test_two_researchers_and_two_instances_never_see_each_others_replies(
    node: EchoNode, mosquitto: Broker, federate: Open
) -> None:
    parties = [federate(), federate(instance="second"), federate(researcher_id="bob"), federate(researcher_id="bob2")]
    for party in parties:
        party.nodes()

    def is_answered(party: Federation) -> bool:
        return list(party.ping().ok) == ["a"] and len(party.search(["breast"]).ok["a"].datasets) == 2

    with ThreadPoolExecutor(len(parties)) as pool:
        answered = list(pool.map(is_answered, parties * 25))

    assert all(answered)
    # A node that answers late is asked again.
    assert {kind for party in parties for kind in party.status().counters} <= {"repeated replies"}
    assert [party.status().kept_replies for party in parties] == [0, 0, 0, 0]


def unreadable(number: int) -> bytes:
    kinds = [
        b"{",
        json.dumps(late_pong(node_id="b")).encode(),
        json.dumps(late_pong(protocol_version="x/1")).encode(),
        DEEP[:2000],
    ]
    return kinds[number % len(kinds)]


def refused(federation: Federation) -> int:
    """Return how many messages were refused; a node that answers late is asked again, and replies twice."""
    return sum(count for kind, count in federation.status().counters.items() if kind != "repeated replies")


def test_thousands_of_junk_replies_are_counted_quietly_and_cost_no_memory(
    node: EchoNode, federate: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    federation = federate(timeout_s=10)
    assert federation.ping().ok
    gc.collect()
    process = psutil.Process(os.getpid())
    before, started = process.memory_info().rss, time.monotonic()

    for counted in range(0, 3_000, 500):  # a broker drops what a slow reader's queue cannot hold
        for number in range(counted, counted + 500):
            node.publish("general/researcher/alice/main/a", unreadable(number), qos=0)
        wait_until(lambda counted=counted: refused(federation) == counted + 500)  # type: ignore[misc]
    outcomes = federation.ping()

    assert list(outcomes.ok) == ["a"]
    assert len(caplog.records) <= 4 + 2 * (time.monotonic() - started) / TALLY_EVERY_S
    gc.collect()
    assert process.memory_info().rss - before < 20 * MEGABYTE
    assert federation.ping().ok
