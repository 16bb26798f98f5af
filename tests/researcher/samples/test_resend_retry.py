"""When a page is not answered: deadlines, pauses that grow, and the end of hope; with a clock that is passed in."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from fedmon.common.errors import NotConnectedError
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.messages import Error, ErrorCode
from fedmon.researcher.asking.match import Pending
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.roster import Moment, Roster
from fedmon.researcher.samples.resend import (
    MAX_TRIES,
    REPLY_WITHIN_S,
    MissingSamples,
    Resend,
    StreamFollower,
)
from fedmon.researcher.session.connection import Connection, Dialect

NODE = NodeId("a")


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


class Shelf:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.lost: list[tuple[int, int, str]] = []

    def has_room(self) -> bool:
        return True

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        assert late or size_bytes == 100
        self.seqs.extend(range(batch.seq, batch.last_seq + 1))

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        self.lost.append((want.first_seq, want.last_seq, reason))


class Bench:
    """Resend requests with one consumer that misses samples 1 to 4 of a node, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.line, self.shelf = Line(), Shelf()
        self.pending = Pending("session")
        self.asker = Asker(
            cast("Connection", self.line),
            dialect=Dialect(researcher_id="r", instance="main"),
            researcher_id="r",
            instance="main",
            pending=self.pending,
            roster=Roster(),
            timeout_s=1.0,
            keep=lambda _reply: None,
        )
        self.resend = Resend(self.asker, self.pending, clock=lambda: self.now)
        self.follower = StreamFollower(
            self.shelf, nodes=None, ordered=True, start=None, inquire=lambda _node, _at: None
        )
        self.resend.link(up=True)
        for seq in (0, 5):
            self.follower.heard(_batch(seq), 100)

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
        asked = self.line.sent[-1]
        echo = {key: asked[key] for key in ("researcher_id", "id", "session", "sequence")}
        self.pending.match(Error(node_id=NODE, code=code, reason="no", **echo))


def _batch(seq: int) -> Batch:
    return Batch(node_id=NODE, boot=1, stream="host", seq=seq, t=[1.0], mono=[1.0], columns={"m": [1.0]})


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
    assert bench.shelf.lost == [(1, 4, f"it did not answer ({MAX_TRIES} times)")]
    assert bench.shelf.seqs == [0, 5]


def test_a_node_that_is_not_heard_of_is_never_given_up() -> None:
    bench = Bench()

    for _ in range(5 * MAX_TRIES):
        bench.look()
        bench.until_due()

    assert bench.shelf.lost == []
    assert len(bench.line.sent) > MAX_TRIES


def test_a_busy_node_is_never_given_up_and_one_that_fails_is() -> None:
    busy, failing = Bench(), Bench()

    for bench, code in ((busy, ErrorCode.BUSY), (failing, ErrorCode.FAILED)):
        for _ in range(MAX_TRIES):
            bench.look()
            bench.refuse(code)
            bench.look()
            if bench.resend.due_at is not None:
                bench.until_due()

    assert busy.shelf.lost == []
    assert failing.shelf.lost == [(1, 4, f"no ({MAX_TRIES} times)")]
