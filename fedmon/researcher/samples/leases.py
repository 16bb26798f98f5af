"""Leases on live metrics: asked for while there are consumers, renewed in time, given back at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Monitor
from fedmon.researcher.asking.match import Pending, PendingRequest
from fedmon.researcher.asking.request import Asker, checked_timeout

LEASE_S, RENEW_EVERY_S = 30.0, 10.0
MANY_NODES = 1_000
LONG_LEASE_S, RENEW_RARELY_S = 60.0, 20.0
"""With more nodes than that: each renewal is answered by every one of them."""

Choice = frozenset[NodeId] | None
"""Nodes, or None for all."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The lease that one consumer needs: of which nodes, and how often (None for each node's own pace).

    ``live`` asks for each sample at once, not for batches.
    """

    nodes: Choice
    interval_s: float | None
    live: bool = True


def wished(nodes: Iterable[NodeId] | None, interval_s: float | None, *, live: bool) -> Wish:
    """Return a wish. Raises InvalidInputError for an interval that is not a positive, finite number of seconds."""
    return Wish(
        nodes=None if nodes is None else frozenset(nodes),
        interval_s=None if interval_s is None else checked_timeout(interval_s, name="interval_s"),
        live=live,
    )


def _union(choices: Iterable[Choice]) -> Choice:
    nodes: set[NodeId] = set()
    for choice in choices:
        if choice is None:
            return None
        nodes |= choice
    return frozenset(nodes)


class Leases:
    """Keeps one lease a node for this process: the smallest interval that a consumer of that node wishes.

    Belongs to the inbox thread, which ``on_answer`` is called on.
    """

    def __init__(self, asker: Asker, pending: Pending, on_answer: Callable[[Reply], None]) -> None:
        self._asker, self._pending, self._on_answer = asker, pending, on_answer
        self._wishes: tuple[Wish, ...] = ()
        self._told: list[PendingRequest] = []
        self._due_at: float | None = None

    def change(self, wishes: Iterable[Wish], now: float) -> None:
        """Take the present wishes of all consumers; asks for leases, or gives them back, as they demand."""
        before, self._wishes = _union(wish.nodes for wish in self._wishes), tuple(wishes)
        wanted = _union(wish.nodes for wish in self._wishes)
        if wanted is not None:
            if before is None:
                self._tell("stop", None)
            elif before - wanted:
                self._tell("stop", sorted(before - wanted))
        self._due_at = None
        self.renew(now)

    def renew(self, now: float) -> None:
        """Ask for every lease again if that is due."""
        if not self._wishes:
            self._due_at = None
            return
        if self._due_at is not None and now < self._due_at:
            return
        every_s = RENEW_RARELY_S if self._are_many() else RENEW_EVERY_S
        self._due_at = (now if self._due_at is None else self._due_at) + every_s
        told, self._told = self._told, []
        for waiting in told:
            self._pending.close(waiting, taken=True)
        for_all = [wish for wish in self._wishes if wish.nodes is None]
        if for_all:
            self._tell("start", None, for_all)
        for node_id in sorted({node for wish in self._wishes for node in wish.nodes or ()}):
            self.ask(node_id)

    def ask(self, node_id: NodeId) -> None:
        """Ask one node for its lease now: it has just come up, or its extents are needed."""
        wishes = [wish for wish in self._wishes if wish.nodes is None or node_id in wish.nodes]
        if wishes:
            self._tell("start", [node_id], wishes)

    def due_at(self) -> float | None:
        """Return when `renew` is to be called next, on the monotonic clock."""
        return self._due_at

    def _tell(self, action: str, nodes: list[NodeId] | None, wishes: Sequence[Wish] = ()) -> None:
        fields: dict[str, Any] = {}
        if wishes:
            fields = {
                "interval_s": min((wish.interval_s for wish in wishes if wish.interval_s is not None), default=None),
                "lease_s": LONG_LEASE_S if self._are_many() else LEASE_S,
                "live": any(wish.live for wish in wishes),
            }
        request = self._asker.request(Monitor, action=action, **fields)
        self._told.append(self._asker.tell(request, nodes, on_answer=self._on_answer))

    def _are_many(self) -> bool:
        return len(self._asker.roster) > MANY_NODES
