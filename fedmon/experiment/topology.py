"""The topology that an experiment is made from: a graph with sources, targets, addresses and notes."""

from __future__ import annotations

import ipaddress
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedmon.experiment.document.description import Nid
from fedmon.experiment.graph import Graph, TopologyError, like
from fedmon.experiment.shapes import TopologyType, generate

__all__ = ["NetGraph", "TopologyError", "TopologyType"]

OWN_NODE_NOTES = frozenset({"ips", "source", "target"})
OWN_EDGE_NOTES = frozenset({"net"})
_BASE = {4: ("10.0.0.0", 8), 6: ("fd00::", 8)}
_LINK_PREFIX = {4: 30, 6: 126}
"""Four addresses for each edge, of which two are its ends'."""


class NetGraph:
    """A topology, generated or given. Not safe from several threads at once.

    ``topology`` is a graph of networkx, or of ours; it is copied. Without it ``topo_type``, ``node_count`` and, for a
    STAR, ``branches`` say what is generated; with none of them it is empty. ``assign_ips`` gives each edge a network of
    four addresses out of ``network``/``prefix`` (10.0.0.0/8 for ``version`` 4, fd00::/8 for 6), and its ends the first
    two hosts. ``sources_targets`` names both as lists; otherwise ``assign_st`` makes node 0 the target and another one
    the source, at random, with ``leaf_source`` one with a single edge. Raises TopologyError.
    """

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
        if topology is not None:
            self._graph = like(topology)
        elif node_count is None:
            self._graph = Graph()
        else:
            self._graph = generate(topo_type, node_count, branches=branches)
        if topo_type not in list(TopologyType):
            raise TopologyError(f"no topology of the type {topo_type!r}; one of: {', '.join(TopologyType)}")
        self._topo_type = TopologyType(topo_type)
        if assign_ips:
            self.assign_p2p_ips(network=network, prefix=prefix, version=version)
        if sources_targets:
            self._mark(sources_targets)
        elif assign_st:
            self.select_target_zero()
            self.select_random_source(is_leaf=leaf_source)

    @property
    def topology(self) -> Graph:
        """The graph itself."""
        return self._graph

    @property
    def topo_type(self) -> TopologyType:
        """The shape."""
        return self._topo_type

    @property
    def order(self) -> int:
        """How many nodes there are."""
        return self._graph.order()

    def generate_topology(self, topo_type: str, node_count: int, branches: int | None = None) -> Graph:
        """Return a new graph of a shape; the topology stays as it is. Raises TopologyError."""
        return generate(topo_type, node_count, branches=branches)

    def nodes(self) -> list[Nid]:
        """Return the nodes."""
        return self._graph.nodes()

    def edges(self) -> list[tuple[Nid, Nid]]:
        """Return the edges, each once."""
        return self._graph.edges()

    def add_node(self, nid: Nid) -> None:
        """Take a node in, where it is not there already."""
        self._graph.add_node(nid)

    def add_edge(self, nid1: Nid, nid2: Nid) -> None:
        """Take an edge in with its ends, where it is not there already."""
        self._graph.add_edge(nid1, nid2)

    # --- notes --------------------------------------------------------------------------------------------------------

    def annotate_node(self, nid: Nid, name: str, value: Nid) -> None:
        """Note a text, a number, true or false on a node."""
        self._graph.node(nid)[_free(name, OWN_NODE_NOTES)] = _kept(name, value)

    def node_annotation(self, nid: Nid, name: str) -> Any:
        """Return a note on a node; null where there is none."""
        return self._graph.node(nid).get(name)

    def node_annotations(self, nid: Nid) -> list[str]:
        """Return the names of the notes on a node, of its addresses and marks, too."""
        return list(self._graph.node(nid))

    def del_node_annotation(self, nid: Nid, name: str) -> None:
        """Take a note off a node."""
        self._graph.node(nid).pop(name, None)

    def annotate_edge(self, nid1: Nid, nid2: Nid, name: str, value: Nid) -> None:
        """Note a text, a number, true or false on an edge."""
        self._graph.edge(nid1, nid2)[_free(name, OWN_EDGE_NOTES)] = _kept(name, value)

    def edge_annotation(self, nid1: Nid, nid2: Nid, name: str) -> Any:
        """Return a note on an edge; null where there is none."""
        return self._graph.edge(nid1, nid2).get(name)

    def edge_annotations(self, nid1: Nid, nid2: Nid) -> list[str]:
        """Return the names of the notes on an edge, of its network, too."""
        return list(self._graph.edge(nid1, nid2))

    def del_edge_annotation(self, nid1: Nid, nid2: Nid, name: str) -> None:
        """Take a note off an edge."""
        self._graph.edge(nid1, nid2).pop(name, None)

    # --- addresses ----------------------------------------------------------------------------------------------------

    def annotate_node_ip(self, nid: Nid, ip: str) -> None:
        """Give a node one more address."""
        self._graph.node(nid).setdefault("ips", []).append(ip)

    def node_ip_annotations(self, nid: Nid) -> list[str]:
        """Return the addresses of a node."""
        return list(self._graph.node(nid).get("ips", []))

    def annotate_edge_net(
        self, nid1: Nid, nid2: Nid, ip1: str, ip2: str, mask: str, network: str, prefixlen: int
    ) -> None:
        """Give an edge a network, and addresses to its ends."""
        net = {nid1: ip1, nid2: ip2, "mask": mask, "network": network, "prefix": prefixlen}
        self._graph.edge(nid1, nid2)["net"] = net

    def edge_net_annotation(self, nid1: Nid, nid2: Nid) -> dict[Any, Any]:
        """Return the network of an edge: an address by each end, ``mask``, ``network``, ``prefix``; or nothing."""
        return dict(self._graph.edge(nid1, nid2).get("net", {}))

    def get_p2p_info(self, nid1: Nid, nid2: Nid) -> tuple[str, str, str, str, int]:
        """Return the addresses of both ends of an edge, and the mask, base and prefix of its network."""
        net = self._graph.edge(nid1, nid2).get("net")
        if net is None:
            raise TopologyError(f"the edge from {nid1} to {nid2} has no addresses: make the topology with assign_ips")
        return net[nid1], net[nid2], net["mask"], net["network"], net["prefix"]

    def assign_p2p_ips(self, network: str | None = None, prefix: int | None = None, version: int = 4) -> None:
        """Give each edge a network of its own and its ends the first two hosts of it; older addresses go.

        Raises TopologyError for a graph in several parts, and for a network that is none or too small.
        """
        if version not in list(_BASE):
            raise TopologyError(f"no IP version {version!r}; one of: 4, 6")
        if not self._graph.is_connected():
            raise TopologyError("addresses need a topology in one part, and this graph is disconnected")
        base, length = network or _BASE[version][0], _BASE[version][1] if prefix is None else prefix
        try:
            block = ipaddress.ip_network(f"{base}/{length}")
        except ValueError as error:
            raise TopologyError(f"{base}/{length} is no network: {error}") from error
        edges, link = self._graph.edges(), _LINK_PREFIX[version]
        if block.version != version:
            raise TopologyError(f"{block} is no network of IP version {version}")
        if block.prefixlen > link or 2 ** (link - block.prefixlen) < len(edges):
            raise TopologyError(f"{block} is too small: {len(edges)} edges need a network of prefix {link} each")
        for nid in self._graph:
            self._graph.node(nid)["ips"] = []
        parts: Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network] = iter(block.subnets(new_prefix=link))
        for (nid1, nid2), part in zip(edges, parts, strict=False):
            ip1, ip2 = (str(host) for host in itertools.islice(part.hosts(), 2))
            base_of_part = str(part.network_address)
            self.annotate_edge_net(nid1, nid2, ip1, ip2, str(part.netmask), base_of_part, part.prefixlen)
            self.annotate_node_ip(nid1, ip1)
            self.annotate_node_ip(nid2, ip2)

    # --- sources and targets ------------------------------------------------------------------------------------------

    def set_source(self, nid: Nid) -> None:
        """Make a node a source."""
        self._graph.node(nid)["source"] = True

    def is_source(self, nid: Nid) -> bool:
        """Tell whether a node is a source."""
        return bool(self._graph.node(nid).get("source"))

    def set_target(self, nid: Nid) -> None:
        """Make a node a target."""
        self._graph.node(nid)["target"] = True

    def is_target(self, nid: Nid) -> bool:
        """Tell whether a node is a target."""
        return bool(self._graph.node(nid).get("target"))

    def sources(self) -> list[Nid]:
        """Return the sources."""
        return [nid for nid in self._graph if self.is_source(nid)]

    def targets(self) -> list[Nid]:
        """Return the targets."""
        return [nid for nid in self._graph if self.is_target(nid)]

    def select_target_zero(self) -> None:
        """Make node 0, or "0", the target. Raises UnknownNodeError."""
        self.set_target("0" if "0" in self._graph and 0 not in self._graph else 0)

    def select_random_source(self, *, is_leaf: bool = False) -> None:
        """Make a node the source that is neither source nor target; with ``is_leaf``, one at an end.

        An end has a single edge; in a ladder, which has no such node, a corner is one. Raises TopologyError.
        """
        degree = 2 if self._topo_type is TopologyType.LADDER and self.order > 2 else 1
        options = [
            nid
            for nid in self._graph
            if not self.is_source(nid)
            and not self.is_target(nid)
            and (not is_leaf or self._graph.degree(nid) == degree)
        ]
        if not options:
            raise TopologyError(f"no node is left that could be the source{' and is a leaf' if is_leaf else ''}")
        self.set_source(secrets.choice(options))

    def _mark(self, sources_targets: Mapping[str, Sequence[Nid]]) -> None:
        hint = 'take {"sources": [1, 2], "targets": [0]}'
        if not isinstance(sources_targets, Mapping):
            raise TopologyError(f"sources_targets is {sources_targets!r:.80}, and no mapping: {hint}")
        wrong = [name for name in sources_targets if name not in ("sources", "targets")]
        if wrong:
            raise TopologyError(f"sources_targets has {wrong!r:.80}; there is: sources, targets")
        for name, mark in (("sources", self.set_source), ("targets", self.set_target)):
            nids: object = sources_targets.get(name, ())
            if isinstance(nids, str) or not isinstance(nids, Iterable):
                raise TopologyError(f"the {name} of sources_targets are {nids!r:.80}, and no list of nodes: {hint}")
            for nid in nids:
                mark(nid)


def _free(name: str, own: frozenset[str]) -> str:
    if name in own:
        raise TopologyError(f"the note {name!r} is made by its own method; choose another name")
    return name


def _kept(name: str, value: Any) -> Nid:
    if not isinstance(value, (str, int, float, bool)):
        raise TopologyError(f"the note {name!r} is {value!r}, and must be a text, a number, true or false")
    return value
