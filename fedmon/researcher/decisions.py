"""Decisions of owners about plans: safe first, then acknowledged, then told to who wants to know; each once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedmon.common.ids import NodeId
from fedmon.common.wire.messages import Ack, PlanDecision
from fedmon.researcher.asking import Asker
from fedmon.researcher.dispatcher import Dispatcher, Subscription
from fedmon.researcher.replies import Replies


class Decisions:
    """Takes decisions from the inbox and tells them to callbacks. Safe from any thread.

    Only the instance that keeps replies on disk acknowledges: until then the node sends a decision again. A decision
    counts as taken when a callback returned; what nobody took is told to the first who listens, also after a restart.
    """

    def __init__(self, asker: Asker, replies: Replies, dispatcher: Dispatcher) -> None:
        self._asker, self._replies, self._dispatcher = asker, replies, dispatcher
        self._lock = threading.Lock()
        self._listeners: tuple[Subscription, ...] = ()
        self._untold = {
            key: message for key, message in replies.kept("plan-decision") if isinstance(message, PlanDecision)
        }

    def arrived(self, decision: PlanDecision) -> None:
        """Take a decision, however often it comes."""
        self._replies.keep(
            decision, only_once=True, on_kept=lambda key, *, first: self._is_safe(decision, key, first=first)
        )

    def listen(self, callback: Callable[[PlanDecision], object]) -> Subscription:
        """Call back at each decision until the subscription is removed, and now for those that nobody took."""
        subscription = Subscription(callback, self._removed)
        with self._lock:
            self._listeners += (subscription,)
            untold = dict(self._untold)
        for key, decision in untold.items():
            if self._replies.keeps(key):
                self._tell(subscription, key, decision)
        return subscription

    def _is_safe(self, decision: PlanDecision, key: int, *, first: bool) -> None:
        if self._replies.durable:
            ack = self._asker.dialect.encode(self._asker.request(Ack, ids=[decision.id]))
            self._asker.send(ack, [NodeId(decision.node_id)])
        if not first:
            return
        with self._lock:
            listeners = self._listeners
            self._untold[key] = decision
        for subscription in listeners:
            self._tell(subscription, key, decision)

    def _tell(self, subscription: Subscription, key: int, decision: PlanDecision) -> None:
        self._dispatcher.call(subscription, (decision,), urgent=True, on_success=lambda: self._taken(key))

    def _taken(self, key: int) -> None:
        with self._lock:
            self._untold.pop(key, None)
        self._replies.discard(key)

    def _removed(self, subscription: Subscription) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not subscription)
