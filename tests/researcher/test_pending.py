"""Which reply belongs to which request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Ping, Pong
from fedmon.researcher.asking.match import TOLD_S, Pending, PendingRequest, ReplyMatch
from tests.support import envelopes
from tests.support.envelopes import envelope

A, B = NodeId("a"), NodeId("b")


def waiting_in(pending: Pending, *, on_answer: Callable[[Reply], None] | None = None) -> tuple[PendingRequest, Ping]:
    number = pending.next_sequence()
    own = {"id": f"id-{number}", "session": pending.session, "sequence": number}
    request = Ping(**envelope("r") | own)
    waiting = PendingRequest(request, None, on_answer=on_answer)
    pending.open(waiting)
    return waiting, request


def pong(request: Ping, **changes: Any) -> Pong:
    echoed = {name: getattr(request, name) for name in ("researcher_id", "id", "session", "sequence")}
    return envelopes.pong(**echoed | changes)


def test_who_answered_before_the_caller_left_is_repeated_not_late_afterwards() -> None:
    pending = Pending("session")
    waiting, request = waiting_in(pending)
    pending.match(pong(request))

    answers = pending.close(waiting)

    assert list(answers) == [A]
    assert pending.match(pong(request)) is ReplyMatch.REPEATED
    assert pending.match(pong(request, node_id="b")) is ReplyMatch.LATE


def test_a_reply_that_is_handed_on_is_not_held_in_memory_as_well() -> None:
    pending = Pending("session")
    handed: list[Reply] = []
    waiting, request = waiting_in(pending, on_answer=handed.append)
    reply = pong(request)

    assert pending.match(reply) is ReplyMatch.MATCHED

    assert (handed, waiting.is_owed_by(A), pending.close(waiting)) == ([reply], False, {})


def test_a_question_that_no_caller_waits_for_takes_one_answer_of_each_node_within_a_minute() -> None:
    pending = Pending("session")
    handed: list[Reply] = []
    _, request = waiting_in(pending)
    told = msgspec.structs.replace(request, id="told")
    question = PendingRequest(told, None, on_answer=handed.append)
    pending.tell(question)

    verdicts = [pending.match(pong(told)), pending.match(pong(told)), pending.match(pong(told, node_id="b"))]
    question.started -= 2 * TOLD_S
    pending.tell(PendingRequest(msgspec.structs.replace(request, id="next"), [A], on_answer=handed.append))
    verdicts += [pending.match(pong(told, node_id="c")), pending.match(pong(told, id="next", node_id="b"))]
    verdicts += [pending.match(pong(told, id="next")), pending.match(pong(told, id="next"))]

    assert verdicts == [
        ReplyMatch.MATCHED, ReplyMatch.REPEATED, ReplyMatch.MATCHED, ReplyMatch.FORGOTTEN, ReplyMatch.STALE,
        ReplyMatch.MATCHED, ReplyMatch.FORGOTTEN,
    ]  # fmt: skip
    assert [reply.node_id for reply in handed] == ["a", "b", "a"]
