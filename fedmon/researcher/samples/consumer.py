"""Who takes samples: what a watch and a record have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from fedmon.common.ids import NodeId
from fedmon.common.metrics.batch import Batch
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import Error
from fedmon.common.wire.samples import MonitorReply
from fedmon.researcher.samples.leases import Wish
from fedmon.researcher.samples.refill_follower import Follower


class Consumer:
    """Takes samples until `close`; a context manager. ``heard`` and ``answered`` belong to the thread of the inbox.

    ``wish`` is what it holds leases for; ``refusals`` says which nodes grant none, and why.
    """

    follower: Follower

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.refusals: dict[NodeId, str] = {}
        self.closed = False

    @property
    def lost(self) -> int:
        """How many samples will not come: their nodes do not have them any more; `losses` says why."""
        return sum(self.losses.values())

    @property
    def losses(self) -> Mapping[str, int]:
        """How many samples were lost since this began, by reason."""
        return dict(self.follower.losses)

    def close(self) -> None:
        """End it; may be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def heard(self, batch: Batch, size_bytes: int) -> None:
        """Take a live batch, which weighs this much in memory."""
        if not self.closed:
            self.follower.heard(batch, size_bytes)

    def answered(self, reply: Reply) -> None:
        """Take what a node says about the lease, and what it keeps."""
        raise NotImplementedError

    def _granted(self, reply: Reply) -> MonitorReply | None:
        """Return the answer of a node that grants the lease; note why, where it does not."""
        node_id = NodeId(reply.node_id)
        if isinstance(reply, MonitorReply) and reply.success:
            self.refusals.pop(node_id, None)
            return reply
        if isinstance(reply, Error | MonitorReply):
            self.refusals[node_id] = reply.reason
        return None
