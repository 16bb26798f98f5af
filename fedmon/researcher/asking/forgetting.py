"""Forgetting a node that is gone for good, whose presence the broker still retains."""

from __future__ import annotations

import msgspec

from fedmon.common.errors import ConflictError, NotFoundError
from fedmon.common.ids import NodeId
from fedmon.common.wire import topics
from fedmon.common.wire.messages import Ping
from fedmon.researcher.roster import Instant, NodeState
from fedmon.researcher.session.parts import Parts


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What came of forgetting a node; ``cleared`` when the broker no longer retains its presence for anybody."""

    node_id: NodeId
    cleared: bool
    text: str

    def __str__(self) -> str:
        return self.text


def forget(parts: Parts, node_id: NodeId, *, timeout_s: float) -> Forgotten:
    """Ask the broker to clear what it retains of a node, see whether it did, and hide the node here in any case.

    A node that is only said to be online is pinged first. Raises NotFoundError for an id never heard of, ConflictError
    for a node that is alive.
    """
    parts.wait_settled()
    node = parts.roster.get(node_id, Instant.now())
    if node is None:
        raise NotFoundError(f"node {node_id!r} was never heard of; nodes() lists who was")
    is_alive = node.state in (NodeState.ONLINE, NodeState.DRAINING)
    if node.last_seen is None and node.state is not NodeState.OFFLINE:
        # What the broker retains is a belief; an answer is a sign of life.
        is_alive = bool(parts.asker.ask(parts.asker.request(Ping), [node_id], timeout_s=parts.timeout_s).answers)
    if is_alive:
        raise ConflictError(f"node {node_id!r} is online; only a node that is gone can be forgotten")
    gone = parts.machinery.clearing(node_id)
    try:
        if not parts.connection.publish(topics.status(node_id), b"", qos=1, retain=True):
            raise parts.connection.lost_error()
        cleared = gone.wait(timeout_s)
        parts.check_open()
    finally:
        parts.machinery.cleared(node_id)
    parts.roster.forget(node_id)
    if cleared:
        return Forgotten(node_id=node_id, cleared=True, text=f"{node_id}: cleared at the broker, for everybody")
    text = (
        f"{node_id}: hidden here until it shows itself; the broker does not let {parts.researcher_id} clear what it "
        "retains: ask its operator"
    )
    return Forgotten(node_id=node_id, cleared=False, text=text)
