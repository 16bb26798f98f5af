"""What nodes announce and keep until we have it: safe first, then acknowledged, then told to who listens; each once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Ack, Result
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.replies.replies import Replies
from fedmon.researcher.session.callbacks import Dispatcher, Subscription

A = TypeVar("A", bound=Result)


class Announcements(Generic[A]):
    """Takes decisions, or job outcomes, from the inbox and tells them to callbacks. Safe from any thread.

    What is kept on disk is acknowledged, and what a handle of this process has taken: until then the node sends it
    again. One counts as taken when a callback returned; what nobody took is told to the first who listens, also after a
    restart.
    """

    def __init__(self, kind: type[A], asker: Asker, replies: Replies, dispatcher: Dispatcher) -> None:
        self._asker, self._replies, self._dispatcher = asker, replies, dispatcher
        self._lock = threading.Lock()
        self._listeners: tuple[Subscription, ...] = ()
        command = str(kind.__struct_config__.tag)
        self._untold = {key: message for key, message in replies.kept(command) if isinstance(message, kind)}

    def arrived(self, announcement: A, *, taken: bool = False) -> None:
        """Take one, however often it comes; one that is ``taken`` already waits for nobody to listen."""
        self._replies.keep(
            announcement,
            only_once=True,
            on_kept=lambda key, *, first: self._is_safe(announcement, key, first=first, taken=taken),
        )

    def take(self, wanted: Callable[[A], bool]) -> list[A]:
        """Return those that nobody took and that are wanted; they count as taken then."""
        with self._lock:
            found = {key: announcement for key, announcement in self._untold.items() if wanted(announcement)}
        taken = [announcement for key, announcement in found.items() if self._replies.keeps(key)]
        for key in found:
            self._taken(key)
        return taken

    def listen(self, callback: Callable[[A], object]) -> Subscription:
        """Call back at each until the subscription is removed, and now for those that nobody took."""
        subscription = Subscription(callback, self._removed)
        with self._lock:
            self._listeners += (subscription,)
            untold = dict(self._untold)
        for key, announcement in untold.items():
            if self._replies.keeps(key):
                self._tell(subscription, key, announcement)
        return subscription

    def _is_safe(self, announcement: A, key: int, *, first: bool, taken: bool) -> None:
        # An instance without a disk may not acknowledge for the others, but what it was waiting for it has: otherwise
        # the outcomes of everything that is run from a shell would be sent at each of its commands, for a month.
        if self._replies.durable or taken:
            ack = self._asker.request(Ack, ids=[announcement.id])
            self._asker.send(ack, self._asker.dialect.encode(ack), [NodeId(announcement.node_id)])
        if not first:
            return
        with self._lock:
            listeners = self._listeners
            self._untold[key] = announcement
        if taken:
            self._taken(key)
        for subscription in listeners:
            self._tell(subscription, key, announcement)

    def _tell(self, subscription: Subscription, key: int, announcement: A) -> None:
        self._dispatcher.call(subscription, (announcement,), urgent=True, on_success=lambda: self._taken(key))

    def _taken(self, key: int) -> None:
        with self._lock:
            self._untold.pop(key, None)
        self._replies.discard(key)

    def _removed(self, subscription: Subscription) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not subscription)
