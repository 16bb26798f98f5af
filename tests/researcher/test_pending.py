"""Which reply belongs to which request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fedmon.common.clock import seconds_from_now, utc_now
from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import ErrorCode, Ping, Pong
from fedmon.researcher.asking.match import Pending, PendingRequest, ReplyMatch

A, B = NodeId("a"), NodeId("b")


def waiting_in(pending: Pending, *, on_answer: Callable[[Reply], None] | None = None) -> tuple[PendingRequest, Ping]:
    number = pending.next_sequence()
    request = Ping(
        researcher_id="r",
        id=f"id-{number}",
        session=pending.session,
        sequence=number,
        expires=seconds_from_now(60),
    )
    waiting = PendingRequest(request, None, kept=True, on_answer=on_answer)
    pending.open(waiting)
    return waiting, request


def pong(request: Ping, **changes: Any) -> Pong:
    reply = Pong(
        node_id="a",
        researcher_id=request.researcher_id,
        id=request.id,
        session=request.session,
        sequence=request.sequence,
        time=utc_now(),
        boot=1,
        agent_version="1",
    )
    return msgspec.structs.replace(reply, **changes)


def test_a_reply_that_echoes_everything_matches_once() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)

    first, second = pending.match(pong(request)), pending.match(pong(request))

    assert first == (ReplyMatch.MATCHED, waiting)
    assert second == (ReplyMatch.REPEATED, waiting)


def test_a_reply_after_the_caller_left_is_late_and_one_to_nothing_is_unknown() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    pending.close(waiting)

    late = pending.match(pong(request))
    unknown = pending.match(pong(request, id="never-asked"))
    earlier_process = pending.match(pong(request, id="x", session="earlier", sequence=999))

    assert late == (ReplyMatch.LATE, waiting)
    assert unknown == (ReplyMatch.UNKNOWN, None)
    assert earlier_process == (ReplyMatch.UNKNOWN, None)


def test_who_answered_before_the_caller_left_is_repeated_not_late_afterwards() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    pending.match(pong(request))

    answers = pending.close(waiting)

    assert list(answers) == [A]
    assert pending.match(pong(request))[0] is ReplyMatch.REPEATED
    assert pending.match(pong(request, node_id="b"))[0] is ReplyMatch.LATE


def test_a_reply_that_is_handed_on_is_not_held_in_memory_as_well() -> None:
    pending = Pending("session")
    handed: list[Reply] = []
    waiting, request = waiting_in(pending, on_answer=handed.append)
    reply = pong(request)

    assert pending.match(reply) == (ReplyMatch.MATCHED, waiting)

    assert (handed, waiting.is_owed_by(A), pending.close(waiting)) == ([reply], False, {})


def test_a_wait_ends_with_the_last_answer_expected_and_not_before() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    waiting.expect({A, B}, may_end=True)
    ended = threading.Event()

    def wait() -> None:
        waiting.wait(60)
        ended.set()

    caller = threading.Thread(target=wait)
    caller.start()

    pending.match(pong(request))
    too_early = ended.wait(0.05)
    pending.match(pong(request, node_id="b"))
    caller.join(60)

    assert (too_early, ended.is_set()) == (False, True)


def test_a_node_that_came_up_is_to_be_asked_at_once_unless_it_has_answered() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    pending.match(pong(request))

    waiting.node_changed(A, offline=False, came_up=True)
    waiting.node_changed(B, offline=False, came_up=True)
    waiting.wait(60)

    assert waiting.to_ask_at_once() == ({B}, False)
    assert waiting.to_ask_at_once() == (set(), False)


def test_a_reply_that_cannot_be_read_answers_for_its_node_only_when_no_other_came() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    waiting.expect({A, B}, may_end=True)

    for node_id in (A, B):
        waiting.unreadable(node_id, ErrorCode.FAILED, "no number")
    missing = waiting.missing()
    pending.match(pong(request))

    assert missing == {A, B}
    assert pending.find(lambda one: one.id == request.id) is waiting
    assert list(pending.close(waiting)) == [A]
    assert {node_id: answer.reply.success for node_id, answer in waiting.unreadable_only().items()} == {B: False}
