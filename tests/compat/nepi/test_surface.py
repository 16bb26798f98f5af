"""Scripts and resource types of NEPI find every name that they use, with its arguments in their order."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import fedmon.experiment as nepi
from fedmon.experiment import ExperimentController

METHODS: dict[str, dict[str, str]] = {
    "ExperimentController": {
        "__init__": "exp_id local_dir persist fm add_node_callback add_edge_callback",
        "deploy": "guids wait_all_ready group", "discover": "guid", "enable_trace": "guid name",
        "filter_resources": "rtype", "get": "guid name", "get_attribute": "guid name", "get_attributes": "guid",
        "get_discover_time": "guid", "get_failed_time": "guid", "get_global": "rtype name",
        "get_provision_time": "guid", "get_ready_time": "guid", "get_release_time": "guid",
        "get_reserved_time": "guid", "get_resource": "guid", "get_resources_by_type": "rtype",
        "get_start_time": "guid", "get_stop_time": "guid", "get_task": "tid", "get_traces": "guid",
        "inform_failure": "guid", "load": "filepath format", "plot": "dirpath format show", "provision": "guid",
        "register_condition": "guids1 action guids2 state time", "register_connection": "guid1 guid2",
        "register_resource": "rtype guid", "release": "guids", "remove_resource": "guid", "reserve": "guid",
        "save": "dirpath format", "schedule": "date callback track", "serialize": "format", "set": "guid name value",
        "set_global": "rtype name value", "set_with_conditions": "name value guids1 guids2 state time",
        "shutdown": "", "start": "guid", "state": "guid hr", "stop": "guid", "trace": "guid name attr block offset",
        "trace_enabled": "guid name", "wait": "guids state quit", "wait_deployed": "guids", "wait_finished": "guids",
        "wait_released": "guids", "wait_started": "guids",
    },
    "ResourceManager": {
        "__init__": "ec guid", "configure": "", "deploy": "", "deploy_with_conditions": "", "discover": "",
        "do_configure": "", "do_connect": "guid", "do_deploy": "", "do_disconnect": "guid", "do_discover": "",
        "do_fail": "", "do_provision": "", "do_release": "", "do_reserve": "", "do_start": "", "do_stop": "",
        "enable_trace": "name", "fail": "", "get": "name", "get_attribute": "name", "get_attributes": "",
        "get_connected": "rtype", "get_global": "name", "get_help": "", "get_platform": "", "get_rtype": "",
        "get_traces": "", "has_attribute": "name", "has_changed": "name", "has_flag": "name flag",
        "is_rm_instance": "rtype", "provision": "", "register_condition": "action group state time",
        "register_connection": "guid", "release": "", "reserve": "", "set": "name value", "set_discovered": "",
        "set_failed": "", "set_global": "name value", "set_provisioned": "", "set_ready": "", "set_released": "",
        "set_reserved": "", "set_started": "", "set_stopped": "",
        "set_with_conditions": "name value group state time", "start": "", "start_with_conditions": "", "stop": "",
        "stop_with_conditions": "", "trace": "name attr block offset", "trace_enabled": "name",
        "unregister_condition": "group action", "unregister_connection": "guid", "valid_connection": "guid",
        "_clsinit": "", "_clsinit_copy": "", "_register_attribute": "", "_register_attributes": "",
        "_register_trace": "", "_register_traces": "", "_remove_attribute": "name", "_remove_trace": "name",
        "debug": "text out err", "error": "text out err", "info": "text out err", "warn": "text out err",
        "warning": "text out err",
    },
    "Attribute": {
        "__init__": "name help type flags default allowed range set_hook", "has_flag": "flag",
        "is_valid_value": "value",
    },
    "Trace": {"__init__": "name help enabled"},
    "ResourceFactory": {
        "create": "rtype ec guid", "get_resource_type": "rtype", "register_type": "rclass", "resource_types": "",
    },
    "FailureManager": {"eval_failure": "guid", "set_ec": "ec", "set_ec_failure": ""},
    "HeapScheduler": {"next": "", "remove": "tid", "schedule": "task"},
    "Task": {"__init__": "timestamp callback"},
    "ParallelRun": {
        "__init__": "maxthreads maxqueue results", "destroy": "", "empty": "", "join": "", "put": "callback",
        "put_nowait": "callback", "start": "", "sync": "", "__iter__": "",
    },
    "NetGraph": {
        "add_edge": "nid1 nid2", "add_node": "nid", "annotate_edge": "nid1 nid2 name value",
        "annotate_edge_net": "nid1 nid2 ip1 ip2 mask network prefixlen", "annotate_node": "nid name value",
        "annotate_node_ip": "nid ip", "assign_p2p_ips": "network prefix version",
        "del_edge_annotation": "nid1 nid2 name", "del_node_annotation": "nid name",
        "edge_annotation": "nid1 nid2 name", "edge_annotations": "nid1 nid2", "edge_net_annotation": "nid1 nid2",
        "edges": "", "generate_topology": "topo_type node_count branches", "get_p2p_info": "nid1 nid2",
        "is_source": "nid", "is_target": "nid", "node_annotation": "nid name", "node_annotations": "nid",
        "node_ip_annotations": "nid", "nodes": "", "select_random_source": "", "select_target_zero": "",
        "set_source": "nid", "set_target": "nid", "sources": "", "targets": "",
    },
    "ExperimentRunner": {
        "evaluate_normal_convergence": "ec run metrics",
        "run": "ec min_runs max_runs wait_time wait_guids compute_metric_callback evaluate_convergence_callback",
    },
}  # fmt: skip
PROPERTIES: dict[str, str] = {
    "ResourceManager": "guid ec state connections conditions deployment_group reschedule_delay discover_time "
    "reserved_time provision_time ready_time start_time stop_time failed_time release_time",
    "Attribute": "name help type flags default allowed range value has_changed",
    "FailureManager": "abort",
    "HeapScheduler": "pending",
    "NetGraph": "topology topo_type order",
}
OF_A_CONTROLLER = (
    "logger fm failure_level ecstate exp_id run_id nthreads local_dir exp_dir run_dir persist netgraph abort resources"
)
KEYWORDS = (
    "topology topo_type node_count branches assign_ips network prefix version assign_st sources_targets leaf_source"
)
MEMBERS: dict[str, str] = {
    "ResourceState": "NEW DISCOVERED RESERVED PROVISIONED READY STARTED STOPPED FAILED RELEASED",
    "ResourceAction": "DEPLOY START STOP",
    "ECState": "RUNNING FAILED RELEASED TERMINATED",
    "FailureLevel": "OK RM_FAILURE EC_FAILURE",
    "TaskStatus": "NEW DONE ERROR",
    "Types": "String Bool Enumerate Double Integer",
    "TraceAttr": "ALL STREAM PATH SIZE",
    "TopologyType": "LINEAR LADDER MESH TREE STAR ADHOC",
}


def positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds]
    return found[1:] if found[:1] == ["self"] else found


@pytest.mark.parametrize("cls", METHODS)
def test_a_method_is_there_with_its_arguments_in_their_order(cls: str) -> None:
    expected = {name: words.split() for name, words in METHODS[cls].items()}

    found = {name: positional(getattr(getattr(nepi, cls), name)) for name in expected}

    assert {name: words[: len(expected[name])] for name, words in found.items()} == expected
    required = [
        (name, one.name)
        for name in expected
        for one in inspect.signature(getattr(getattr(nepi, cls), name)).parameters.values()
        if one.default is one.empty and one.kind is one.KEYWORD_ONLY
    ]
    assert required == []


@pytest.mark.parametrize("cls", sorted(PROPERTIES))
def test_a_property_is_there(cls: str) -> None:
    assert [name for name in PROPERTIES[cls].split() if not hasattr(getattr(nepi, cls), name)] == []


@pytest.mark.parametrize("enum", sorted(MEMBERS))
def test_constants_have_their_names_in_their_order(enum: str) -> None:
    assert list(getattr(nepi, enum).__members__) == MEMBERS[enum].split()


def test_a_controller_has_the_properties_of_nepis(tmp_path: Path) -> None:
    with ExperimentController("trial", tmp_path) as ec:
        assert [name for name in OF_A_CONTROLLER.split() if not hasattr(ec, name)] == []
    assert set(KEYWORDS.split()) == set(inspect.signature(nepi.NetGraph).parameters)
