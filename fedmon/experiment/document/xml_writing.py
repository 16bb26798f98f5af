"""An experiment as XML in the shape that NEPI gave it, with names for states and nothing left out."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from defusedxml import ElementTree as SafeTree

from fedmon.experiment.document.description import (
    Description,
    Nid,
    ResourceDescription,
    Topology,
    TopologyEdge,
    TopologyNode,
    even,
)
from fedmon.experiment.document.errors import ValueFormError
from fedmon.experiment.document.nepi_versions import TIMES
from fedmon.experiment.document.values import as_text, is_legal, seconds_text
from fedmon.experiment.document.xml_conditions import attributes_of, quorum_attributes

FORMAT = "1"
"""What the attribute ``fedmon`` of a file of ours says; NEPI's have no such attribute."""


def to_xml(description: Description) -> str:
    """Return an experiment as XML, from which `from_xml` makes the same description. Raises DescriptionError."""
    description = even(description)
    root = SafeTree.fromstring("<experiment/>")
    _set(root, exp_id=description.exp_id, run_id=description.run_id, nthreads=description.nthreads)
    _set(root, local_dir=description.local_dir, persist="True" if description.persist else None, fedmon=FORMAT)
    if description.topology is not None:
        _topology(root, description.topology)
    if description.failures is not None:
        failures = _add(root, "failures", policy=description.failures.policy)
        for quorum in description.failures.quorums:
            _add(failures, "quorum", **quorum_attributes(quorum))
    resources = _add(root, "rms")
    for resource in description.resources:
        _resource(resources, resource)
    _indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{SafeTree.tostring(root, encoding="unicode")}\n'


def _add(parent: Any, tag: str, **attributes: object) -> Any:
    element = parent.makeelement(tag, {})
    parent.append(element)
    _set(element, **attributes)
    return element


def _set(element: Any, **attributes: object) -> None:
    for name, value in attributes.items():
        if value is None:
            continue
        text = str(value)
        if not is_legal(text):
            raise ValueFormError(f"{name} of <{element.tag}>, {text[:60]!r}, has a character that XML cannot hold")
        element.set(name, text)


def _resource(parent: Any, resource: ResourceDescription) -> None:
    times = {TIMES.get(state, "new_time"): seconds_text(moment) for state, moment in resource.times}
    element = _add(parent, "rm", guid=resource.guid, rtype=resource.rtype, name=resource.name or None)
    _set(element, state=resource.state.name, **times)
    with _list(element, "attributes") as add:
        for name, value in resource.attributes.items():
            _valued(add("attribute"), name, value)
    with _list(element, "connections") as add:
        for guid in resource.connections:
            _set(add("connection"), guid=guid)
    with _list(element, "conditions") as add:
        for action, condition in resource.conditions:
            _set(add("condition"), action=action.name, **attributes_of(condition))
    with _list(element, "sets") as add:
        for each in resource.sets:
            one = _valued(add("set"), each.attribute, each.value)
            if each.condition is not None:
                _add(one, "condition", **attributes_of(each.condition))
    with _list(element, "traces") as add:
        for name in resource.traces:
            _set(add("trace"), name=name)
    with _list(element, "policies") as add:
        _policies(add, resource)


@contextlib.contextmanager
def _list(parent: Any, tag: str) -> Iterator[Callable[[str], Any]]:
    """Make what adds elements to a list of a name; a list of none is left out."""
    element = parent.makeelement(tag, {})
    yield functools.partial(_add, element)
    if len(element):
        parent.append(element)


def _policies(add: Callable[[str], Any], resource: ResourceDescription) -> None:
    for verb, retry in resource.retry.items():
        _set(
            add("retry"),
            verb=verb,
            times=retry.times,
            delay=seconds_text(retry.delay_s),
            factor=repr(float(retry.factor)),
            max_delay=seconds_text(retry.max_delay_s),
        )
    for verb, timeout_s in resource.timeouts.items():
        _set(add("timeout"), verb=verb, time=seconds_text(timeout_s))


def _valued(element: Any, name: str, value: object) -> Any:
    text, kind = as_text(value)
    _set(element, name=name, value=text, type=kind)
    return element


def _topology(root: Any, topology: Topology) -> None:
    element = _add(root, "topology")
    element.set("topo-type", topology.kind)
    nodes = _add(element, "nodes")
    for node in topology.nodes:
        _node(nodes, node)
    edges = _add(element, "edges")
    for edge in topology.edges:
        _edge(edges, edge)


def _node(parent: Any, node: TopologyNode) -> None:
    element = _add(parent, "node")
    _nid(element, "nid", node.nid)
    _set(element, source="True" if node.is_source else None, target="True" if node.is_target else None)
    for address in node.ips:
        _add(element, "ip", address=address)
    with _list(element, "node-annotations") as add:
        for name, value in node.annotations.items():
            _valued(add("node-annotation"), name, value)


def _edge(parent: Any, edge: TopologyEdge) -> None:
    element = _add(parent, "edge")
    _nid(element, "nid1", edge.nid1)
    _nid(element, "nid2", edge.nid2)
    if edge.net is not None:
        _add(element, "net", **{name: getattr(edge.net, name) for name in edge.net.__struct_fields__})
    with _list(element, "edge-annotations") as add:
        for name, value in edge.annotations.items():
            _valued(add("edge-annotation"), name, value)


def _nid(element: Any, name: str, nid: Nid) -> None:
    text, kind = as_text(nid)
    element.set(name, text)
    element.set(f"{name}-type", kind)


def _indent(element: Any, depth: int = 0) -> None:
    inside = "\n" + "  " * (depth + 1)
    if len(element):
        element.text = inside
        for child in element:
            _indent(child, depth + 1)
            child.tail = inside
        element[-1].tail = "\n" + "  " * depth
