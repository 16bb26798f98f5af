"""When a page is not answered: deadlines, pauses that grow, and the end of hope; with a clock that is passed in."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error, ErrorCode, Ping
from fedmon.common.wire.samples import Columns, SamplesReply
from fedmon.compat.fedbiomed.researcher_dialect import FedBioMedDialect
from fedmon.researcher.asking.match import Pending
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.roster import Moment, Roster
from fedmon.researcher.samples.consumers import Consumers, SampleConsumer, Wish
from fedmon.researcher.samples.resend import HOLD_BYTES, LONGEST_PAUSE_S, MAX_TRIES, NOT_KEPT, REPLY_WITHIN_S, Resend
from fedmon.researcher.session.connection import Connection, Dialect
from fedmon.researcher.session.inbox import Tally
from tests.researcher.samples.test_follower import NODE, Shelf, batch, follower


class Line:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    is_connected = True

    def publish(self, _topic: str, payload: bytes, *, qos: int = 0) -> bool:
        assert qos == 1
        self.sent.append(msgspec.json.decode(payload))
        return True

    flapping = ""

    def lost_error(self) -> NotConnectedError:
        return NotConnectedError("not connected")


class Bench:
    """Resend requests with one consumer that misses samples 1 to 4 of a node, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.line, self.shelf = Line(), Shelf()
        self.pending = Pending("session")
        self.asker = Asker(
            cast("Connection", self.line),
            dialect=Dialect(researcher_id="r", instance="main"),
            pending=self.pending,
            roster=Roster(),
            timeout_s=1.0,
            keep=lambda _reply: None,
        )
        self.resend = Resend(self.asker, clock=lambda: self.now)
        self.follower, _ = follower(self.shelf)
        self.resend.link(up=True)
        for seq in (0, 5):
            self.follower.heard(batch(seq), 100)

    @property
    def lost(self) -> list[tuple[int, int]]:
        """The first and last number of what was given up."""
        return [(first, last) for _, first, last in self.shelf.lost]

    def answer(self, kind: type[Reply], **fields: Any) -> None:
        """Answer the last request."""
        asked = self.line.sent[-1]
        echo = {key: asked[key] for key in ("researcher_id", "id", "session", "sequence")}
        self.pending.match(kind(node_id=NODE, **echo, **fields))

    def look(self) -> int:
        """Look, and return how often was asked so far."""
        self.resend.look([self.follower], self.now)
        return len(self.line.sent)

    def until_due(self) -> float:
        """Let the time pass until something is due, and return how long that was."""
        due_at = self.resend.due_at
        assert due_at is not None
        passed, self.now = due_at - self.now, due_at
        return passed

    def refuse(self, code: ErrorCode) -> None:
        """Answer the last request with an error."""
        self.answer(Error, code=code, reason="no")

    def page(self, *, seqs: range, next_seq: int | None = None, stream: str = "host") -> None:
        """Answer the last request with a page of samples."""
        batches = [Columns(seq=seq, t=[1.0], mono=[1.0], columns={"m": [1.0]}) for seq in seqs]
        more = {"next_seq": next_seq, "oldest_seq": 0, "last_seq": 9**9}
        self.answer(SamplesReply, boot=1, stream=stream, batches=batches, **more)


def test_a_silent_node_that_is_alive_is_asked_again_after_longer_and_longer_pauses_and_then_given_up() -> None:
    bench = Bench()
    pauses: list[float] = []
    for times in range(1, MAX_TRIES + 1):
        assert bench.look() == times
        bench.asker.roster.heard(NODE, now=Moment.now(), revives=True)
        assert bench.until_due() == pytest.approx(REPLY_WITHIN_S)
        assert bench.look() == times
        if times < MAX_TRIES:
            pauses.append(bench.until_due())

    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert (bench.lost, bench.shelf.reasons) == ([(1, 4)], [f"it did not answer ({MAX_TRIES} times)"])
    assert bench.shelf.taken == [(1, 0), (1, 5)]


def test_a_node_that_is_not_heard_of_is_never_given_up() -> None:
    bench = Bench()

    for _ in range(5 * MAX_TRIES):
        bench.look()
        bench.until_due()

    assert bench.lost == []
    assert len(bench.line.sent) > MAX_TRIES


def test_a_busy_node_is_asked_again_and_one_that_came_up_at_once() -> None:
    bench = Bench()
    bench.look()

    bench.refuse(ErrorCode.BUSY)
    asked_at_once = bench.look()
    bench.resend.node_came_up(NODE)
    asked_then = bench.look()

    assert (asked_at_once, asked_then) == (1, 2)


def test_a_busy_node_is_never_given_up_and_one_that_fails_is() -> None:
    busy, failing = Bench(), Bench()

    for bench, code in ((busy, ErrorCode.BUSY), (failing, ErrorCode.FAILED)):
        for _ in range(MAX_TRIES):
            bench.look()
            bench.refuse(code)
            bench.look()
            if bench.resend.due_at is not None:
                bench.until_due()

    assert busy.lost == []
    assert (failing.lost, failing.shelf.reasons) == ([(1, 4)], [f"no ({MAX_TRIES} times)"])


def test_a_page_of_another_stream_is_no_answer_and_where_the_wire_cannot_ask_samples_are_lost_at_once() -> None:
    wrong, mute = Bench(), Bench()
    mute.asker.dialect = FedBioMedDialect(researcher_id="r", instance="main", pending=mute.pending, tally=Tally())

    for _ in range(MAX_TRIES):
        wrong.look()
        wrong.page(seqs=range(1, 5), stream="job-1")
        wrong.look()
        wrong.now += LONGEST_PAUSE_S
    mute.look()

    assert (wrong.lost, wrong.shelf.taken) == ([(1, 4)], [(1, 0), (1, 5)])
    assert "other samples than those asked for" in wrong.shelf.reasons[0]
    assert (mute.lost, mute.line.sent) == ([(1, 4)], [])


def test_nothing_is_asked_while_there_is_no_connection_and_at_once_when_it_is_back() -> None:
    bench = Bench()
    bench.look()

    bench.resend.link(up=False)
    without = bench.look()
    bench.resend.link(up=True)

    assert (without, bench.look()) == (1, 2)


def test_what_finds_no_room_while_its_turn_is_not_known_is_not_asked_for_without_a_pause() -> None:
    bench = Bench()
    bench.follower, _ = follower(bench.shelf, start=lambda _node, _stream: 0.0)
    bench.follower.heard(batch(0), HOLD_BYTES)
    bench.follower.heard(batch(5), 100)
    assert bench.look() == 1

    bench.page(seqs=range(1, 6))

    assert bench.look() == 1
    assert bench.until_due() == pytest.approx(1.0)
    assert bench.look() == 2
    assert bench.lost == []


def test_a_node_that_passes_over_sample_after_sample_is_asked_after_pauses() -> None:
    bench = Bench()
    bench.follower.heard(batch(5000), 100)
    assert bench.look() == 1
    bench.page(seqs=range(1, 5))
    assert bench.look() == 2

    bench.page(seqs=range(0), next_seq=7)

    assert bench.look() == 2
    assert bench.until_due() == pytest.approx(1.0)
    assert bench.look() == 3
    bench.page(seqs=range(0), next_seq=3000)
    assert bench.look() == 4
    assert bench.lost == [(6, 6), (7, 2999)]


def test_a_question_without_an_answer_while_connections_keep_getting_lost_says_so() -> None:
    bench = Bench()
    bench.line.flapping = "3 connections in a row ended within 2 s"

    with pytest.raises(NotConnectedError):
        bench.asker.answers(bench.asker.request(Ping), [NODE], timeout_s=0.1)


def test_many_holes_in_a_page_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.follower.heard(batch(1000), 100)
    bench.look()
    bench.page(seqs=range(1, 5))
    bench.look()

    with caplog.at_level("WARNING"):
        bench.page(seqs=range(6, 1000, 2))

    assert [record.getMessage() for record in caplog.records] == [
        f"497 of samples 7 to 999 of node a (boot 1, host) are lost: {NOT_KEPT}"
    ]
    assert len(bench.lost) == 497


def test_a_consumer_is_subscribed_to_metrics_before_a_tick_asks_for_its_lease() -> None:
    bench = Bench()
    sent: list[list[str]] = []

    def look() -> None:
        # The thread of the inbox ticks whenever a message comes.
        consumers.tick(bench.now)
        sent.append([message["action"] for message in bench.line.sent])

    consumers = Consumers(bench.asker, subscribe=look, wake=look, drain=lambda _s: None)
    consumer = SampleConsumer(consumers, Wish(nodes=frozenset({NODE}), interval_s=None))
    consumer.follower = bench.follower
    consumers.add(consumer)

    assert sent == [[], ["start"]]


def test_a_lease_is_renewed_once_after_a_standstill_however_long_it_was() -> None:
    bench = Bench()
    consumers = Consumers(bench.asker, subscribe=lambda: None, wake=lambda: None, drain=lambda _s: None)
    consumer = SampleConsumer(consumers, Wish(nodes=frozenset({NODE}), interval_s=None))
    consumer.follower = bench.follower
    consumers.add(consumer)

    for now in (1000.0, 1100.0, 1100.1, 1100.2, 1110.0):
        consumers.tick(now)

    assert [message["action"] for message in bench.line.sent] == ["start"] * 3


@pytest.mark.parametrize(("nodes", "lease_s", "every_s"), [(1000, 30.0, 10.0), (1001, 60.0, 20.0)])
def test_a_lease_is_live_if_one_consumer_needs_it_and_renewed_more_rarely_above_a_thousand_nodes(
    nodes: int, lease_s: float, every_s: float
) -> None:
    bench = Bench()
    for number in range(nodes):
        bench.asker.roster.heard(NodeId(f"n{number}"), now=Moment.now(), revives=True)
    consumers = Consumers(bench.asker, subscribe=lambda: None, wake=lambda: None, drain=lambda _s: None)
    for live in (False, True):
        consumer = SampleConsumer(consumers, Wish(nodes=frozenset({NODE}), interval_s=None, live=live))
        consumer.follower = bench.follower
        consumers.add(consumer)

    for after_s in (0.0, every_s - 0.1, every_s):
        consumers.tick(bench.now + after_s)

    assert [(message["lease_s"], message["live"]) for message in bench.line.sent] == [(lease_s, True)] * 2
