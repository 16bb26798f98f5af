"""Decisions and job outcomes that nodes send until they are acknowledged: each stored, acknowledged, delivered once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Ack, Result
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.queue import Replies
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

A = TypeVar("A", bound=Result)


class Announcements(Generic[A]):
    """Takes decisions, or job outcomes, from the inbox and delivers them to callbacks. Safe from any thread.

    Announcements that are on disk are acknowledged, and those that a handle of this process has taken: until then the
    node sends them again. One counts as taken when a callback returned; the others are delivered to the first listener,
    also after a restart.
    """

    def __init__(self, kind: type[A], asker: Asker, replies: Replies, dispatcher: Dispatcher) -> None:
        self._asker, self._replies, self._dispatcher = asker, replies, dispatcher
        self._lock = threading.Lock()
        self._listeners: tuple[Subscription, ...] = ()
        command = str(kind.__struct_config__.tag)
        self._untaken = {key: message for key, message in replies.kept(command) if isinstance(message, kind)}

    def arrived(self, announcement: A, *, taken: bool = False) -> None:
        """Take one, however often it comes; one that is ``taken`` already waits for no listener."""
        self._replies.keep(
            announcement,
            only_once=True,
            on_kept=lambda key, first: self._stored(announcement, key, first=first, taken=taken),
        )

    def take(self, wanted: Callable[[A], bool]) -> list[A]:
        """Return the wanted ones that were not taken; they count as taken then."""
        with self._lock:
            found = {key: announcement for key, announcement in self._untaken.items() if wanted(announcement)}
        taken = [announcement for key, announcement in found.items() if self._replies.keeps(key)]
        for key in found:
            self._taken(key)
        return taken

    def listen(self, callback: Callable[[A], object]) -> Subscription:
        """Call back at each until the subscription is removed, and now for those that were not taken."""
        subscription = Subscription(callback, self._removed)
        with self._lock:
            self._listeners += (subscription,)
            untaken = dict(self._untaken)
        for key, announcement in untaken.items():
            if self._replies.keeps(key):
                self._call(subscription, key, announcement)
        return subscription

    def _stored(self, announcement: A, key: int, *, first: bool, taken: bool) -> None:
        # An instance without a disk may not acknowledge for the others, but it has the outcomes that it waited for:
        # otherwise the outcome of each run from a shell would be sent at each command of the shell, for a month.
        if self._replies.durable or taken:
            ack = self._asker.request(Ack, ids=[announcement.id])
            self._asker.send(ack, self._asker.dialect.encode(ack), [NodeId(announcement.node_id)])
        if not first:
            return
        with self._lock:
            listeners = self._listeners
            self._untaken[key] = announcement
        if taken:
            self._taken(key)
        for subscription in listeners:
            self._call(subscription, key, announcement)

    def _call(self, subscription: Subscription, key: int, announcement: A) -> None:
        self._dispatcher.call(subscription, (announcement,), urgent=True, on_success=lambda: self._taken(key))

    def _taken(self, key: int) -> None:
        with self._lock:
            self._untaken.pop(key, None)
        self._replies.discard(key)

    def _removed(self, subscription: Subscription) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not subscription)
