"""Leases on live metrics: asked for while somebody watches, renewed in time, given back at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Monitor
from fedmon.researcher.asking.match import Pending, Waiting
from fedmon.researcher.asking.request import Asker, checked_timeout

LEASE_S, RENEW_EVERY_S = 30.0, 10.0
MANY_NODES = 1_000
LONG_LEASE_S, RENEW_RARELY_S = 60.0, 20.0
"""With more nodes than that: each renewal is answered by every one of them."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What one watcher wants: of which nodes (null for all), and how often (null for each node's own pace).

    ``live`` asks for each sample at once, and not for batches.
    """

    nodes: frozenset[NodeId] | None
    interval_s: float | None
    live: bool = True


def wished(nodes: Iterable[NodeId] | None, interval_s: float | None, *, live: bool) -> Wish:
    """Return a wish. Raises InvalidInputError for an interval that is not a positive, finite number of seconds."""
    return Wish(
        nodes=None if nodes is None else frozenset(nodes),
        interval_s=None if interval_s is None else checked_timeout(interval_s, name="interval_s"),
        live=live,
    )


class Leases:
    """Keeps one lease a node for this process: the smallest interval that a watcher of that node wishes.

    Belongs to the thread of the inbox, but for `replies`, which are told on that thread anyway.
    """

    def __init__(self, asker: Asker, pending: Pending, on_answer: Callable[[Reply], None]) -> None:
        self._asker, self._pending, self._on_answer = asker, pending, on_answer
        self._wishes: tuple[Wish, ...] = ()
        self._told: list[Waiting] = []
        self._due_at: float | None = None

    def change(self, wishes: Iterable[Wish], now: float) -> None:
        """Take the wishes of everybody who watches now; asks for leases, or gives them back, as they demand."""
        before, self._wishes = self._wishes, tuple(wishes)
        gone = self._nobody_watches(before)
        if gone is not None:
            self._tell("stop", sorted(gone) or None, ())
        self._due_at = None
        self.renew(now)

    def renew(self, now: float) -> None:
        """Ask for every lease anew when it is time to."""
        if not self._wishes:
            self._due_at = None
            return
        if self._due_at is not None and now < self._due_at:
            return
        every_s = RENEW_RARELY_S if self._are_many() else RENEW_EVERY_S
        self._due_at = (now if self._due_at is None else self._due_at) + every_s
        self._forget_told()
        everybody = [wish for wish in self._wishes if wish.nodes is None]
        if everybody:
            self._tell("start", None, everybody)
        for node_id in sorted({node for wish in self._wishes for node in wish.nodes or ()}):
            self._tell("start", [node_id], self._wishes_for(node_id))

    def ask(self, node_id: NodeId) -> None:
        """Ask one node for its lease now: it has just come up, or what it keeps is to be known."""
        wishes = self._wishes_for(node_id)
        if wishes:
            self._tell("start", [node_id], wishes)

    def due_at(self) -> float | None:
        """Return when `renew` is to be called next, on the monotonic clock."""
        return self._due_at

    def _wishes_for(self, node_id: NodeId) -> list[Wish]:
        return [wish for wish in self._wishes if wish.nodes is None or node_id in wish.nodes]

    def _nobody_watches(self, before: tuple[Wish, ...]) -> set[NodeId] | None:
        """Return the nodes whose lease nobody needs any more: empty for all of them, null for none."""
        if any(wish.nodes is None for wish in self._wishes):
            return None
        if any(wish.nodes is None for wish in before):
            return set()
        watched = {node for wish in self._wishes for node in wish.nodes or ()}
        return {node for wish in before for node in wish.nodes or ()} - watched or None

    def _tell(self, action: str, nodes: list[NodeId] | None, wishes: Sequence[Wish]) -> None:
        fields: dict[str, Any] = {}
        if action == "start":
            live = any(wish.live for wish in wishes)
            lease_s = LONG_LEASE_S if self._are_many() else LEASE_S
            fields = {"interval_s": _smallest(wishes), "lease_s": lease_s, "live": live}
        request = self._asker.request(Monitor, action=action, **fields)
        self._told.append(self._asker.tell(request, nodes, on_answer=self._on_answer))

    def _are_many(self) -> bool:
        return len(self._asker.roster) > MANY_NODES

    def _forget_told(self) -> None:
        told, self._told = self._told, []
        for waiting in told:
            self._pending.close(waiting, taken=True)


def _smallest(wishes: Sequence[Wish]) -> float | None:
    return min((wish.interval_s for wish in wishes if wish.interval_s is not None), default=None)
