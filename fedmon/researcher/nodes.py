"""The nodes of a federation as a mapping that shows itself as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedmon.common.ids import NodeId
from fedmon.researcher.outcomes import Circumstances
from fedmon.researcher.roster import Node, NodeState
from fedmon.researcher.tables import Row, html_table, text_table


class Nodes(Mapping[NodeId, Node]):
    """Every node known at one moment, by id, sorted; immutable."""

    def __init__(self, nodes: Mapping[NodeId, Node], *, circumstances: Circumstances) -> None:
        self._nodes = dict(nodes)
        self.circumstances = circumstances

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[NodeId(node_id)]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def online(self) -> list[NodeId]:
        """The ids of the nodes that will answer, as far as we know."""
        return [node_id for node_id, node in self.items() if node.state in (NodeState.ONLINE, NodeState.DRAINING)]

    def rows(self) -> list[Row]:
        """Return flat rows: node, state, since when, last seen, why, and what runs there."""
        return [
            {
                "node": node_id,
                "state": "id in use" if node.id_in_use else node.state.value,
                "since": node.since,
                "last seen": node.last_seen,
                "reason": node.reason,
                "agent": node.agent_version,
                "boot": node.boot,
                "streams": node.streams,
            }
            for node_id, node in self.items()
        ]

    def explanation(self) -> str:
        """Say why there is nothing, or nothing more, to see."""
        if not self:
            return f"no node is known: none was heard of. {self.circumstances.sentence()}"
        return f"{len(self.online)} of {len(self)} nodes are online. {self.circumstances.sentence()}"

    def __str__(self) -> str:
        return f"{text_table(self.rows())}\n{self.explanation()}" if self else self.explanation()

    def __repr__(self) -> str:
        states = ", ".join(f"{node_id}: {node.state.value}" for node_id, node in self.items())
        return f"<Nodes {states or self.explanation()}>"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), caption=self.explanation())
