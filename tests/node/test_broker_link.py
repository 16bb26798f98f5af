"""A party that only tells answers what is meant for it, and nothing else, and keeps its presence true."""

from __future__ import annotations

from fedmon.node.broker_link import BrokerLink
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until


def test_requests_that_are_wrong_or_to_all_have_no_answer_and_a_cleared_presence_comes_back(mosquitto: Broker) -> None:
    link = BrokerLink(mosquitto.settings, node_id="node-3", boot=7, streams=list)
    link.start()
    with RawResearcher(mosquitto, "alice") as alice, Listener(mosquitto, "general/status/#") as listener:
        wait_until(lambda: listener.presences("node-3"), what="its presence")
        told = len(listener.presences("node-3"))
        alice.send(b"", topic="general/status/node-3", retain=True)
        late, foreign = {"expires": "2001-01-01T00:00:00Z"}, {"researcher_id": "mallory"}
        for fields in (late, foreign, {"node_id": "node-4"}):
            alice.send(alice.message("ping", **fields))
        for payload in (b"{", alice.message("list"), b'{"x": "' + b"x" * 110_000):
            alice.send(payload)
        alice.ask("list", node_id="node-3")
        alice.ask("ping")
        wait_until(lambda: len(listener.presences("node-3")) > told, what="its presence again")
    link.stop(1.0)

    assert [(reply["command"], reply.get("code")) for reply in alice.replies] == [
        ("error", "unsupported"), ("pong", None),
    ]  # fmt: skip
