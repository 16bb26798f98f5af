"""Finding the request that an answer belongs to, on a wire whose answers do not say."""

from __future__ import annotations

from fedmon.common.clock import seconds_from_now
from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId, new_id
from fedmon.common.wire.envelope import Request
from fedmon.common.wire.messages import Ping
from fedmon.compat.fedbiomed.researcher_dialect import Held, Listed, Sent
from fedmon.researcher.asking.match import REMEMBERED_REQUESTS

A, B = NodeId("a"), NodeId("b")


def ping(sequence: int) -> Ping:
    return Ping(researcher_id="r", id=new_id(), session="s", sequence=sequence, expires=seconds_from_now(60))


def request_of(sent: Sent, number: int) -> Request | None:
    found = sent.by_number(number)
    return None if found is None else found.request


def listed(success: bool = True) -> Listed:
    return Listed(by_tags=False, success=success, datasets=[])


def test_a_request_is_found_by_its_number_and_by_its_id() -> None:
    sent, first, second = Sent(), ping(1), ping(2)

    for request in (first, second, first):
        sent.add(request)

    assert request_of(sent, 2) is second
    assert sent.by_id(first.id) is first
    assert request_of(sent, 3) is None
    assert sent.by_id("x") is None


def test_only_the_last_requests_are_remembered() -> None:
    sent, requests = Sent(), [ping(number) for number in range(REMEMBERED_REQUESTS + 1)]

    for request in requests:
        sent.add(request)

    assert request_of(sent, 0) is None
    assert sent.by_id(requests[0].id) is None
    assert request_of(sent, 1) is requests[1]


def test_what_a_node_said_is_taken_once_and_in_order() -> None:
    held, first, second, other = Held(), listed(), InvalidMessageError("no"), listed(success=False)
    held.add(A, first, size_bytes=10, at=1.0)
    held.add(B, other, size_bytes=10, at=2.0)
    held.add(A, second, size_bytes=10, at=3.0)

    taken = [held.take(A, since=1.0), held.take(A, since=1.0), held.take(B, since=1.0)]

    assert taken == [[first, second], [], [other]]


def test_what_was_said_before_the_question_is_no_answer() -> None:
    held, before, after = Held(), listed(), listed(success=False)
    held.add(A, before, size_bytes=10, at=1.0)
    held.add(A, after, size_bytes=10, at=3.0)

    taken = [held.take(A, since=2.0), held.take(A, since=0.0)]

    assert taken == [[after], []]


def test_a_request_that_is_sent_again_keeps_its_first_moment() -> None:
    sent, request = Sent(), ping(1)
    sent.add(request)
    first = sent.by_number(1)

    sent.add(request)

    assert sent.by_number(1) is first


def test_what_nobody_takes_is_bounded_in_size_and_age() -> None:
    large, old = Held(max_bytes=100), Held(held_s=10.0)

    for number in range(1000):
        large.add(NodeId(f"invented-{number}"), listed(), size_bytes=30, at=0.0)
        old.add(NodeId(f"invented-{number}"), listed(), size_bytes=30, at=5.0 * number)

    for held in (large, old):
        kept = [number for number in range(1000) if held.take(NodeId(f"invented-{number}"), since=0.0)]
        assert kept == [997, 998, 999]
