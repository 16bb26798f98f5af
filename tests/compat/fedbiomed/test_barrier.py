"""Finding the request that an answer belongs to, on a wire whose answers do not say."""

from __future__ import annotations

from fedmon.common.errors import InvalidMessageError
from fedmon.common.ids import NodeId
from fedmon.compat.fedbiomed.researcher_dialect import Held, Listed

A, B = NodeId("a"), NodeId("b")


def listed(success: bool = True) -> Listed:
    return Listed(by_tags=False, success=success, datasets=[])


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


def test_what_nobody_takes_is_bounded_in_size_and_age() -> None:
    large, old = Held(max_bytes=100), Held(held_s=10.0)

    for number in range(1000):
        large.add(NodeId(f"invented-{number}"), listed(), size_bytes=30, at=0.0)
        old.add(NodeId(f"invented-{number}"), listed(), size_bytes=30, at=5.0 * number)

    for held in (large, old):
        kept = [number for number in range(1000) if held.take(NodeId(f"invented-{number}"), since=0.0)]
        assert kept == [997, 998, 999]
