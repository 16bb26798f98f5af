"""User callbacks: bounded, in order, and no flood of samples displaces an urgent call."""

from __future__ import annotations

import threading

from fedmon.researcher.session.callbacks import MAX_BYTES, Dispatcher, Subscription
from fedmon.researcher.session.inbox import Tally
from tests.support.waiting import wait_until


def test_calls_are_bounded_in_bytes_and_have_room_again_when_half_of_them_are_served() -> None:
    let_go, begun = threading.Event(), threading.Event()
    called = list[object]()
    dispatcher = Dispatcher(Tally())

    def slow(value: object) -> None:
        begun.set()
        let_go.wait(10)
        called.append(value)

    subscription = Subscription(slow, lambda _: None)
    dispatcher.call(subscription, ("running",), urgent=True)
    assert begun.wait(10)
    for _ in range(3):
        dispatcher.call(subscription, ("large",), urgent=False, size_bytes=MAX_BYTES // 2)

    full = dispatcher.call(subscription, ("late",), urgent=False, size_bytes=1)
    had_room = dispatcher.has_room(subscription)
    let_go.set()
    wait_until(lambda: called == ["running", "large", "large", "large"])

    assert (full, had_room) == (False, False)
    assert dispatcher.has_room(subscription)
    dispatcher.stop()
