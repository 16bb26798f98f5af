"""Topologies: six shapes, addresses, sources and targets, notes, and documents of them."""

from __future__ import annotations

import ipaddress
from typing import Any

import networkx
import pytest

from fedmon.common.errors import FedmonError
from fedmon.experiment.document import Description, from_toml, from_xml, to_toml, to_xml
from fedmon.experiment.topology import NetGraph, TopologyError, TopologyType
from fedmon.experiment.topology_document import build, describe


@pytest.mark.parametrize(
    ("topo_type", "node_count", "more", "expected"),
    [
        (TopologyType.LINEAR, 5, {}, networkx.path_graph(5)),
        (TopologyType.LADDER, 8, {}, networkx.ladder_graph(4)),
        (TopologyType.MESH, 6, {}, networkx.complete_graph(6)),
        (TopologyType.TREE, 15, {}, networkx.balanced_tree(2, 3)),
        (TopologyType.STAR, 5, {}, networkx.star_graph(4)),
        (TopologyType.STAR, 7, {"branches": 3}, networkx.Graph([(0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (5, 6)])),
        (TopologyType.ADHOC, 3, {}, networkx.empty_graph(3)),
        ("tree", 1, {}, networkx.empty_graph(1)),
    ],
)
def test_each_shape_has_the_nodes_and_edges_of_it(
    topo_type: str, node_count: int, more: dict[str, Any], expected: Any
) -> None:
    netgraph = NetGraph(topo_type=topo_type, node_count=node_count, **more)

    assert sorted(netgraph.nodes(), key=str) == sorted(expected.nodes(), key=str)
    assert {frozenset(edge) for edge in netgraph.edges()} == {frozenset(edge) for edge in expected.edges()}
    assert len(netgraph.edges()) == expected.number_of_edges()
    assert netgraph.order == node_count


@pytest.mark.parametrize(
    "options",
    [
        {"topo_type": "ring", "node_count": 3},
        {"topo_type": "ring"},
        {"topo_type": "ladder", "node_count": 5},
        {"topo_type": "tree", "node_count": 4},
        {"topo_type": "star", "node_count": 6, "branches": 2},
        {"topo_type": "star", "node_count": 6, "branches": 0},
        {"topo_type": "linear", "node_count": 0},
        {"topo_type": "linear", "node_count": "3"},
        {"topo_type": "mesh", "node_count": 100_000},
        {"node_count": 2, "assign_ips": True},
        {"topo_type": "linear", "node_count": 3, "assign_ips": True, "version": 5},
        {"topo_type": "linear", "node_count": 3, "assign_ips": True, "network": "somewhere"},
        {"topo_type": "linear", "node_count": 3, "assign_ips": True, "network": "10.0.0.1"},
        {"topo_type": "linear", "node_count": 3, "assign_ips": True, "network": "fd00::"},
        {"topo_type": "linear", "node_count": 3, "assign_ips": True, "network": "10.0.0.0", "prefix": 30},
        {"topo_type": "mesh", "node_count": 3, "assign_st": True, "leaf_source": True},
        {"topo_type": "linear", "node_count": 1, "assign_st": True},
        {"topo_type": "linear", "node_count": 2, "sources_targets": {"source": [0]}},
        {"topo_type": "linear", "node_count": 2, "sources_targets": {"sources": [7]}},
        {"assign_st": True},
    ],
)
def test_what_cannot_be_made_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(FedmonError):
        NetGraph(**options)


def test_a_disconnected_graph_gets_no_addresses_and_the_error_is_also_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="disconnected"):
        NetGraph(topology=networkx.Graph([(0, 1), (2, 3)]), assign_ips=True)


@pytest.mark.parametrize(("version", "within", "prefix"), [(4, "10.0.0.0/8", 30), (6, "fd00::/8", 126)])
def test_each_edge_has_a_network_of_its_own(version: int, within: str, prefix: int) -> None:
    netgraph = NetGraph(topo_type="tree", node_count=7, assign_ips=True, version=version)

    networks = set()
    for nid1, nid2 in netgraph.edges():
        ip1, ip2, mask, base, length = netgraph.get_p2p_info(nid1, nid2)
        network = ipaddress.ip_network(f"{base}/{length}")
        networks.add(network)
        hosts = network.hosts()
        assert (ip1, ip2) == (str(next(hosts)), str(next(hosts)))
        assert netgraph.get_p2p_info(nid2, nid1)[:2] == (ip2, ip1)
        assert (length, mask) == (prefix, str(network.netmask))
        assert network.subnet_of(ipaddress.ip_network(within))  # type: ignore[arg-type] # both of one version
        assert ip1 in netgraph.node_ip_annotations(nid1)
        assert ip2 in netgraph.node_ip_annotations(nid2)
    assert len(networks) == len(netgraph.edges())
    assert {len(netgraph.node_ip_annotations(nid)) for nid in (0, 1, 3)} == {2, 3, 1}


def test_addresses_come_from_the_network_that_was_named() -> None:
    netgraph = NetGraph(topo_type="linear", node_count=3, assign_ips=True, network="192.168.0.0", prefix=29)

    assert [netgraph.get_p2p_info(*edge)[:2] for edge in netgraph.edges()] == [
        ("192.168.0.1", "192.168.0.2"),
        ("192.168.0.5", "192.168.0.6"),
    ]


def test_sources_and_targets_are_chosen_or_named() -> None:
    chosen = NetGraph(topo_type="star", node_count=7, branches=2, assign_st=True, leaf_source=True)
    ladder = NetGraph(topo_type="ladder", node_count=8, assign_st=True, leaf_source=True)
    named = NetGraph(
        topo_type="mesh", node_count=4, assign_st=True, sources_targets={"sources": [1, 2], "targets": [3]}
    )

    assert chosen.targets() == [0]
    assert chosen.sources() in ([3], [6])
    assert ladder.sources()[0] in {3, 4, 7}
    assert (named.sources(), named.targets()) == ([1, 2], [3])
    assert named.is_source(1)
    assert not named.is_target(1)


def test_a_graph_of_networkx_is_taken_with_its_notes() -> None:
    given = networkx.Graph()
    given.add_node("a", place="here", source=True)
    given.add_edge("a", "b", rate=5)
    netgraph = NetGraph(topology=given)

    assert netgraph.topo_type == "adhoc"
    assert netgraph.node_annotation("a", "place") == "here"
    assert netgraph.edge_annotation("b", "a", "rate") == 5
    assert netgraph.sources() == ["a"]
    assert netgraph.topology.neighbors("b") == ["a"]
    with pytest.raises(TopologyError):
        NetGraph(topology=networkx.grid_2d_graph(2, 2))
    with pytest.raises(TopologyError):
        NetGraph(topology=networkx.Graph([(1, 1)]))


def test_notes_are_kept_and_refused_where_no_document_holds_them() -> None:
    netgraph = NetGraph(topo_type="linear", node_count=2)
    netgraph.annotate_node(0, "name", "x")
    netgraph.annotate_edge(0, 1, "rate", 1.5)

    assert netgraph.node_annotations(0) == ["name"]
    assert netgraph.edge_annotations(1, 0) == ["rate"]
    netgraph.del_node_annotation(0, "name")
    netgraph.del_edge_annotation(0, 1, "rate")
    assert (netgraph.node_annotations(0), netgraph.edge_annotations(0, 1)) == ([], [])
    assert netgraph.edge_net_annotation(0, 1) == {}
    with pytest.raises(RuntimeError):
        netgraph.annotate_node(0, "a", [1])  # type: ignore[arg-type] # what a caller without types may do
    with pytest.raises(RuntimeError):
        netgraph.annotate_node(0, "ips", "x")
    with pytest.raises(KeyError, match="no node 7"):
        netgraph.annotate_node(7, "a", 1)
    with pytest.raises(TopologyError, match="assign_ips"):
        netgraph.get_p2p_info(0, 1)


def test_a_topology_comes_back_from_documents() -> None:
    netgraph = NetGraph(topo_type="ladder", node_count=6, assign_ips=True, assign_st=True)
    netgraph.annotate_node(3, "name", "x")
    netgraph.annotate_edge(0, 1, "rate", 0.5)
    topology = describe(netgraph)
    description = Description(exp_id="e", topology=topology)

    assert describe(build(topology)) == topology
    assert from_xml(to_xml(description)).topology == topology
    assert from_toml(to_toml(description)).topology == topology


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topology": 5}, "topology is 5"),
        ({"topology": [(0, 1)]}, "topology is"),
        ({"node_count": 4, "sources_targets": ([0], [3])}, "sources_targets"),
        ({"node_count": 4, "sources_targets": {"sources": 0}}, "sources"),
        ({"node_count": 4, "sources_targets": {"targets": "12"}}, "targets"),
        ({"node_count": 4, "sources_targets": {0: [1]}}, "sources, targets"),
        ({"topo_type": ["star"], "topology": networkx.path_graph(2)}, "star"),
        ({"topo_type": "linear", "node_count": 2, "assign_ips": True, "version": [4]}, "version"),
    ],
)
def test_what_is_no_topology_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(TopologyError, match=named):
        NetGraph(**options)


def test_sources_and_targets_are_named_as_lists_of_nodes() -> None:
    netgraph = NetGraph(topo_type="linear", node_count=4, sources_targets={"sources": [1, 2], "targets": (3,)})

    assert (netgraph.sources(), netgraph.targets()) == ([1, 2], [3])
