"""The shapes that a topology can be generated in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from fedmon.experiment.graph import Graph, TopologyError

MAX_NODES = 1_000_000
MAX_EDGES = 5_000_000


class TopologyType(StrEnum):
    """The shapes of a topology; ADHOC is one that somebody drew."""

    LINEAR = "linear"
    LADDER = "ladder"
    MESH = "mesh"
    TREE = "tree"
    STAR = "star"
    ADHOC = "adhoc"


def generate(topo_type: str, node_count: int, *, branches: int | None = None) -> Graph:
    """Return a graph of a shape, its nodes counted from 0.

    LINEAR: a path. LADDER: two rails of half of the nodes each, with a rung at each. MESH: each with each. TREE: each
    node with two below it, to one depth, so of 1, 3, 7, 15, ... nodes. STAR: node 0 with ``branches`` arms of the same
    length, with each other node as an arm where null. ADHOC: no edges. Raises TopologyError where the numbers do not
    come out even.
    """
    try:
        kind = TopologyType(topo_type)
    except ValueError as error:
        raise TopologyError(f"no topology of the type {topo_type!r}; one of: {', '.join(TopologyType)}") from error
    if type(node_count) is not int or not 1 <= node_count <= MAX_NODES:
        raise TopologyError(f"node_count is {node_count!r}, and must be a whole number from 1 to {MAX_NODES}")
    if kind is TopologyType.STAR:
        return _star(node_count, node_count - 1 if branches is None else branches)
    return _SHAPES[kind](node_count)


def _linear(node_count: int) -> Graph:
    graph = Graph()
    graph.add_path(range(node_count))
    return graph


def _ladder(node_count: int) -> Graph:
    if node_count % 2:
        raise TopologyError(f"a ladder has two rails: {node_count} nodes are not even; use {node_count + 1}")
    graph, rungs = Graph(), node_count // 2
    graph.add_path(range(rungs))
    graph.add_path(range(rungs, node_count))
    for rung in range(rungs):
        graph.add_edge(rung, rung + rungs)
    return graph


def _mesh(node_count: int) -> Graph:
    edges = node_count * (node_count - 1) // 2
    if edges > MAX_EDGES:
        raise TopologyError(f"a mesh of {node_count} nodes has {edges} edges; at most {MAX_EDGES} can be made")
    graph = Graph()
    for nid in range(node_count):
        graph.add_node(nid)
    for nid1 in range(node_count):
        for nid2 in range(nid1 + 1, node_count):
            graph.add_edge(nid1, nid2)
    return graph


def _tree(node_count: int) -> Graph:
    if (node_count + 1) & node_count:
        less = 2 ** ((node_count + 1).bit_length() - 1) - 1
        raise TopologyError(f"a tree with two nodes below each has no {node_count} nodes; use {less} or {2 * less + 1}")
    graph = Graph()
    graph.add_node(0)
    for nid in range(1, node_count):
        graph.add_edge((nid - 1) // 2, nid)
    return graph


def _star(node_count: int, branches: int) -> Graph:
    graph = Graph()
    graph.add_node(0)
    if node_count == 1:
        return graph
    if type(branches) is not int or not 1 <= branches < node_count:
        raise TopologyError(f"a star of {node_count} nodes has 1 to {node_count - 1} branches, not {branches!r}")
    length, left = divmod(node_count - 1, branches)
    if left:
        raise TopologyError(
            f"a star of {node_count} nodes cannot have {branches} branches of one length; use "
            f"{length * branches + 1} or {(length + 1) * branches + 1} nodes"
        )
    for branch in range(branches):
        first = 1 + branch * length
        graph.add_path([0, *range(first, first + length)])
    return graph


def _adhoc(node_count: int) -> Graph:
    graph = Graph()
    for nid in range(node_count):
        graph.add_node(nid)
    return graph


_SHAPES: Mapping[TopologyType, Callable[[int], Graph]] = {
    TopologyType.LINEAR: _linear,
    TopologyType.LADDER: _ladder,
    TopologyType.MESH: _mesh,
    TopologyType.TREE: _tree,
    TopologyType.ADHOC: _adhoc,
}
