"""Experiments as NEPI's XML: reading fedmon's and NEPI 6's, writing with names for states and nothing left out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from defusedxml import ElementTree as SafeTree
from defusedxml.common import DefusedXmlException

from fedmon.experiment.document.conditions import condition_table, seconds_of
from fedmon.experiment.document.description import Description, ResourceDescription, Topology, even
from fedmon.experiment.document.tables import from_tables
from fedmon.experiment.durations import is_moment, moment
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.states import ResourceAction, ResourceState

FORMAT = "1"
"""The attribute ``fedmon`` of fedmon's files; NEPI's have none."""
_TIMES = {
    "discover_time": "DISCOVERED", "reserved_time": "RESERVED", "provision_time": "PROVISIONED",
    "ready_time": "READY", "start_time": "STARTED", "stop_time": "STOPPED", "failed_time": "FAILED",
    "release_time": "RELEASED", "new_time": "NEW",
}  # fmt: skip
_STATES_OF_3 = tuple(state.name for state in ResourceState if state is not ResourceState.RESERVED)
_RETRY = {"times": "times", "delay": "delay_s", "factor": "factor", "max_delay": "max_delay_s"}
_CONDITION = {"time": "delay_s", "timeout": "timeout_s"}
_ACTIONS = tuple(action.name.lower() for action in ResourceAction)
_KINDS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "bool": lambda text: {"true": True, "false": False}[text.strip().lower()],
    "integer": lambda text: int(text.strip().rstrip("L")),
    "float": float,
    "double": float,
    "null": lambda _: None,
    "json": lambda text: {"json": text},
}
_LONGEST = 100_000
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def from_xml(source: bytes | str, *, nepi: int | None = None) -> Description:
    """Return the experiment of an XML text of fedmon or NEPI 6; ``nepi=3`` reads states as NEPI 3 counted them.

    Nothing in it is evaluated. Raises DescriptionError.
    """
    try:
        root = SafeTree.fromstring(source, forbid_dtd=True)
    except DefusedXmlException as error:
        raise DescriptionError("the XML declares a document type or entities: take the declaration out") from error
    except (SafeTree.ParseError, LookupError, UnicodeError, ValueError) as error:
        raise DescriptionError(f"this is not XML: {error}") from error
    ours = root.get("fedmon")
    if root.tag != "experiment" or ours not in {None, FORMAT}:
        raise DescriptionError(
            f"the XML is a <{root.tag[:60]}> of format {ours!r:.20}, not an <experiment> of format 1"
        )
    if nepi not in {None, 3, 6}:
        raise DescriptionError(f"nepi={nepi!r:.20}: NEPI 3 and 6 wrote files")
    reader = _Reader(is_ours=ours is not None, counts=_STATES_OF_3 if nepi == 3 else tuple(ResourceState.__members__))
    about = {name: text for name in ("run_id", "local_dir", "persist") if (text := root.get(name))}
    # NEPI writes its default of 20 threads, with which hooks that wait hold up the others.
    about |= {"nthreads": root.get("nthreads")} if ours and root.get("nthreads") else {}
    whole = {
        "experiment": about | {"id": _needed(root, "exp_id", "the experiment")},
        "resource": [reader.resource(element) for element in root.iter("rm")],
    }
    if (topology := root.find("topology")) is not None:
        whole["topology"] = reader.topology(topology)
    if (failures := root.find("failures")) is not None:
        quorums = [
            {"of": _group(each.attrib.pop("group", "[]"), "failures"), **each.attrib}
            for each in failures.iter("quorum")
        ]
        whole["failures"] = {**failures.attrib, "quorums": quorums}
    return from_tables(whole, strict=False)


class _Reader:
    """Turns elements into the tables of documents."""

    def __init__(self, *, is_ours: bool, counts: tuple[str, ...]) -> None:
        self._is_ours, self._counts = is_ours, counts

    def resource(self, element: Any) -> dict[str, Any]:
        where = f"resource {_needed(element, 'guid', 'a resource')}"
        table: dict[str, Any] = {
            "guid": element.get("guid"),
            "type": _needed(element, "rtype", where),
            "name": element.get("name", ""),
            "attributes": self._values(element.findall("attributes/attribute"), where),
            "connect": [_needed(each, "guid", where) for each in element.findall("connections/connection")],
            "traces": [_needed(each, "name", where) for each in element.findall("traces/trace")],
            "state": self._state(element.get("state", "NEW"), where),
            "times": dict(self._times(element, where)),
            "timeouts": {each.get("verb", ""): each.get("time") for each in element.findall("policies/timeout")},
            "retry": {
                each.get("verb", ""): {_RETRY[name]: text for name, text in each.items() if name in _RETRY}
                for each in element.findall("policies/retry")
            },
            "set": [],
        }
        for each in element.findall("conditions/condition"):
            action = each.get("action", "").strip().lower()
            action = dict(enumerate(_ACTIONS)).get(int(action), action) if action.isdecimal() else action
            conditions = table.setdefault(action, [])
            found = self._condition(each, f"{where}: {action} condition {len(conditions) + 1}")
            if found["group"] or self._is_ours:  # NEPI leaves conditions whose members were all taken out
                conditions.append(found)
        for each in element.findall("sets/set"):
            ((name, value),) = self._values([each], where).items()
            when = [self._condition(one, f"{where}: set {name}") for one in each.findall("condition")]
            table["set"].append({"attribute": name, "value": value, "when": when[0] if when else None})
        return table

    def topology(self, element: Any) -> dict[str, Any]:
        """Return the table of a topology; NEPI writes addresses as annotations, fedmon as elements."""
        nodes, edges = [], []
        for each in element.findall("nodes/node"):
            nid = self._nid(each, "nid")
            where = f"node {nid} of the topology"
            notes = self._values(each.findall("node-annotations/node-annotation"), where)
            marks = {f"is_{name}": each.get(name) is not None for name in ("source", "target")}
            notes = {name: value for name, value in notes.items() if name not in {"source", "target"}}
            ips = [_needed(ip, "address", where) for ip in each.findall("ip")]
            ips += _literal(notes.pop("ips", "[]"), list, where)
            nodes.append({"nid": nid, **marks, "ips": ips, "annotations": notes})
        for each in element.findall("edges/edge"):
            nid1, nid2 = self._nid(each, "nid1"), self._nid(each, "nid2")
            where = f"edge {nid1} - {nid2} of the topology"
            notes = self._values(each.findall("edge-annotations/edge-annotation"), where)
            net = next((dict(one.attrib) for one in each.findall("net")), None)
            if "net" in notes:
                told = _literal(notes.pop("net"), dict, where)
                net = {name: told.get(name) for name in ("mask", "network", "prefix")}
                net |= {"ip1": told.get(nid1), "ip2": told.get(nid2)}
            edges.append({"nid1": nid1, "nid2": nid2, "net": net, "annotations": notes})
        return {"kind": element.get("topo-type", "adhoc"), "nodes": nodes, "edges": edges}

    def _nid(self, element: Any, name: str) -> Any:
        text, where = _needed(element, name, "the topology"), "the topology"
        return self._value(text, element.get(f"{name}-type", "string"), where)

    def _values(self, elements: Any, where: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for each in elements:
            name = _needed(each, "name", where)
            if name in values:
                raise DescriptionError(f"{where} has two values of {name!r:.60}: take one out")
            values[name] = self._value(_needed(each, "value", where), each.get("type", "string"), f"{where}: {name}")
        return values

    def _value(self, text: str, kind: str, where: str) -> Any:
        if not self._is_ours:  # an unknown type of NEPI's is text
            kind = "null" if text == "None" else kind.lower() if kind.lower() in _KINDS else "string"
        try:
            return _KINDS[kind](text)
        except (KeyError, ValueError) as error:
            raise DescriptionError(f"{where}: {text[:60]!r} is not a value of type {kind[:20]!r}") from error

    def _condition(self, element: Any, where: str) -> dict[str, Any]:
        table = {_CONDITION.get(name, name): text for name, text in element.items() if name != "action"}
        table["group"] = _group(_needed(element, "group", where), where)
        if "state" in table:
            table["state"] = self._state(table["state"], where)
        for name in _CONDITION.values():
            text = table.pop(name, "").strip()
            if text not in {"", "None"}:
                table[name] = _seconds(text, where)
        return table

    def _state(self, text: str, where: str) -> str:
        text = text.strip()
        if not text.isdecimal():
            return text
        if len(text) > 2 or int(text) >= len(self._counts):
            raise DescriptionError(f"{where}: unknown state {text[:60]!r}: 0 is NEW, {len(self._counts) - 1} RELEASED")
        return self._counts[int(text)]

    def _times(self, element: Any, where: str) -> Iterator[tuple[str, float]]:
        found = [(name, text) for name, text in element.items() if name in _TIMES and text not in {"", "None"}]
        if not self._is_ours:  # 20 digits each, so their order is that of the texts
            found.sort(key=lambda each: each[1])
        for name, text in found:
            try:
                yield _TIMES[name], moment(text).timestamp() if is_moment(text) else float(text)
            except ValueError as error:
                raise DescriptionError(f"{where}: {name}: {text[:60]!r} is not a time") from error


def _needed(element: Any, name: str, where: str) -> str:
    value: str | None = element.get(name)
    if value is None:
        raise DescriptionError(f"{where}: <{element.tag}> has no {name!r}")
    return value


def _group(text: str, where: str) -> list[int]:
    inner = re.sub(r"^set\((.*)\)$", r"\1", text.strip()) or "[]"
    found = _literal(re.sub(r"(?<=[0-9])L\b", "", inner), (list, tuple, set, dict, int), where)
    guids = [found] if isinstance(found, int) else list(found)
    if not all(type(guid) is int for guid in guids):
        raise DescriptionError(f"{where}: the group {text[:60]!r} is not a list of guids such as [1, 2]")
    return guids


def _literal(text: str, kind: Any, where: str) -> Any:
    """Return a list or table as Python writes it; only literals are understood."""
    try:
        found = ast.literal_eval(text.strip()) if len(text) <= _LONGEST else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise DescriptionError(f"{where}: {text[:60]!r} is not a list or table of plain values")
    return found


def _seconds(text: str, where: str) -> float:
    if re.fullmatch(r"(?![0-9]{20}$)[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?", text):  # fedmon's; NEPI's have a unit
        return float(text)
    return seconds_of(text, where)


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
        for one in description.failures.quorums:
            group = str(list(one.group)) if one.group else None
            _add(failures, "quorum", at_least=one.at_least, group=group, rtype=one.rtype)
    resources = _add(root, "rms")
    for resource in description.resources:
        _resource(resources, resource)
    _indent(root, "\n")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{SafeTree.tostring(root, encoding="unicode")}\n'


def _resource(parent: Any, resource: ResourceDescription) -> None:
    names = {state: name for name, state in _TIMES.items()}
    times = {names[state.name]: repr(moment) for state, moment in resource.times}
    element = _add(parent, "rm", guid=resource.guid, rtype=resource.rtype, name=resource.name or None)
    _set(element, state=resource.state.name, **times)
    for name, value in resource.attributes.items():
        _set(_listed(element, "attributes", "attribute"), name=name, **_as_text(value))
    for guid in resource.connections:
        _set(_listed(element, "connections", "connection"), guid=guid)
    for action, condition in resource.conditions:
        _set(_listed(element, "conditions", "condition"), action=action.name, **_condition(condition))
    for each in resource.sets:
        one = _listed(element, "sets", "set")
        _set(one, name=each.attribute, **_as_text(each.value))
        if each.condition is not None:
            _add(one, "condition", **_condition(each.condition))
    for name in resource.traces:
        _set(_listed(element, "traces", "trace"), name=name)
    for verb, retry in resource.retry.items():
        about = {name: getattr(retry, field) for name, field in _RETRY.items()}
        _set(_listed(element, "policies", "retry"), verb=verb, **about)
    for verb, timeout_s in resource.timeouts.items():
        _set(_listed(element, "policies", "timeout"), verb=verb, time=repr(timeout_s))


def _condition(condition: Any) -> dict[str, Any]:
    names = {field: name for name, field in _CONDITION.items()}
    return {names.get(name, name): str(value) for name, value in condition_table(condition).items()}


def _topology(root: Any, topology: Topology) -> None:
    element = _add(root, "topology")
    element.set("topo-type", topology.kind)
    nodes, edges = _add(element, "nodes"), _add(element, "edges")
    for node in topology.nodes:
        one = _add(nodes, "node", **_nid("nid", node.nid))
        _set(one, source="True" if node.is_source else None, target="True" if node.is_target else None)
        for address in node.ips:
            _add(one, "ip", address=address)
        for name, value in node.annotations.items():
            _set(_listed(one, "node-annotations", "node-annotation"), name=name, **_as_text(value))
    for edge in topology.edges:
        one = _add(edges, "edge", **_nid("nid1", edge.nid1), **_nid("nid2", edge.nid2))
        if edge.net is not None:
            _add(one, "net", **msgspec.structs.asdict(edge.net))
        for name, value in edge.annotations.items():
            _set(_listed(one, "edge-annotations", "edge-annotation"), name=name, **_as_text(value))


def _nid(name: str, nid: Any) -> dict[str, str]:
    about = _as_text(nid)
    return {name: about["value"], f"{name}-type": about["type"]}


def _as_text(value: Any) -> dict[str, str]:
    """Return a plain value as text and the name of its type."""
    match value:
        case bool():
            return {"value": str(value), "type": "bool"}
        case int() if abs(value) < 10**4000:  # Python writes no more than 4300 digits
            return {"value": str(value), "type": "integer"}
        case float():
            return {"value": repr(value), "type": "float"}
        case None:
            return {"value": "", "type": "null"}
        case str() if not _NOT_IN_XML.search(value):
            return {"value": value, "type": "string"}
    return {"value": json.dumps(value), "type": "json"}


def _listed(parent: Any, name: str, tag: str) -> Any:
    """Add an element to the list of a name, which is made for the first one."""
    found = parent.find(name)
    return _add(_add(parent, name) if found is None else found, tag)


def _add(parent: Any, tag: str, **attributes: object) -> Any:
    element = parent.makeelement(tag, {})
    parent.append(element)
    _set(element, **attributes)
    return element


def _set(element: Any, **attributes: object) -> None:
    for name, value in attributes.items():
        if value is not None:
            if _NOT_IN_XML.search(str(value)):
                raise DescriptionError(
                    f"{name} of <{element.tag}>, {value!r:.60}, has a character that XML cannot hold"
                )
            element.set(name, str(value))


def _indent(element: Any, line: str) -> None:
    if len(element):
        element.text = f"{line}  "
        for child in element:
            _indent(child, f"{line}  ")
            child.tail = f"{line}  "
        element[-1].tail = line
