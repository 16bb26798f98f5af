"""Topologies: six shapes, addresses of both versions, sources and targets, annotations, and documents of them."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any

import networkx
import pytest

from fedmon.compat.nepi.topology import NetGraph, TopologyError, TopologyType, build, describe
from fedmon.compat.nepi.xml_files import from_xml, to_xml
from fedmon.experiment import ExperimentController
from fedmon.experiment.document.description import Description
from fedmon.experiment.document.files import from_toml, to_toml
from fedmon.report.extra import MissingExtraError


@pytest.mark.parametrize(
    ("topo_type", "node_count", "more", "expected"),
    [
        (TopologyType.LINEAR, 5, {}, networkx.path_graph(5)),
        (TopologyType.LADDER, 8, {}, networkx.ladder_graph(4)),
        (TopologyType.MESH, 6, {}, networkx.complete_graph(6)),
        (TopologyType.TREE, 15, {}, networkx.balanced_tree(2, 3)),
        (TopologyType.STAR, 5, {}, networkx.star_graph(4)),
        (TopologyType.STAR, 7, {"branches": 3}, networkx.Graph([(0, 1), (1, 2), (0, 3), (3, 4), (0, 5), (5, 6)])),
        (TopologyType.STAR, 1, {}, networkx.empty_graph(1)),
        (TopologyType.ADHOC, 3, {}, networkx.empty_graph(3)),
        ("tree", 1, {}, networkx.empty_graph(1)),
    ],
)
def test_each_shape_has_its_nodes_and_edges(
    topo_type: str, node_count: int, more: dict[str, Any], expected: Any
) -> None:
    netgraph = NetGraph(topo_type=topo_type, node_count=node_count, **more)

    assert networkx.utils.graphs_equal(netgraph.topology, expected)
    assert (netgraph.order, netgraph.edges()) == (node_count, list(netgraph.topology.edges))


LINE = {"topo_type": "linear", "node_count": 3, "assign_ips": True}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topo_type": "ring", "node_count": 3}, "'ring'.*linear"),
        ({"topo_type": "ladder", "node_count": 5}, "even number"),
        ({"topo_type": "tree", "node_count": 4}, "1, 3, 7"),
        ({"topo_type": "star", "node_count": 6, "branches": 2}, r"1 \+ n \* 2 nodes, not 6"),
        ({"topo_type": "star", "node_count": 6, "branches": 0}, "star"),
        ({"topo_type": "linear", "node_count": 0}, "1 or more"),
        ({"node_count": 2, "assign_ips": True}, "disconnected"),
        ({**LINE, "version": 5}, "version 5"),
        ({**LINE, "network": "somewhere"}, "somewhere/8"),
        ({**LINE, "network": "fd00::"}, "not IPv4"),
        ({**LINE, "network": "10.0.0.0", "prefix": 30}, "too small"),
        ({"topo_type": "mesh", "node_count": 3, "assign_st": True, "leaf_source": True}, "leaf"),
        ({"topo_type": "linear", "node_count": 1, "assign_st": True}, "no node is left"),
        ({"topology": networkx.grid_2d_graph(2, 2)}, "a text or a number"),
        ({"topology": networkx.Graph([(1, 1)])}, "no edge to itself"),
    ],
)
def test_an_impossible_topology_is_refused_and_the_reason_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RuntimeError, match=named):
        NetGraph(**options)


def test_unknown_nodes_and_edges_are_key_errors() -> None:
    with pytest.raises(KeyError, match="no node 7"):
        NetGraph(topo_type="linear", node_count=2, sources_targets={"sources": [7]})
    with pytest.raises(KeyError, match="no node 0"):
        NetGraph(assign_st=True)
    with pytest.raises(KeyError, match="no edge"):
        NetGraph(topo_type="linear", node_count=3).edge_annotations(0, 2)


@pytest.mark.parametrize(
    ("options", "within", "prefix"),
    [
        ({}, "10.0.0.0/8", 30),
        ({"version": 6}, "fd00::/8", 126),
        ({"network": "192.168.0.0", "prefix": 27}, "192.168.0.0/27", 30),
    ],
)
def test_each_edge_has_its_own_network(options: dict[str, Any], within: str, prefix: int) -> None:
    netgraph = NetGraph(topo_type="tree", node_count=7, assign_ips=True, **options)

    networks = set()
    for nid1, nid2 in netgraph.edges():
        ip1, ip2, mask, base, length = netgraph.get_p2p_info(nid1, nid2)
        network: Any = ipaddress.ip_network(f"{base}/{length}")
        networks.add(network)
        assert [ip1, ip2] == [str(host) for host in network.hosts()][:2]
        assert netgraph.get_p2p_info(nid2, nid1)[:2] == (ip2, ip1)
        assert (length, mask) == (prefix, str(network.netmask))
        assert network.subnet_of(ipaddress.ip_network(within))
        assert ip1 in netgraph.node_ip_annotations(nid1)
        assert ip2 in netgraph.node_ip_annotations(nid2)
    assert len(networks) == len(netgraph.edges())


def test_sources_and_targets_are_chosen_or_named() -> None:
    chosen = NetGraph(topo_type="star", node_count=7, branches=2, assign_st=True, leaf_source=True)
    ladder = NetGraph(topo_type="ladder", node_count=8, assign_st=True, leaf_source=True)
    named = NetGraph(topo_type="mesh", node_count=4, sources_targets={"sources": [1, 2], "targets": (3,)})

    assert chosen.targets() == [0]
    assert chosen.sources() in ([3], [6])
    assert ladder.sources()[0] in {3, 4, 7}
    assert (named.sources(), named.targets()) == ([1, 2], [3])
    assert (named.is_source(1), named.is_target(1)) == (True, False)


def test_a_graph_of_networkx_is_copied_with_annotations_that_are_set_read_and_deleted() -> None:
    given = networkx.Graph()
    given.add_node("a", place="here", source=True)
    given.add_edge("a", "b", rate=5)
    netgraph = NetGraph(topology=given)
    given.nodes["a"]["place"] = "elsewhere"

    assert netgraph.topo_type == "adhoc"
    assert (netgraph.node_annotation("a", "place"), netgraph.edge_annotation("b", "a", "rate")) == ("here", 5)
    assert netgraph.sources() == ["a"]
    netgraph.annotate_node("b", "name", "x")
    netgraph.annotate_edge("a", "b", "loss", 1.5)
    assert (netgraph.node_annotations("b"), netgraph.edge_annotations("b", "a")) == (["name"], ["rate", "loss"])
    netgraph.del_node_annotation("b", "name")
    netgraph.del_edge_annotation("a", "b", "rate")
    assert (netgraph.node_annotations("b"), netgraph.edge_annotations("a", "b")) == ([], ["loss"])
    netgraph.add_node("b")
    netgraph.add_node("c")
    netgraph.add_edge("b", "d")
    assert (netgraph.nodes(), netgraph.edges()) == (["a", "b", "c", "d"], [("a", "b"), ("b", "d")])
    assert describe(build(describe(netgraph))) == describe(netgraph)
    assert from_xml(to_xml(Description(exp_id="e", topology=describe(netgraph)))).topology == describe(netgraph)
    assert netgraph.edge_net_annotation("a", "b") == {}
    with pytest.raises(TopologyError, match="assign_ips"):
        netgraph.get_p2p_info("a", "b")


def test_a_topology_comes_back_from_documents() -> None:
    netgraph = NetGraph(topo_type="ladder", node_count=6, assign_ips=True, assign_st=True)
    netgraph.annotate_node(3, "name", "x")
    netgraph.annotate_edge(0, 1, "rate", 0.5)
    topology = describe(netgraph)
    description = Description(exp_id="e", topology=topology)

    assert describe(build(topology)) == topology
    assert from_xml(to_xml(description)).topology == topology
    assert from_toml(to_toml(description)).topology == topology
    netgraph.topology.nodes[0]["odd"] = [1]
    with pytest.raises(TopologyError, match=r"'odd' is \[1\], and must be a text, a number or a bool"):
        describe(netgraph)


def test_an_experiment_is_made_from_a_topology_by_callbacks(tmp_path: Path) -> None:
    guids: dict[object, int] = {}

    with ExperimentController(
        "trial", tmp_path,
        add_node_callback=lambda ec, nid: guids.update({nid: ec.register_resource("local::Process")}),
        add_edge_callback=lambda ec, *ends: ec.register_connection(*(guids[nid] for nid in ends)),
        topo_type="star", node_count=7, branches=3, assign_ips=True, assign_st=True,
    ) as ec:  # fmt: skip
        assert ec.netgraph is not None
        edges = ec.netgraph.edges()
        assert ec.get_resource(guids[0]).connections == {guids[nid] for nid in (1, 3, 5)}
        path = ec.save()
    with ExperimentController.load(path, local_dir=tmp_path) as again:
        assert again.netgraph is not None
        assert (again.netgraph.edges(), again.resources) == (edges, list(range(1, 8)))
        assert again.netgraph.get_p2p_info(*edges[0])[:2] == ("10.0.0.1", "10.0.0.2")
    with ExperimentController("trial", tmp_path) as other:
        assert other.netgraph is None
    with pytest.raises(TypeError, match="nthread"):
        ExperimentController("trial", tmp_path, nthread=3)


def test_only_topologies_need_networkx_and_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.toml").write_text('[experiment]\nid = "e"\n[topology]\nnodes = [{ nid = 1 }]\n')
    monkeypatch.setitem(sys.modules, "networkx", None)

    with ExperimentController.load(tmp_path / "e.toml", local_dir=tmp_path) as ec:
        assert "nid = 1" in ec.serialize("toml")
        with pytest.raises(
            MissingExtraError, match=r"a topology needs networkx: install fedmon with its extra \[report\]"
        ):
            _ = ec.netgraph
