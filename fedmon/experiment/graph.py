"""A small undirected graph with notes on nodes and edges, in the order in which they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedmon.common.errors import InvalidInputError
from fedmon.experiment.document.description import Nid
from fedmon.experiment.errors import ExperimentError, UnknownNameError


class TopologyError(ExperimentError, InvalidInputError, RuntimeError):
    """A topology cannot be made, or not given addresses, as it was asked for."""


class UnknownNodeError(UnknownNameError):
    """A topology has no such node."""


class UnknownEdgeError(UnknownNameError):
    """A topology has no edge between two nodes."""


class Graph:
    """Nodes, and edges between two different ones; each has a table of notes. Not safe from several threads at once."""

    def __init__(self) -> None:
        self._notes: dict[Nid, dict[str, Any]] = {}
        self._edges: dict[Nid, dict[Nid, dict[str, Any]]] = {}

    def __contains__(self, nid: object) -> bool:
        return nid in self._notes

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[Nid]:
        return iter(self._notes)

    def add_node(self, nid: Nid, **notes: Any) -> None:
        """Take a node in, or more notes on one that is there. Raises TopologyError for what can name no node."""
        if not isinstance(nid, (str, int, float)):
            raise TopologyError(f"a node is named by a text or a number, not by {nid!r}")
        self._notes.setdefault(nid, {}).update(notes)
        self._edges.setdefault(nid, {})

    def add_edge(self, nid1: Nid, nid2: Nid, **notes: Any) -> None:
        """Take an edge in with its ends, or more notes on one that is there. Raises TopologyError for a loop."""
        if nid1 == nid2:
            raise TopologyError(f"node {nid1} cannot have an edge to itself")
        self.add_node(nid1)
        self.add_node(nid2)
        # Both ends have the very same table.
        table = self._edges[nid1].setdefault(nid2, {})
        self._edges[nid2][nid1] = table
        table.update(notes)

    def add_path(self, nids: Iterable[Nid]) -> None:
        """Take in edges from each node to the next one."""
        before: list[Nid] = []
        for nid in nids:
            self.add_node(nid)
            if before:
                self.add_edge(before.pop(), nid)
            before.append(nid)

    def nodes(self) -> list[Nid]:
        """Return the nodes."""
        return list(self._notes)

    def edges(self) -> list[tuple[Nid, Nid]]:
        """Return each edge once, with the end first that came first."""
        found = []
        seen: set[Nid] = set()
        for nid, ends in self._edges.items():
            found += [(nid, end) for end in ends if end not in seen]
            seen.add(nid)
        return found

    def order(self) -> int:
        """Return how many nodes there are."""
        return len(self._notes)

    def neighbors(self, nid: Nid) -> list[Nid]:
        """Return the nodes at the other ends of a node's edges. Raises UnknownNodeError."""
        self.node(nid)
        return list(self._edges[nid])

    def degree(self, nid: Nid) -> int:
        """Return how many edges a node has. Raises UnknownNodeError."""
        return len(self.neighbors(nid))

    def node(self, nid: Nid) -> dict[str, Any]:
        """Return the notes on a node, which may be changed. Raises UnknownNodeError."""
        if nid not in self._notes:
            raise UnknownNodeError("the topology has no node", nid, self._notes)
        return self._notes[nid]

    def edge(self, nid1: Nid, nid2: Nid) -> dict[str, Any]:
        """Return the notes on an edge, which may be changed. Raises UnknownNodeError and UnknownEdgeError."""
        self.node(nid1)
        self.node(nid2)
        if nid2 not in self._edges[nid1]:
            raise UnknownEdgeError("the topology has no edge", (nid1, nid2), self.edges())
        return self._edges[nid1][nid2]

    def is_connected(self) -> bool:
        """Tell whether each node can be reached from each other one."""
        if not self._notes:
            return True
        waiting = [next(iter(self._notes))]
        reached = set(waiting)
        while waiting:
            for end in self._edges[waiting.pop()]:
                if end not in reached:
                    reached.add(end)
                    waiting.append(end)
        return len(reached) == len(self._notes)


def like(graph: Any) -> Graph:
    """Copy a graph of networkx, or one with the same ``nodes`` and ``edges``, into one of ours.

    Raises TopologyError for what is no graph.
    """
    if isinstance(graph, Graph):
        copy = Graph()
        for nid in graph:
            copy.add_node(nid, **graph.node(nid))
        for nid1, nid2 in graph.edges():
            copy.add_edge(nid1, nid2, **graph.edge(nid1, nid2))
        return copy
    copy = Graph()
    try:
        nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
        for nid, notes in nodes:
            copy.add_node(nid, **notes)
        for nid1, nid2, notes in edges:
            copy.add_edge(nid1, nid2, **notes)
    except TopologyError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise TopologyError(f"topology is {graph!r:.80}, and no graph such as networkx.Graph: {error}") from error
    return copy
