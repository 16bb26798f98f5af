"""What one consumer follows: within its bounds, from where it began, and with every sample accounted for."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import msgspec
import pytest

from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.wire.messages import Error, ErrorCode
from fedmon.common.wire.samples import Extent, MonitorReply
from fedmon.researcher.samples.resend import (
    GRACE_S,
    HOLD_BYTES,
    MAX_BOOTS,
    MAX_MISSING_RANGES,
    MAX_STREAMS,
    ROOM_EVERY_S,
    TOO_MANY_GAPS,
    TOO_OLD,
    MissingSamples,
    Resume,
    Start,
    StreamFollower,
)

NODE = NodeId("a")
ECHO: dict[str, Any] = {"node_id": NODE, "researcher_id": "r", "id": "1", "session": "s", "sequence": 1}


class Shelf:
    """A sink with as much room as a test says."""

    def __init__(self) -> None:
        self.room = True
        self.taken: list[tuple[int, int]] = []
        self.late: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int, int]] = []
        self.reasons: list[str] = []

    def has_room(self, _share: float) -> bool:
        return self.room

    def put(self, batch: Batch, *, size_bytes: int, late: bool) -> None:
        assert size_bytes > 0
        numbers = [(batch.boot, seq) for seq in range(batch.seq, batch.last_seq + 1)]
        self.taken += numbers
        self.late += numbers if late else []

    def lost_for_good(self, want: MissingSamples, reason: str) -> None:
        assert reason
        self.lost.append((want.boot, want.first_seq, want.last_seq))
        self.reasons.append(reason)


def follower(shelf: Shelf, *, ordered: bool = True, start: Start | None = None) -> tuple[StreamFollower, list[NodeId]]:
    asked: list[NodeId] = []

    def inquire(node_id: NodeId, _at: float) -> None:
        asked.append(node_id)

    return StreamFollower(shelf, nodes=None, ordered=ordered, start=start, inquire=inquire), asked


def batch(seq: int, count: int = 1, *, boot: int = 1, stream: str = "host", node_id: str = NODE) -> Batch:
    times = [float(100 * boot + seq + at) for at in range(count)]
    return Batch(node_id=node_id, boot=boot, stream=stream, seq=seq, t=times, mono=times, columns={"m": [*times]})


def keeps(*extents: tuple[int, int, int], stream: str = "host") -> MonitorReply:
    """Return a lease answer that tells of (boot, oldest, last)."""
    told = [
        Extent(
            boot=boot,
            stream=stream,
            oldest_seq=oldest,
            last_seq=last,
            oldest_t=100 * boot + oldest,
            last_t=100 * boot + last,
        )
        for boot, oldest, last in extents
    ]
    return MonitorReply(
        action="start", interval_s=1.0, streams=["host"], capabilities={}, metrics=[], extents=told, **ECHO
    )


def wanted(one: StreamFollower) -> tuple[int, int, int] | None:
    want = one.want(NODE)
    return None if want is None else (want.boot, want.first_seq, want.last_seq)


def test_what_finds_no_room_is_missing_and_is_wanted_once_there_is_room() -> None:
    shelf = Shelf()
    one, _ = follower(shelf, ordered=False)
    one.heard(batch(0), 10)
    shelf.room = False

    for seq in range(1, 6):
        one.heard(batch(seq), 10)
    without_room, looks_in_s = wanted(one), (one.due_at() or math.inf) - time.monotonic()
    shelf.room = True
    one.tick(0.0)

    assert (without_room, wanted(one)) == (None, (1, 1, 5))
    assert looks_in_s <= ROOM_EVERY_S
    assert (shelf.taken, one.pending) == ([(1, 0)], 5)
    one.pulled(batch(1, 5), 50)
    assert (len(shelf.taken), one.pending, len(shelf.late)) == (6, 0, 5)


def test_what_a_node_tells_of_is_waited_for_a_moment_as_it_may_be_under_way() -> None:
    one, _ = follower(Shelf())
    one.heard(batch(0), 10)

    one.answered(keeps((1, 0, 2)), 100.0)
    at_once = wanted(one)
    one.heard(batch(1), 10)
    due_at = one.due_at()
    one.tick(100.0 + GRACE_S)

    assert (at_once, due_at) == (None, 100.0 + GRACE_S)
    assert wanted(one) == (1, 2, 2)


@pytest.mark.parametrize("reason", ["the recording is being opened", ""])
def test_an_answer_without_extents_of_a_node_that_kept_some_closes_boots_unless_it_opens_its_recording(
    reason: str,
) -> None:
    shelf = Shelf()
    one, _ = follower(shelf)
    one.answered(keeps((1, 0, 0)), 0.0)
    one.heard(batch(0), 10)
    one.heard(batch(0, boot=2), 10)

    one.answered(msgspec.structs.replace(keeps(), reason=reason), 1.0)
    told = list(shelf.taken)
    one.answered(keeps((2, 0, 0)), 2.0)

    assert told == ([(1, 0)] if reason else [(1, 0), (2, 0)])
    assert shelf.taken == [(1, 0), (2, 0)]


def test_while_a_recording_is_being_opened_nothing_is_taken_for_gone() -> None:
    shelf = Shelf()
    one, _ = follower(shelf, start=lambda _node, _stream: Resume(boot=1, seq=7))
    one.heard(batch(0, boot=2), 10)

    one.answered(msgspec.structs.replace(keeps(), reason="the recording is being opened"), 0.0)
    opening = list(shelf.taken)
    one.answered(keeps((1, 0, 7), (2, 0, 0)), 10.0)
    one.pulled(batch(7), 10)

    assert (opening, shelf.taken) == ([], [(1, 7), (2, 0)])


def test_a_refusal_closes_what_cannot_be_known() -> None:
    shelf = Shelf()
    one, _ = follower(shelf)
    one.heard(batch(0), 10)
    one.heard(batch(0, boot=2), 10)

    one.answered(Error(code=ErrorCode.REFUSED, reason="no", **ECHO), 1.0)

    assert shelf.taken == [(1, 0), (2, 0)]


def test_a_stream_that_began_and_ended_unheard_is_wanted_but_none_of_before_we_came() -> None:
    one, _ = follower(Shelf())
    one.answered(keeps((1, 0, 50)), 0.0)
    one.heard(batch(51), 10)
    old = wanted(one)

    one.answered(keeps((1, 0, 9), stream="job-7"), 1.0)
    one.tick(1.0 + GRACE_S)

    assert old is None
    assert one.want(NODE) == MissingSamples(node_id=NODE, boot=1, stream="job-7", first_seq=0, last_seq=9)


def test_the_beginning_is_asked_for_by_its_time_and_nothing_before_it_is_lost() -> None:
    shelf = Shelf()
    one, _ = follower(shelf, start=lambda _node, _stream: 250.0)
    one.answered(keeps((1, 0, 99), (2, 10, 99)), 0.0)
    want = one.want(NODE)
    assert want == MissingSamples(node_id=NODE, boot=2, stream="host", first_seq=10, last_seq=99, since_t=250.0)

    one.begins(want, 50, is_known=True)

    assert one.want(NODE) == msgspec.structs.replace(want, first_seq=50, since_t=None)
    assert (one.losses, shelf.lost) == ({}, [])


def test_live_samples_wait_until_the_beginning_is_known_and_follow_it() -> None:
    shelf = Shelf()
    one, _ = follower(shelf, start=lambda _node, _stream: 103.0)
    one.heard(batch(8), 10)
    one.answered(keeps((1, 0, 8)), 0.0)
    want = one.want(NODE)
    assert want is not None
    waiting = list(shelf.taken)

    one.begins(want, 3, is_known=True)
    one.pulled(batch(3, 5), 10)

    assert (waiting, want.first_seq) == ([], 0)
    assert shelf.taken == [(1, seq) for seq in range(3, 9)]


def test_a_stream_that_was_not_heard_in_an_earlier_boot_is_wanted_from_there() -> None:
    shelf = Shelf()
    one, asked = follower(shelf, start=lambda _node, _stream: 0.0)
    one.answered(keeps((1, 0, 0)), 0.0)
    one.pulled(batch(0), 10)

    one.heard(batch(0, boot=2, stream="user"), 10)
    one.answered(keeps((1, 0, 3), (2, 0, 0), stream="user"), 1.0)

    assert asked == [NODE]
    assert one.want(NODE) == MissingSamples(node_id=NODE, boot=1, stream="host", first_seq=0, last_seq=0, since_t=0.0)
    assert one.want(NODE) == MissingSamples(node_id=NODE, boot=1, stream="user", first_seq=0, last_seq=3, since_t=0.0)
    assert shelf.taken == []


def test_too_many_gaps_are_given_up_oldest_first() -> None:
    one, _ = follower(Shelf(), ordered=False)

    for seq in range(0, 2 * MAX_MISSING_RANGES + 20, 2):
        one.heard(batch(seq), 10)

    assert sum(one.losses.values()) == 9
    assert one.pending == MAX_MISSING_RANGES


def test_whatever_is_dropped_refused_or_swapped_sent_is_delivered_pending_or_lost() -> None:
    chance = random.Random(20261121)
    for turn in range(100):
        shelf = Shelf()
        one, _ = follower(shelf, ordered=turn % 2 == 0)
        kept: list[Batch] = []
        next_seq = 0
        for _ in range(60):
            shelf.room = chance.random() < 0.8
            one.tick(0.0)
            count = chance.randint(1, 5)
            live = batch(next_seq, count)
            kept.append(live)
            next_seq += count
            if next_seq == count or chance.random() < 0.6:
                if len(kept) == 1:
                    shelf.room = True
                    one.tick(0.0)
                one.heard(live, chance.choice((10, HOLD_BYTES // 4)))
            elif chance.random() < 0.5 and (want := one.want(NODE)) is not None:
                if chance.random() < 0.2:
                    one.gone(want, TOO_OLD)
                for page in kept:
                    part = page.part(want.first_seq, want.last_seq)
                    if part.t:
                        one.pulled(part, 10)
            heard_to = max((seq for _, seq in shelf.taken), default=-1)
            assert len(set(shelf.taken)) == len(shelf.taken)
            assert heard_to < next_seq
        shelf.room = True
        one.tick(0.0)
        one.heard(batch(next_seq), 10)
        accounted = len(shelf.taken) + one.pending + sum(one.losses.values())

        assert accounted == next_seq + 1
        if turn % 2 == 0:
            assert shelf.taken == sorted(shelf.taken)


def test_a_batch_that_fills_two_gaps_around_what_is_held_back_is_handed_on_in_order() -> None:
    for pulled in (False, True):
        shelf = Shelf()
        one, _ = follower(shelf)
        for early in (batch(0), batch(11), batch(5, 2)):
            one.heard(early, 100)

        if pulled:
            one.pulled(batch(1, 10), 100)
        else:
            one.heard(batch(1, 10), 100)

        assert shelf.taken == [(1, seq) for seq in range(12)]
        assert one.pending == 0


def test_of_too_many_boots_the_oldest_is_given_up_and_the_later_ones_are_delivered() -> None:
    shelf = Shelf()
    one, _ = follower(shelf)
    for boot in range(1, MAX_BOOTS + 1):
        one.heard(batch(0, boot=boot), 10)
    one.heard(batch(2, boot=1), 10)
    waiting = one.pending

    one.heard(batch(0, boot=MAX_BOOTS + 1), 10)

    assert (waiting, shelf.lost, one.losses) == (MAX_BOOTS + 1, [(1, 1, 1)], {TOO_MANY_GAPS: 1})
    assert shelf.taken == [(1, 0), (1, 2), (2, 0)]


def test_of_too_many_streams_the_oldest_of_the_node_known_longest_is_forgotten() -> None:
    shelf = Shelf()
    one, _ = follower(shelf)
    one.heard(batch(0), 10)
    one.heard(batch(2), 10)
    for number in range(MAX_STREAMS - 1):
        one.heard(batch(0, stream=f"job-{number}", node_id="b"), 10)
    before = one.pending

    one.heard(batch(0, stream="of another node", node_id="b"), 10)
    of_one = one.pending
    one.heard(batch(3, stream="job-0", node_id="b"), 10)
    one.heard(batch(0, stream="one more", node_id="b"), 10)

    assert (before, of_one) == (2, 0)
    assert one.pending == 0, "job-0 was the oldest stream of the only node that is left"
    assert len(shelf.taken) == MAX_STREAMS + 2


def test_samples_of_an_older_boot_are_left_out_with_one_warning_where_order_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivered = []
    for ordered in (True, False):
        shelf = Shelf()
        one, _ = follower(shelf, ordered=ordered)
        one.heard(batch(0, boot=5), 10)
        for seq in range(2):
            one.heard(batch(seq, boot=4), 10)
        delivered.append(shelf.taken)

    assert delivered == [[(5, 0)], [(5, 0), (4, 0), (4, 1)]]
    assert caplog.text.count("boot 4, came after those of a later boot and are left out") == 1


@pytest.mark.parametrize(
    ("since", "first"),
    [(300.0, None), (208.5, (2, 9, 9)), (200.0, (2, 0, 9)), (195.0, (2, 0, 9)), (100.0, (1, 0, 9))],
    ids=["after all", "the last sample", "at the beginning of a boot", "between boots", "before all"],
)
def test_a_history_begins_with_the_first_sample_kept_that_is_not_older(
    since: float, first: tuple[int, int, int] | None
) -> None:
    one, asked = follower(Shelf(), start=lambda _node, _stream: since)

    one.answered(keeps((1, 0, 9), (2, 0, 9)), 0.0)
    want = one.want(NODE)
    if want is not None:
        one.begins(want, max(0, math.ceil(since - 100 * want.boot)), is_known=True)

    assert wanted(one) == first
    assert asked == []
