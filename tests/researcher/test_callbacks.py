"""User callbacks: bounded, in order, and no flood of samples displaces an urgent call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fedmon.researcher.session.callbacks import MAX_BYTES, Dispatcher, Subscription
from fedmon.researcher.session.inbox import Tally
from tests.support.waiting import wait_until


class Slow:
    """A callback that waits until it is let go."""

    def __init__(self) -> None:
        self.let_go, self.begun = threading.Event(), threading.Event()
        self.called: list[object] = []
        self.subscription = Subscription(self, lambda _: None)

    def __call__(self, value: object) -> None:
        self.begun.set()
        self.let_go.wait(10)
        self.called.append(value)


@pytest.fixture
def rooms() -> list[None]:
    return []


@pytest.fixture
def dispatcher(rooms: list[None]) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(Tally(), on_room=lambda: rooms.append(None))
    yield dispatcher
    dispatcher.stop()


def test_calls_are_bounded_in_bytes_and_room_is_told_of_once_after_it_was_missed(
    dispatcher: Dispatcher, rooms: list[None]
) -> None:
    slow = Slow()
    dispatcher.call(slow.subscription, ("running",), urgent=True)
    assert slow.begun.wait(10)
    for _ in range(3):
        dispatcher.call(slow.subscription, ("large",), urgent=False, size_bytes=MAX_BYTES // 2)

    full = dispatcher.call(slow.subscription, ("late",), urgent=False, size_bytes=1)
    had_room = dispatcher.has_room(slow.subscription)
    slow.let_go.set()
    wait_until(lambda: slow.called == ["running", "large", "large", "large"])
    wait_until(lambda: len(rooms) == 1)

    assert (full, had_room) == (False, False)
    assert dispatcher.has_room(slow.subscription)
