"""The consumers of samples in this process, and the leases that they share.

A lease is asked for while there is a consumer, renewed in time, and given back at the end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError
from fedmon.common.files import Closing
from fedmon.common.ids import NodeId
from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording_reader import chooser
from fedmon.common.text import joined
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import MAX_INTERVAL_S, Error, Monitor
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.asking.request import Asker, checked_timeout
from fedmon.researcher.roster import NEVER_HEARD, Moment
from fedmon.researcher.samples.resend import Resend, StreamFollower

logger = logging.getLogger(__name__)

LEASE_S, RENEW_EVERY_S, FLUSH_S = 30.0, 10.0, 2.0
UNMATCHED_AFTER_S = 75.0
"""After so long a metric that did not come may be a wrong name: nodes read all within 60 s, and send them in 10 s."""
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
    """Return a wish, of an hour at most, as no owner's own interval is longer.

    Raises InvalidInputError for an interval that is not a positive, finite number of seconds.
    """
    return Wish(
        nodes=None if nodes is None else frozenset(nodes),
        interval_s=None if interval_s is None else min(checked_timeout(interval_s, name="interval_s"), MAX_INTERVAL_S),
        live=live,
    )


def union(choices: Iterable[Choice]) -> Choice:
    """Return the nodes that any of the choices names."""
    found = list(choices)
    return None if None in found else frozenset(node_id for nodes in found for node_id in nodes or ())


class SampleConsumer(Closing):
    """A watch or a record: takes samples until `close`; a context manager.

    ``wish`` is the lease that it needs, ``metrics`` are the names or globs of the series that it takes, None for all.
    """

    follower: StreamFollower

    def __init__(self, consumers: Consumers, wish: Wish, metrics: Sequence[str] | None = None) -> None:
        self._consumers, self.wish = consumers, wish
        self._unmatched = set(metrics or ())
        self._wanted = chooser(metrics, unmatched=self._unmatched)
        self._unmatched_due, self._chosen_from = Deadline(UNMATCHED_AFTER_S), 0
        self._refused: dict[NodeId, str] = {}
        self.closed = False

    @property
    def refusals(self) -> dict[NodeId, str]:
        """Why nodes grant no lease: those that refuse it, and named ones that are not online. Safe from any thread."""
        return self._consumers.not_online(self.wish.nodes or ()) | self._refused

    @property
    def lost(self) -> int:
        """How many samples will not come, because their nodes no longer have them; `losses` says why."""
        return sum(self.losses.values())

    @property
    def losses(self) -> Mapping[str, int]:
        """How many samples were lost since this began, by reason."""
        return dict(self.follower.losses)

    def answered(self, reply: Reply) -> None:
        """Take a node's answer to the lease; called on the inbox thread."""
        if not self.follower.follows(reply.node_id):
            return
        self.follower.answered(reply, time.monotonic())
        if isinstance(reply, MonitorReply) and reply.success:
            self._refused.pop(NodeId(reply.node_id), None)
            self._granted(NodeId(reply.node_id), reply)
        elif isinstance(reply, Error | MonitorReply):
            self._refused[NodeId(reply.node_id)] = reply.reason
        if self._chosen_from and self._unmatched_due.passed():
            self._unmatched_due = Deadline(None)
            self._tell_unmatched()

    def _granted(self, node_id: NodeId, reply: MonitorReply) -> None:
        """Take the metrics and extents of a node."""

    def _chosen(self, batch: Batch) -> Batch:
        """Return a batch with its wanted series alone."""
        self._chosen_from += len(batch.t)
        return batch if self._wanted is None else batch.only(list(filter(self._wanted, batch.columns)))

    def _tell_unmatched(self) -> None:
        """Warn of each wanted metric that none of the samples has, if any came."""
        if self._unmatched and self._chosen_from:
            logger.warning(
                "none of %d samples has a metric %s", self._chosen_from, joined(sorted(self._unmatched), last=" or ")
            )


class Consumers:
    """All consumers of this process: they share resent pages, and one lease a node with the smallest interval wished.

    Belongs to the inbox thread, but for `add`, `remove`, `flush`, `not_online`, `wake` and `all`, safe from any thread.
    ``subscribe`` is called at each change of `all`, then ``wake``, which has the inbox call `tick` now. ``drain``
    waits at most some seconds until the inbox has handled earlier messages.
    """

    def __init__(
        self, asker: Asker, *, subscribe: Callable[[], None], wake: Callable[[], None], drain: Callable[[float], None]
    ) -> None:
        self._asker, self._subscribe, self.wake, self._drain = asker, subscribe, wake, drain
        self.wishes: tuple[Wish, ...] = ()
        """Those that nodes were last asked for; without one and without consumers there is nothing to do."""
        self._renew_at: float | None = None
        self._resend = Resend(asker)
        self._lock = threading.Lock()
        self._wishes_changed = False
        self._inquiries: dict[NodeId, float] = {}
        self._subscribed: tuple[SampleConsumer, ...] = ()
        self.all: tuple[SampleConsumer, ...] = ()

    def add(self, consumer: SampleConsumer) -> None:
        """Begin to deliver samples to a consumer, and to hold leases for it."""
        with self._lock:
            self.all += (consumer,)
            self._changed()

    def remove(self, consumer: SampleConsumer) -> None:
        """Undo `add`."""
        with self._lock:
            self.all = tuple(one for one in self.all if one is not consumer)
            self._changed()

    def flush(self, consumer: SampleConsumer) -> None:
        """Have nodes that are online send the batches that are open, and deliver these, within about 2 s."""
        there, wishes = self._asker.roster.nodes(Moment.now()), [one.wish for one in self.all]
        nodes = [id_ for id_ in there if there[id_].is_online and consumer.follower.follows(id_)]
        request = self._asker.request(Monitor, **self._lease(wishes) | {"live": True})
        if consumer in self.all and self._asker.connection.is_connected:
            with contextlib.suppress(FedmonError):
                self._asker.answers(request, nodes, timeout_s=FLUSH_S)
            self._drain(FLUSH_S)

    def _changed(self) -> None:
        # A node answers a new lease with a sample at once, which comes only to those who have subscribed before.
        self._subscribe()
        self._subscribed, self._wishes_changed = self.all, True
        self.wake()

    def not_online(self, nodes: Iterable[str]) -> dict[NodeId, str]:
        """Return why those of the nodes that are not online are not; of unknown ones once the roster is settled."""
        now, is_settled = Moment.now(), self._asker.roster.settled.is_set()
        known = {node_id: self._asker.roster.get(node_id, now) for node_id in nodes}
        return {
            NodeId(node_id): NEVER_HEARD if node is None else f"{node.state.value}: {node.reason}".removesuffix(": ")
            for node_id, node in known.items()
            if (is_settled if node is None else not node.is_online)
        }

    def farewell(self, now: float) -> None:
        """Give every lease back."""
        self._change_leases((), now)

    def link(self, *, up: bool) -> None:
        """Note that the connection came up or was lost."""
        self._wishes_changed = self._wishes_changed or up
        self._resend.link(up=up)

    def node_changed(self, node_id: NodeId, *, is_up: bool) -> None:
        """Note that a node went offline, or came up: then it has neither leases nor open requests."""
        for consumer in self.all:
            consumer.follower.node_changed(node_id, is_up=is_up)
        if is_up:
            self._resend.node_came_up(node_id)
            self._ask(node_id)

    def heard(self, batch: Batch, size_bytes: int) -> None:
        """Deliver a live batch, which takes ``size_bytes`` in memory, to all consumers."""
        for consumer in self.all:
            consumer.follower.heard(batch, size_bytes)

    def inquire(self, node_id: NodeId, at: float) -> None:
        """Ask a node which samples it keeps, at a moment of the monotonic clock or later."""
        self._inquiries[node_id] = min(at, self._inquiries.get(node_id, at))

    def tick(self, now: float) -> float | None:
        """Run the jobs that are due; return when to be called next, on the monotonic clock, None for never."""
        if self._wishes_changed:
            self._wishes_changed = False
            self._change_leases((consumer.wish for consumer in self._subscribed), now)
        self._renew(now)
        for node_id in [node_id for node_id, at in self._inquiries.items() if at <= now]:
            del self._inquiries[node_id]
            self._ask(node_id)
        followers = [consumer.follower for consumer in self._subscribed]
        for follower in followers:
            follower.tick(now)
        self._resend.look(followers, now)
        dues = [self._renew_at, self._resend.due_at, *(one.follower.due_at() for one in self.all)]
        dues += self._inquiries.values()
        return min((due for due in dues if due is not None), default=None)

    # --- leases ------------------------------------------------------------------------------------------------------

    def _change_leases(self, wishes: Iterable[Wish], now: float) -> None:
        """Take the present wishes of all consumers; asks for leases, or gives them back, as they demand."""
        before, self.wishes = union(wish.nodes for wish in self.wishes), tuple(wishes)
        wanted = union(wish.nodes for wish in self.wishes)
        if wanted is not None:
            left = None if before is None else sorted(before - wanted)
            if left != []:
                self._tell(left, action="stop")
        self._renew_at = None
        self._renew(now)

    def _renew(self, now: float) -> None:
        """Ask for every lease again if that is due."""
        if not self.wishes or (self._renew_at is not None and now < self._renew_at):
            return
        self._renew_at = now + (RENEW_RARELY_S if self._are_many() else RENEW_EVERY_S)
        if for_all := [wish for wish in self.wishes if wish.nodes is None]:
            self._tell(None, **self._lease(for_all))
        for node_id in sorted({node for wish in self.wishes for node in wish.nodes or ()}):
            self._ask(node_id)

    def _ask(self, node_id: NodeId) -> None:
        """Ask one node for its lease now: it has just come up, or its extents are needed."""
        if wishes := [wish for wish in self.wishes if wish.nodes is None or node_id in wish.nodes]:
            self._tell([node_id], **self._lease(wishes))

    def _lease(self, wishes: Sequence[Wish]) -> dict[str, Any]:
        """Return the fields of a request for the lease that these wishes need together."""
        return {
            "action": "start",
            "interval_s": min((wish.interval_s for wish in wishes if wish.interval_s is not None), default=None),
            "lease_s": LONG_LEASE_S if self._are_many() else LEASE_S,
            "live": any(wish.live for wish in wishes),
        }

    def _tell(self, nodes: list[NodeId] | None, **fields: Any) -> None:
        self._asker.tell(self._asker.request(Monitor, **fields), nodes, on_answer=self._on_answer)

    def _are_many(self) -> bool:
        return len(self._asker.roster) > MANY_NODES

    def _on_answer(self, reply: Reply) -> None:
        for consumer in self.all:
            consumer.answered(reply)
