"""The hand-over between threads: bounded, and no flood displaces what is urgent."""

from __future__ import annotations

import threading

from fedmon.common.clock import Deadline
from fedmon.researcher.session.lanes import BULK_AT_ONCE, Lanes


def test_a_full_bulk_lane_drops_and_counts_and_leaves_the_urgent_lane_alone() -> None:
    lanes: Lanes[str] = Lanes(urgent_limit=3, bulk_limit=2)

    taken = [lanes.put(f"bulk {number}", urgent=False) for number in range(4)]
    urgent = [lanes.put(f"urgent {number}", urgent=True) for number in range(3)]

    assert taken == [True, True, False, False]
    assert urgent == [True, True, True]
    assert (lanes.dropped_bulk, lanes.dropped_urgent) == (2, 0)
    assert lanes.take(timeout_s=0) == (["urgent 0", "urgent 1", "urgent 2"], ["bulk 0", "bulk 1"])


def test_a_lane_is_bounded_in_bytes_too_and_takes_again_once_it_was_read() -> None:
    lanes: Lanes[str] = Lanes(lane_bytes=100)
    lanes.put("large", urgent=True, size_bytes=101)

    refused = lanes.put("small", urgent=True, size_bytes=1)
    lanes.take(timeout_s=0)
    taken = lanes.put("small", urgent=True, size_bytes=1)

    assert (refused, taken, lanes.dropped_urgent) == (False, True, 1)


def test_bulk_comes_a_few_at_a_time_so_that_what_is_urgent_waits_for_no_more_than_those() -> None:
    lanes: Lanes[int] = Lanes()
    for number in range(BULK_AT_ONCE + 5):
        lanes.put(number, urgent=False)

    _, first = lanes.take(timeout_s=0)
    _, second = lanes.take(timeout_s=0)

    assert first == list(range(BULK_AT_ONCE))
    assert second == list(range(BULK_AT_ONCE, BULK_AT_ONCE + 5))


def test_a_waiting_reader_gets_what_is_put_and_is_woken_by_closing() -> None:
    lanes: Lanes[str] = Lanes()
    taken: list[tuple[list[str], list[str]]] = []
    reader = threading.Thread(target=lambda: taken.extend(lanes.take(timeout_s=10) for _ in range(2)))
    reader.start()

    lanes.put("reply", urgent=True)
    lanes.close()
    reader.join(5)

    assert not reader.is_alive()
    assert [urgent for urgent, _ in taken if urgent] == [["reply"]]
    assert not lanes.put("late", urgent=True)


def test_a_reader_that_was_woken_just_before_it_waits_does_not_wait_but_once() -> None:
    lanes: Lanes[int] = Lanes()
    lanes.wake()
    deadline = Deadline(5.0)

    assert lanes.take(timeout_s=10.0) == ([], [])
    assert not deadline.passed()
    assert lanes.take(timeout_s=0.05) == ([], [])
