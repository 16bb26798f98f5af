"""Decisions and job outcomes that nodes send until they are acknowledged: each stored, acknowledged, delivered once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, TypeVar

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Ack, Result
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.queue import MAX_SEEN, Replies
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

A = TypeVar("A", bound=Result)


class Announcements(Generic[A]):
    """Takes decisions, or job outcomes, from the inbox and delivers them to callbacks. Safe from any thread.

    Announcements that are on disk are acknowledged, and those that a handle of this process has taken: until then the
    node sends them again. One counts as taken when a callback returned; the others are delivered to the first listener,
    also after a restart.
    """

    def __init__(self, kind: type[A], asker: Asker, replies: Replies, dispatcher: Dispatcher) -> None:
        self._kind, self._asker, self._replies, self._dispatcher = kind, asker, replies, dispatcher
        self._listeners: list[Subscription] = []
        self._had: dict[tuple[str, str], None] = {}
        """Those that a handle has taken, of the inbox thread."""

    def arrived(self, announcement: A, *, taken: bool = False) -> None:
        """Take one, however often it comes; one that is ``taken`` already waits for no listener."""
        key = (announcement.node_id, announcement.id)
        if key in self._had or (taken and not self._listeners):  # job-status returns it later
            self._had[key] = None  # a copy may come once the handle is gone
            if len(self._had) > MAX_SEEN:
                del self._had[next(iter(self._had))]
            self._acknowledge(announcement)
            return
        self._replies.keep(
            announcement,
            only_once=True,
            on_kept=lambda key, first: self._stored(announcement, key, first=first, taken=taken),
        )

    def take(self, wanted: Callable[[A], bool]) -> list[A]:
        """Return the wanted ones that were not taken; they count as taken then."""
        found = [(key, announcement) for key, announcement in self._replies.kept(self._kind) if wanted(announcement)]
        return [announcement for key, announcement in found if self._replies.discard(key)]

    def listen(self, callback: Callable[[A], object]) -> Subscription:
        """Call back at each until the subscription is removed, and now for those that were not taken.

        Raises BusyError if the thread that stores replies closes or is overloaded.
        """
        subscription = Subscription(callback, self._listeners.remove)

        def begin() -> None:
            self._listeners.append(subscription)
            for key, announcement in self._replies.kept(self._kind):
                self._call(subscription, key, announcement)

        # On the thread that stores, so that none is told twice, or not at all.
        self._replies.between_writes(begin)
        return subscription

    def _stored(self, announcement: A, key: int, *, first: bool, taken: bool) -> None:
        # An instance without a disk may not acknowledge for the others, but it has the outcomes that it waited for:
        # otherwise the outcome of each run from a shell would be sent at each command of the shell, for a month.
        if self._replies.durable or taken:
            self._acknowledge(announcement)
        if first and taken:
            self._replies.discard(key)
        for subscription in list(self._listeners) if first else ():
            self._call(subscription, key, announcement)

    def _acknowledge(self, announcement: A) -> None:
        self._asker.send(self._asker.request(Ack, ids=[announcement.id]), [NodeId(announcement.node_id)])

    def _call(self, subscription: Subscription, key: int, announcement: A) -> None:
        discard = functools.partial(self._replies.discard, key)
        self._dispatcher.call(subscription, (announcement,), urgent=True, on_success=discard)
