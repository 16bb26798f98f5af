"""What is missed is asked for again: marked late, or in order, until it is there or known to be lost."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import islice

import pytest

from bench.echo_nodes import Message
from fedmon.common.actor import BULK_BOUND
from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Ping
from fedmon.researcher.samples.resend import NODES_AT_ONCE
from fedmon.researcher.samples.watch import LiveSample, Watch
from tests.researcher.conftest import Open
from tests.support.brokers import Broker
from tests.support.chance import seeded
from tests.support.recording_node import RecordingNode
from tests.support.waiting import stays, wait_until


def numbers(samples: list[LiveSample]) -> list[tuple[int, int]]:
    return [(sample.boot, sample.seq) for sample in samples]


def accounts(watch: Watch) -> tuple[int, int, int, int, int]:
    return watch.delivered, watch.pending, watch.lost, watch.refilled, watch.repeated


def test_a_gap_is_pulled_in_pages_and_comes_marked_late(mosquitto: Broker, federate: Open) -> None:
    with RecordingNode(mosquitto.port, "a", page=4) as node:
        watch = federate().monitor()
        node.wait(lambda: node.leased)

        node.sample(2)
        node.sample(10, live=False)
        node.sample(2)
        taken = list(islice(watch, 14))

    assert [seq for _, seq in numbers(taken)] == [0, 1, 12, 13, *range(2, 12)]
    assert [sample.seq for sample in taken if sample.late] == list(range(2, 12))
    assert [sample.values["host_cpu_busy_ratio"] for sample in taken] == [sample.seq for sample in taken]
    assert accounts(watch) == (14, 0, 0, 10, 0)
    assert [(request["first_seq"], request["last_seq"]) for request in node.resends] == [(2, 11), (6, 11), (10, 11)]


def test_one_pull_serves_every_watch_and_each_begins_where_it_began(mosquitto: Broker, federate: Open) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        federation = federate()
        first, ordered = federation.monitor(), federation.monitor(ordered=True)
        node.wait(lambda: node.leased)
        node.sample(2)
        wait_until(lambda: first.delivered == 2)
        node.sample(4, live=False)
        late = federation.monitor()

        node.sample(1)
        wait_until(lambda: first.delivered == ordered.delivered == 7)

    assert accounts(first) == accounts(ordered) == (7, 0, 0, 4, 0)
    assert accounts(late) == (1, 0, 0, 0, 0)
    assert len(node.resends) == 1


def test_the_tail_of_an_old_boot_comes_before_the_first_sample_of_the_new_one(
    mosquitto: Broker, federate: Open
) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        federation = federate()
        ordered, live = federation.monitor(ordered=True), federation.monitor()
        node.wait(lambda: node.leased)
        node.sample(2)
        wait_until(lambda: live.delivered == 2)

        node.sample(3, live=False)
        node.restart()
        node.sample(2, live=False)
        node.restart()
        node.sample(1, live=False)
        node.sample(2)
        taken, at_once = list(islice(ordered, 10)), list(islice(live, 10))

    in_order = [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert numbers(taken) == in_order
    assert sorted(numbers(at_once)) == in_order
    assert accounts(ordered) == accounts(live) == (10, 0, 0, 6, 0)


def test_a_node_that_refuses_is_not_asked_again_for_the_same(mosquitto: Broker, federate: Open) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        node.on_resend = lambda request: node.error(request, "refused", "not in my policy")
        watch = federate().monitor(ordered=True)
        node.wait(lambda: node.leased)
        node.sample(1)
        node.sample(3, live=False)

        node.sample(1)
        taken = list(islice(watch, 2))

    assert [seq for _, seq in numbers(taken)] == [0, 4]
    assert watch.losses == {"not in my policy": 3}
    assert len(node.resends) == 1


def test_what_is_not_written_yet_is_asked_for_again_and_not_given_up(mosquitto: Broker, federate: Open) -> None:
    def early(request: Message) -> Message:
        reply = node.samples_reply(request)
        return reply | {"batches": [], "next_seq": None, "last_seq": 1} if len(node.resends) == 0 else reply

    with RecordingNode(mosquitto.port, "a") as node:
        node.on_resend = early
        watch = federate().monitor(ordered=True)
        node.wait(lambda: node.leased)
        node.sample(2)
        node.sample(2, live=False)

        node.sample(1)
        taken = list(islice(watch, 5))

    assert [seq for _, seq in numbers(taken)] == list(range(5))
    assert watch.lost == 0


def test_a_page_that_makes_no_sense_loses_nothing(mosquitto: Broker, federate: Open) -> None:
    def odd(request: Message) -> Message:
        reply = node.samples_reply(request)
        if len(node.resends) == 0:
            return reply | {"batches": [reply["batches"][0] | {"t": [1.0]}]}
        far = {"seq": 900, "t": [1.0], "mono": [1.0], "m": {}}
        return reply | {"batches": [far, *reply["batches"], *reply["batches"]]}

    with RecordingNode(mosquitto.port, "a") as node:
        node.on_resend = odd
        watch = federate().monitor(ordered=True)
        node.wait(lambda: node.leased)
        node.sample(1)
        node.sample(3, live=False)

        node.sample(1)
        taken = list(islice(watch, 5))

    assert [seq for _, seq in numbers(taken)] == list(range(5))
    assert accounts(watch) == (5, 0, 0, 3, 0)


def test_one_request_a_node_and_16_nodes_at_once(
    mosquitto: Broker, federate: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.researcher.samples.resend.REPLY_WITHIN_S", 600.0)
    names = [f"n{number}" for number in range(NODES_AT_ONCE + 3)]
    with ExitStack() as stack:
        nodes = [stack.enter_context(RecordingNode(mosquitto.port, name, page=2)) for name in names]
        for node in nodes:
            node.on_resend = lambda _request: None
        watch = federate().monitor()
        wait_until(lambda: all(node.leased for node in nodes))
        for node in nodes:
            node.sample(1)
            node.sample(6, live=False)
            node.sample(1)

        wait_until(lambda: len([node for node in nodes if node.resends]) == NODES_AT_ONCE)
        assert stays(lambda: sum(len(node.resends) for node in nodes) == NODES_AT_ONCE, 0.2)
        asked = [node for node in nodes if node.resends]
        for node in nodes:
            node.on_resend = None
        for node in asked:
            node.publish(node.reply_topic(node.resends[0]), node.samples_reply(node.resends[0]))
        wait_until(lambda: watch.refilled == 6 * len(nodes))

    assert watch.pending == watch.lost == 0


def test_what_finds_the_inbox_full_is_pulled_again(mosquitto: Broker, federate: Open) -> None:
    gate, blocked = threading.Event(), threading.Event()

    def block(_reply: object) -> None:
        blocked.set()
        gate.wait(100)

    with RecordingNode(mosquitto.port, "a", page=500) as node:
        federation = federate()
        watch = federation.monitor(ordered=True)
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: watch.delivered == 1)
        session = federation.session
        session.asker.tell(session.asker.request(Ping), [NodeId("a")], on_answer=block)
        assert blocked.wait(60)
        for _ in range(BULK_BOUND.jobs + 300):
            node.sample(1, qos=0)
        wait_until(lambda: session.inbox.dropped[1] > 100)
        dropped = session.inbox.dropped[1]
        gate.set()
        wait_until(lambda: session.inbox.backlog == 0)
        node.sample(1)
        taken = list(islice(watch, BULK_BOUND.jobs + 302))

    assert [seq for _, seq in numbers(taken)] == list(range(BULK_BOUND.jobs + 302))
    assert watch.refilled >= dropped
    assert (watch.lost, watch.pending) == (0, 0)


def test_whatever_is_withheld_and_restarted_an_ordered_watch_gets_all_of_it_once_and_in_order(
    mosquitto: Broker, federate: Open
) -> None:
    chance = seeded()
    with RecordingNode(mosquitto.port, "a", page=7) as node:
        federation = federate()
        ordered, live = federation.monitor(ordered=True), federation.monitor()
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: live.delivered == 1)
        for _ in range(60):
            if chance.random() < 0.1:
                node.restart()
            node.sample(chance.randint(1, 9), live=chance.random() < 0.5)
        node.restart()
        node.sample(1)
        sent = sorted((boot, seq) for (boot, _), kept in node.kept.items() for seq in kept)
        taken, at_once = list(islice(ordered, len(sent))), list(islice(live, len(sent)))

    assert numbers(taken) == sent
    assert sorted(numbers(at_once)) == sent
    assert ordered.lost == live.lost == ordered.pending == live.pending == 0


def test_an_error_that_comes_after_the_page_was_asked_for_anew_is_not_kept(mosquitto: Broker, federate: Open) -> None:
    with RecordingNode(mosquitto.port, "a") as node:
        federation = federate()
        watch = federation.monitor()
        node.wait(lambda: node.leased)
        node.sample(1)
        wait_until(lambda: watch.delivered == 1)
        node.on_resend = lambda _: None
        node.sample(3, live=False)
        node.sample(1)
        node.wait(lambda: node.resends)
        forgotten = node.resends[0]
        node.come_up()
        node.wait(lambda: len(node.resends) > 1)

        node.publish(node.reply_topic(forgotten), node.error(forgotten, "failed", "it took too long"))
        federation.ping()

        assert federation.status().counters.keys() <= {"repeated replies"}  # a pong that is late
        assert (federation.status().kept_replies, watch.lost) == (0, 0)
