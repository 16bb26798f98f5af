"""Topologies as documents keep them."""

from __future__ import annotations

from fedmon.experiment.document.description import Net, Nid, Topology, TopologyEdge, TopologyNode
from fedmon.experiment.graph import TopologyError
from fedmon.experiment.topology import OWN_EDGE_NOTES, OWN_NODE_NOTES, NetGraph


def describe(netgraph: NetGraph) -> Topology:
    """Return a topology as documents keep it."""
    graph = netgraph.topology
    return Topology(
        kind=netgraph.topo_type.value,
        nodes=tuple(
            TopologyNode(
                nid=nid,
                is_source=netgraph.is_source(nid),
                is_target=netgraph.is_target(nid),
                ips=tuple(netgraph.node_ip_annotations(nid)),
                annotations=_notes(graph.node(nid), OWN_NODE_NOTES),
            )
            for nid in graph
        ),
        edges=tuple(
            TopologyEdge(
                nid1=nid1,
                nid2=nid2,
                net=_net(netgraph, nid1, nid2),
                annotations=_notes(graph.edge(nid1, nid2), OWN_EDGE_NOTES),
            )
            for nid1, nid2 in graph.edges()
        ),
    )


def build(topology: Topology) -> NetGraph:
    """Return the topology that a document keeps. Raises TopologyError."""
    netgraph = NetGraph(topo_type=topology.kind)
    for node in topology.nodes:
        netgraph.add_node(node.nid)
        for ip in node.ips:
            netgraph.annotate_node_ip(node.nid, ip)
        for name, value in node.annotations.items():
            netgraph.annotate_node(node.nid, name, value)
        if node.is_source:
            netgraph.set_source(node.nid)
        if node.is_target:
            netgraph.set_target(node.nid)
    for edge in topology.edges:
        netgraph.add_edge(edge.nid1, edge.nid2)
        if edge.net is not None:
            net = edge.net
            netgraph.annotate_edge_net(edge.nid1, edge.nid2, net.ip1, net.ip2, net.mask, net.network, net.prefix)
        for name, value in edge.annotations.items():
            netgraph.annotate_edge(edge.nid1, edge.nid2, name, value)
    return netgraph


def _net(netgraph: NetGraph, nid1: Nid, nid2: Nid) -> Net | None:
    if not netgraph.edge_net_annotation(nid1, nid2):
        return None
    ip1, ip2, mask, network, prefix = netgraph.get_p2p_info(nid1, nid2)
    return Net(ip1=ip1, ip2=ip2, mask=mask, network=network, prefix=prefix)


def _notes(notes: dict[str, Nid], own: frozenset[str]) -> dict[str, Nid]:
    kept = {name: value for name, value in notes.items() if name not in own}
    for name, value in kept.items():
        # A graph that somebody gave may have notes of any kind.
        if not isinstance(value, (str, int, float)):
            raise TopologyError(f"the note {name!r} is {value!r}; a document holds texts, numbers, true and false")
    return kept
