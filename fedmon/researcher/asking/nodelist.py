"""Which nodes a call is about."""

from __future__ import annotations

from collections.abc import Collection

from fedmon.common.errors import InvalidInputError
from fedmon.common.ids import NodeId, checked_id

Nodelist = Collection[str] | None


def node_ids(nodes: Nodelist) -> list[NodeId] | None:
    """Return the ids of nodes named, each once; null for everybody.

    Raises InvalidInputError for a bare text and InvalidIdError for an unusable id.
    """
    if nodes is None:
        return None
    if isinstance(nodes, str):
        raise InvalidInputError(f"nodes is {nodes!r}: give a list of node ids, such as [{nodes!r}]")
    return [NodeId(checked_id(node, what="node id")) for node in dict.fromkeys(nodes)]
