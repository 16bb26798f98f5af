"""NEPI's `NetGraph`: a graph of networkx with sources, targets, addresses and annotations."""

from __future__ import annotations

import ipaddress
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NoReturn

from fedmon.common.errors import InvalidInputError
from fedmon.experiment.document.description import Net, Nid, Topology, TopologyEdge, TopologyNode
from fedmon.experiment.errors import ExperimentError, UnknownNameError
from fedmon.report.extra import report_extra

_BASE = {4: ("10.0.0.0", 8, 30), 6: ("fd00::", 8, 126)}
"""By version the default network, and the prefix of an edge's: four addresses, of which two are its ends'."""


class TopologyError(ExperimentError, InvalidInputError, RuntimeError):
    """A topology or its addresses cannot be made."""


class TopologyType(StrEnum):
    """The shapes of a topology; ADHOC is any other."""

    LINEAR = "linear"
    LADDER = "ladder"
    MESH = "mesh"
    TREE = "tree"
    STAR = "star"
    ADHOC = "adhoc"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise TopologyError(f"topology type {value!r} is not one of: {', '.join(cls)}")


class NetGraph:
    """A topology, generated or given. Not safe from several threads at once.

    ``topology`` is a graph of networkx, which is copied; without it, `generate_topology` makes one. For ``assign_ips``
    see `assign_p2p_ips`. ``sources_targets`` names both as lists; otherwise ``assign_st`` makes node 0 the target and a
    random one the source, with ``leaf_source`` one with a single edge. Raises TopologyError, and MissingExtraError.
    """

    topology: Any = None
    """The graph of networkx itself."""
    topo_type = TopologyType.ADHOC
    """The shape."""

    def __init__(
        self,
        *,
        topology: Any = None,
        topo_type: str = TopologyType.ADHOC,
        node_count: int | None = None,
        branches: int | None = None,
        assign_ips: bool = False,
        network: str | None = None,
        prefix: int | None = None,
        version: int = 4,
        assign_st: bool = False,
        sources_targets: Mapping[str, Sequence[Nid]] | None = None,
        leaf_source: bool = False,
    ) -> None:
        self.topo_type = TopologyType(topo_type)
        if topology is None and node_count is not None:
            self.topology = self.generate_topology(topo_type, node_count, branches)
        else:
            self.topology = _networkx().Graph(topology)
        for nid in self.topology:
            if not isinstance(nid, str | int | float) or self.topology.has_edge(nid, nid):
                raise TopologyError(f"node {nid!r:.60} must be a text or a number, and have no edge to itself")
        if assign_ips:
            self.assign_p2p_ips(network=network, prefix=prefix, version=version)
        if sources_targets:
            for mark in ("source", "target"):
                for nid in sources_targets.get(f"{mark}s", ()):
                    self._node(nid)[mark] = True
        elif assign_st:
            self.select_target_zero()
            self.select_random_source(is_leaf=leaf_source)

    @property
    def order(self) -> int:
        """The number of nodes."""
        return len(self.topology)

    def generate_topology(self, topo_type: str, node_count: int, branches: int | None = None) -> Any:
        """Return a new graph of networkx whose nodes are counted from 0; the topology stays as it is.

        A LADDER has two rails of half of the nodes; each node of a TREE has two below it, to one depth; a STAR has
        ``branches`` arms of one length around node 0 (default: one for each other node); ADHOC has no edges. Raises
        TopologyError if the numbers do not fit.
        """
        networkx, kind = _networkx(), TopologyType(topo_type)
        arms = node_count - 1 if branches is None else branches
        match kind if node_count > 0 else None:
            case TopologyType.LINEAR:
                return networkx.path_graph(node_count)
            case TopologyType.LADDER if node_count % 2 == 0:
                return networkx.ladder_graph(node_count // 2)
            case TopologyType.MESH:
                return networkx.complete_graph(node_count)
            case TopologyType.TREE if (node_count + 1).bit_count() == 1:
                return networkx.balanced_tree(2, (node_count + 1).bit_length() - 2)
            case TopologyType.STAR if node_count == 1 or (arms > 0 and (node_count - 1) % arms == 0):
                graph, length = networkx.empty_graph(node_count), (node_count - 1) // (arms or 1)
                for first in range(1, node_count, length or 1):
                    networkx.add_path(graph, [0, *range(first, first + length)])
                return graph
            case TopologyType.ADHOC:
                return networkx.empty_graph(node_count)
        rules = {"ladder": "an even number of", "tree": "1, 3, 7, 15, ...", "star": f"1 + n * {arms}"}
        raise TopologyError(f"a {kind} has {rules.get(kind, '1 or more')} nodes, not {node_count}")

    def nodes(self) -> list[Nid]:
        """Return the nodes."""
        return list(self.topology.nodes)

    def edges(self) -> list[tuple[Nid, Nid]]:
        """Return the edges, each once."""
        return list(self.topology.edges)

    def add_node(self, nid: Nid) -> None:
        """Add a node, unless it exists."""
        self.topology.add_node(nid)

    def add_edge(self, nid1: Nid, nid2: Nid) -> None:
        """Add an edge and its ends, unless they exist."""
        self.topology.add_edge(nid1, nid2)

    def annotate_node(self, nid: Nid, name: str, value: Nid) -> None:
        """Set an annotation of a node: a text, a number or a bool."""
        self._node(nid)[name] = _plain(name, value)

    def node_annotation(self, nid: Nid, name: str) -> Any:
        """Return an annotation of a node, or None."""
        return self._node(nid).get(name)

    def node_annotations(self, nid: Nid) -> list[str]:
        """Return the names of the annotations of a node."""
        return list(self._node(nid))

    def del_node_annotation(self, nid: Nid, name: str) -> None:
        """Delete an annotation of a node."""
        self._node(nid).pop(name, None)

    def annotate_edge(self, nid1: Nid, nid2: Nid, name: str, value: Nid) -> None:
        """Set an annotation of an edge: a text, a number or a bool."""
        self._edge(nid1, nid2)[name] = _plain(name, value)

    def edge_annotation(self, nid1: Nid, nid2: Nid, name: str) -> Any:
        """Return an annotation of an edge, or None."""
        return self._edge(nid1, nid2).get(name)

    def edge_annotations(self, nid1: Nid, nid2: Nid) -> list[str]:
        """Return the names of the annotations of an edge."""
        return list(self._edge(nid1, nid2))

    def del_edge_annotation(self, nid1: Nid, nid2: Nid, name: str) -> None:
        """Delete an annotation of an edge."""
        self._edge(nid1, nid2).pop(name, None)

    def annotate_node_ip(self, nid: Nid, ip: str) -> None:
        """Add an address to a node."""
        self._node(nid).setdefault("ips", []).append(ip)

    def node_ip_annotations(self, nid: Nid) -> list[str]:
        """Return the addresses of a node."""
        return list(self._node(nid).get("ips", []))

    def annotate_edge_net(
        self, nid1: Nid, nid2: Nid, ip1: str, ip2: str, mask: str, network: str, prefixlen: int
    ) -> None:
        """Set the network of an edge, and the addresses of its ends."""
        net = {nid1: ip1, nid2: ip2, "mask": mask, "network": network, "prefix": prefixlen}
        self._edge(nid1, nid2)["net"] = net

    def edge_net_annotation(self, nid1: Nid, nid2: Nid) -> dict[Any, Any]:
        """Return the network of an edge: an address by end, ``mask``, ``network``, ``prefix``; empty if it has none."""
        return dict(self._edge(nid1, nid2).get("net", {}))

    def get_p2p_info(self, nid1: Nid, nid2: Nid) -> tuple[str, str, str, str, int]:
        """Return the addresses of both ends of an edge, and mask, base and prefix of its network."""
        net = self._edge(nid1, nid2).get("net")
        if net is None:
            raise TopologyError(f"the edge from {nid1} to {nid2} has no addresses: make the topology with assign_ips")
        return net[nid1], net[nid2], net["mask"], net["network"], net["prefix"]

    def assign_p2p_ips(self, network: str | None = None, prefix: int | None = None, version: int = 4) -> None:
        """Give each edge four addresses out of ``network``/``prefix``, and its ends the first two hosts of these.

        The default is 10.0.0.0/8 for IP ``version`` 4, and fd00::/8 for 6; older addresses go. Raises TopologyError for
        a graph in several parts, and for a network that is invalid or too small.
        """
        if self.order and not _networkx().is_connected(self.topology):
            raise TopologyError("addresses need a connected topology, and this graph is disconnected")
        if version not in _BASE:
            raise TopologyError(f"IP version {version!r:.20} is not 4 or 6")
        (base, length, link), edges = _BASE[version], self.edges()
        asked = f"{network or base}/{length if prefix is None else prefix}"
        try:
            block = ipaddress.ip_network(asked)
            parts: list[Any] = list(itertools.islice(block.subnets(new_prefix=link), len(edges)))
        except ValueError as error:
            raise TopologyError(f"{asked} cannot be divided into networks of prefix {link}: {error}") from error
        if block.version != version or len(parts) < len(edges):
            raise TopologyError(f"{asked} is too small or not IPv{version}: {len(edges)} edges need /{link} each")
        for nid in self.topology:
            self._node(nid)["ips"] = []
        for (nid1, nid2), part in zip(edges, parts, strict=True):
            ip1, ip2 = (str(host) for host in itertools.islice(part.hosts(), 2))
            self.annotate_edge_net(nid1, nid2, ip1, ip2, str(part.netmask), str(part.network_address), link)
            self.annotate_node_ip(nid1, ip1)
            self.annotate_node_ip(nid2, ip2)

    def set_source(self, nid: Nid) -> None:
        """Make a node a source."""
        self._node(nid)["source"] = True

    def is_source(self, nid: Nid) -> bool:
        """Tell whether a node is a source."""
        return bool(self._node(nid).get("source"))

    def set_target(self, nid: Nid) -> None:
        """Make a node a target."""
        self._node(nid)["target"] = True

    def is_target(self, nid: Nid) -> bool:
        """Tell whether a node is a target."""
        return bool(self._node(nid).get("target"))

    def sources(self) -> list[Nid]:
        """Return the sources."""
        return [nid for nid in self.topology if self.is_source(nid)]

    def targets(self) -> list[Nid]:
        """Return the targets."""
        return [nid for nid in self.topology if self.is_target(nid)]

    def select_target_zero(self) -> None:
        """Make node 0, or "0", the target. Raises UnknownNameError."""
        self.set_target("0" if "0" in self.topology and 0 not in self.topology else 0)

    def select_random_source(self, *, is_leaf: bool = False) -> None:
        """Make a random node the source that is neither source nor target; with ``is_leaf``, one with a single edge.

        The corners of a ladder, with two edges each, count as leaves. Raises TopologyError.
        """
        degree = 2 if self.topo_type is TopologyType.LADDER and self.order > 2 else 1
        free = [nid for nid in self.topology if not self.is_source(nid) and not self.is_target(nid)]
        options = [nid for nid in free if not is_leaf or self.topology.degree(nid) == degree]
        if not options:
            raise TopologyError(f"no node is left that could be the source{' and is a leaf' if is_leaf else ''}")
        self.set_source(secrets.choice(options))

    def _node(self, nid: Nid) -> dict[Any, Any]:
        if nid not in self.topology:
            raise UnknownNameError("the topology has no node", nid, self.topology)
        notes: dict[Any, Any] = self.topology.nodes[nid]
        return notes

    def _edge(self, nid1: Nid, nid2: Nid) -> dict[Any, Any]:
        if not self.topology.has_edge(nid1, nid2):
            raise UnknownNameError("the topology has no edge", (nid1, nid2), self.topology.edges)
        notes: dict[Any, Any] = self.topology.edges[nid1, nid2]
        return notes


def describe(netgraph: NetGraph) -> Topology:
    """Return a topology as documents hold it. Raises TopologyError."""
    nodes, edges = [], []
    for nid, notes in netgraph.topology.nodes(data=True):
        own = {name: _plain(name, value) for name, value in notes.items() if name not in ("ips", "source", "target")}
        marks = {f"is_{name}": bool(notes.get(name)) for name in ("source", "target")}
        nodes.append(TopologyNode(nid=nid, ips=tuple(notes.get("ips", ())), annotations=own, **marks))
    for nid1, nid2, notes in netgraph.topology.edges(data=True):
        own = {name: _plain(name, value) for name, value in notes.items() if name != "net"}
        net = None
        if "net" in notes:
            ip1, ip2, mask, network, prefix = netgraph.get_p2p_info(nid1, nid2)
            net = Net(ip1=ip1, ip2=ip2, mask=mask, network=network, prefix=prefix)
        edges.append(TopologyEdge(nid1=nid1, nid2=nid2, net=net, annotations=own))
    return Topology(kind=netgraph.topo_type.value, nodes=tuple(nodes), edges=tuple(edges))


def build(topology: Topology) -> NetGraph:
    """Return the topology of a document. Raises TopologyError."""
    netgraph = NetGraph(topo_type=topology.kind)
    graph = netgraph.topology
    for node in topology.nodes:
        marks = {"source": node.is_source, "target": node.is_target, "ips": list(node.ips)}
        graph.add_node(node.nid, **node.annotations, **{name: mark for name, mark in marks.items() if mark})
    for edge in topology.edges:
        graph.add_edge(edge.nid1, edge.nid2, **edge.annotations)
        if net := edge.net:
            netgraph.annotate_edge_net(edge.nid1, edge.nid2, net.ip1, net.ip2, net.mask, net.network, net.prefix)
    return netgraph


def call_back(
    ec: object,
    graph: NetGraph,
    node: Callable[[Any, Nid], object] | None,
    edge: Callable[[Any, Nid, Nid], object] | None,
) -> None:
    """Call NEPI's callbacks for each node and edge of an experiment's topology."""
    if node is not None:
        for nid in graph.nodes():
            node(ec, nid)
    if edge is not None:
        for nid1, nid2 in graph.edges():
            edge(ec, nid1, nid2)


def _networkx() -> Any:
    with report_extra("a topology"):
        import networkx
    return networkx


def _plain(name: str, value: Any) -> Nid:
    if not isinstance(value, str | int | float):
        raise TopologyError(f"the annotation {name!r} is {value!r:.60}, and must be a text, a number or a bool")
    return value
