"""Everybody who takes samples in this process: they share one lease a node, and what is pulled again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.samples import SampleBatch, as_batch
from fedmon.researcher.asking.match import Pending
from fedmon.researcher.asking.request import Asker
from fedmon.researcher.samples.consumer import Consumer
from fedmon.researcher.samples.leases import Leases
from fedmon.researcher.samples.refill import Refill


class Consumers:
    """Belongs to the thread of the inbox, but for `add`, `remove` and `all`, which are safe from any.

    ``on_changed`` is called after `add` and `remove`.
    """

    def __init__(self, asker: Asker, pending: Pending, *, on_changed: Callable[[], None]) -> None:
        self._on_changed = on_changed
        self._leases = Leases(asker, pending, self._on_answer)
        self._refill = Refill(asker, pending)
        self._lock = threading.Lock()
        self._wishes_changed = False
        self._inquiries: set[NodeId] = set()
        self.all: tuple[Consumer, ...] = ()

    def add(self, consumer: Consumer) -> None:
        """Begin to hand samples to a consumer, and to hold leases for it."""
        with self._lock:
            self.all += (consumer,)
            self._wishes_changed = True
        self._on_changed()

    def remove(self, consumer: Consumer) -> None:
        """End what `add` began."""
        with self._lock:
            self.all = tuple(one for one in self.all if one is not consumer)
            self._wishes_changed = True
        self._on_changed()

    def farewell(self, now: float) -> None:
        """Give every lease back."""
        self._leases.change((), now)

    # --- what happens ------------------------------------------------------------------------------------------------

    def link(self, *, up: bool) -> None:
        """Hear that the connection came up or was lost."""
        self._wishes_changed = self._wishes_changed or up
        self._refill.link(up=up)

    def node_came_up(self, node_id: NodeId) -> None:
        """Hear that a node came up: it knows nothing of what it was asked before."""
        self._refill.node_came_up(node_id)
        self._leases.ask(node_id)

    def node_heard(self, node_id: NodeId) -> None:
        """Hear a sign of life of a node."""
        self._refill.node_heard(node_id)

    def heard(self, message: SampleBatch, size_bytes: int) -> None:
        """Hand a live batch, which weighs this much in memory, to everybody."""
        if self.all:
            batch = as_batch(message)
            for consumer in self.all:
                consumer.heard(batch, size_bytes)

    def inquire(self, node_id: NodeId) -> None:
        """Ask a node soon what it keeps."""
        self._inquiries.add(node_id)

    def tick(self, now: float) -> None:
        """Do what time asks for."""
        if self._wishes_changed:
            self._wishes_changed = False
            self._leases.change((consumer.wish for consumer in self.all), now)
        self._leases.renew(now)
        inquiries, self._inquiries = self._inquiries, set()
        for node_id in inquiries:
            self._leases.ask(node_id)
        for consumer in self.all:
            consumer.follower.tick(now)
        self._refill.look(self.all, now)

    def due_at(self) -> float | None:
        """Return when `tick` is to be called next, on the monotonic clock."""
        dues = [self._leases.due_at(), self._refill.due_at(), *(one.follower.due_at() for one in self.all)]
        return min((due for due in dues if due is not None), default=None)

    def _on_answer(self, reply: Reply) -> None:
        for consumer in self.all:
            consumer.answered(reply)
