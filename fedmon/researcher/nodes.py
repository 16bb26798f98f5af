"""The nodes of a federation as a mapping that shows itself as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fedmon.common.ids import NodeId
from fedmon.researcher.asking.outcome import Circumstances
from fedmon.researcher.asking.tables import Row, html_table, text_table
from fedmon.researcher.roster import Node, NodeState

SHORT_ABOVE, SHOWN = 50, 20
"""With more nodes than the first, only so many of those that are not online are shown."""


class Nodes(Mapping[NodeId, Node]):
    """Every node known at one moment, by id, sorted; immutable.

    More than 50 are shown as counts by state and the first 20 that are not online; `rows` has them all. ``beyond``
    counts nodes that were heard of and are not here, because of the setting ``max_nodes``.
    """

    def __init__(self, nodes: Mapping[NodeId, Node], *, circumstances: Circumstances, beyond: int = 0) -> None:
        self._nodes = dict(nodes)
        self.circumstances, self.beyond = circumstances, beyond

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
        return _rows(self._nodes.values())

    def explanation(self) -> str:
        """Say why there is nothing, or nothing more, to see."""
        if not self:
            return f"no node is known: none was heard of. {self.circumstances.sentence()}"
        beyond = ""
        if self.beyond:
            number = f"at least {self.beyond}" if self.beyond >= len(self) else str(self.beyond)
            beyond = f"{number} more were heard of and are not kept track of: raise max_nodes in [researcher]. "
        return f"{len(self.online)} of {len(self)} nodes are online. {beyond}{self.circumstances.sentence()}"

    def __str__(self) -> str:
        rows, summary = self._shown()
        return "\n".join(part for part in (text_table(rows) if rows else "", summary, self.explanation()) if part)

    def __repr__(self) -> str:
        if len(self) > SHORT_ABOVE:
            return f"<Nodes {_counts(self._nodes.values())}>"
        states = ", ".join(f"{node_id}: {node.state.value}" for node_id, node in self.items())
        return f"<Nodes {states or self.explanation()}>"

    def _repr_html_(self) -> str:
        rows, summary = self._shown()
        return html_table(rows, caption=f"{summary} {self.explanation()}".strip())

    def _shown(self) -> tuple[list[Row], str]:
        """Return the rows that are shown, and a summary where these are not all."""
        if len(self) <= SHORT_ABOVE:
            return self.rows(), ""
        others = [node for node in self._nodes.values() if node.state is not NodeState.ONLINE or node.id_in_use]
        more = f"; {len(others) - SHOWN} more that are not online" if len(others) > SHOWN else ""
        counts = _counts(others, online=len(self) - len(others))
        return _rows(others[:SHOWN]), f"{counts}{more}. rows(), or --json in a shell, lists every node."


def _counts(nodes: Iterable[Node], *, online: int = 0) -> str:
    states = Counter({NodeState.ONLINE.value: online}) + Counter(_state(node) for node in nodes)
    return ", ".join(f"{number} {state}" for state, number in states.most_common())


def _rows(nodes: Iterable[Node]) -> list[Row]:
    return [
        {
            "node": node.node_id,
            "state": _state(node),
            "since": node.since,
            "last seen": node.last_seen,
            "reason": node.reason,
            "agent": node.agent_version,
            "boot": node.boot,
            "streams": node.streams,
        }
        for node in nodes
    ]


def _state(node: Node) -> str:
    return "id in use" if node.id_in_use else node.state.value
