"""Experiments as NEPI's XML: reads fedmon's files and NEPI's, and writes states by name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from defusedxml import ElementTree as SafeTree
from defusedxml.common import DefusedXmlException

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.conditions import condition_table
from fedmon.experiment.document.description import Description, ResourceDescription, Topology
from fedmon.experiment.document.tables import from_tables
from fedmon.experiment.durations import seconds
from fedmon.experiment.errors import DescriptionError, placed
from fedmon.experiment.states import ResourceAction, ResourceState

FORMAT = "1"
"""The attribute ``fedmon`` of fedmon's files; NEPI's have none."""
_TIMES = {
    ResourceState.DISCOVERED: "discover_time", ResourceState.RESERVED: "reserved_time",
    ResourceState.PROVISIONED: "provision_time", ResourceState.READY: "ready_time",
    ResourceState.STARTED: "start_time", ResourceState.STOPPED: "stop_time", ResourceState.FAILED: "failed_time",
    ResourceState.RELEASED: "release_time", ResourceState.NEW: "new_time",
}  # fmt: skip
_STATES = {str(state.value): state.name for state in ResourceState}
"""The names of states by their numbers in NEPI 6."""
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
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SECONDS = re.compile(r"(?![0-9]{20}$)[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")
"""A time as fedmon writes it; NEPI's have a unit, or 20 digits."""


def from_xml(source: bytes | str) -> Description:
    """Return the experiment of an XML text of fedmon or NEPI 6; nothing in it is evaluated. Raises DescriptionError."""
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
    reader = _Reader(is_ours=ours is not None)
    # NEPI always writes its default of 20 threads, with which waiting hooks would block the others.
    names = ("run_id", "local_dir", "persist", *(["nthreads"] if ours else []))
    about = {name: text for name in names if (text := root.get(name))}
    whole = {
        "experiment": about | {"id": _needed(root, "exp_id", "the experiment")},
        "resource": [reader.resource(element) for element in root.iter("rm")],
    }
    if (topology := root.find("topology")) is not None:
        whole["topology"] = reader.topology(topology)
    if (failures := root.find("failures")) is not None:
        quorums = [
            {"of": _group(each.attrib.pop("group", ""), "failures"), **each.attrib} for each in failures.iter("quorum")
        ]
        whole["failures"] = {**failures.attrib, "quorums": quorums}
    return from_tables(whole, strict=False)


class _Reader:
    """Turns elements into the tables of documents."""

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours

    def resource(self, element: Any) -> dict[str, Any]:
        where = f"resource {_needed(element, 'guid', 'a resource')}"
        table: dict[str, Any] = {
            "guid": element.get("guid"),
            "type": _needed(element, "rtype", where),
            "name": element.get("name", ""),
            "attributes": self._values(element.findall("attributes/attribute"), where),
            "connect": [_needed(each, "guid", where) for each in element.findall("connections/connection")],
            "traces": [_needed(each, "name", where) for each in element.findall("traces/trace")],
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
            ips = [_needed(ip, "address", where) for ip in each.findall("ip")]
            ips += _literal(notes.pop("ips", "[]"), list, where)
            notes = {name: value for name, value in notes.items() if name not in {"source", "target"}}
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
        text = _needed(element, name, "the topology")
        return self._value(text, element.get(f"{name}-type", "string"), "the topology")

    def _values(self, elements: Iterable[Any], where: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for each in elements:
            name = _needed(each, "name", where)
            if name in values:
                raise DescriptionError(f"{where} has two values of {name!r:.60}: remove one")
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
            state = table["state"].strip()
            table["state"] = _STATES.get(state, state)
        for name in _CONDITION.values():
            text = table.pop(name, "").strip()
            if text not in {"", "None"}:
                with placed(where):
                    table[name] = float(text) if _SECONDS.fullmatch(text) else seconds(text)
        return table


def _needed(element: Any, name: str, where: str) -> str:
    value: str | None = element.get(name)
    if value is None:
        raise DescriptionError(f"{where}: <{element.tag}> has no {name!r}")
    return value


def _group(text: str, where: str) -> list[int]:
    """Return the guids in a list as Python writes it, such as ``[1, 2]``, ``(1,)`` or ``set([1L])``."""
    guids = [each.strip() for each in re.sub(r"set|[\[\](){}L]", " ", text).split(",") if each.strip()]
    if not all(re.fullmatch("[0-9]{1,19}", guid) for guid in guids):
        raise DescriptionError(f"{where}: the group {text[:60]!r} is not a list of guids such as [1, 2]")
    return [int(guid) for guid in guids]


def _literal(text: str, kind: type, where: str) -> Any:
    """Return a list or table as Python writes it; only literals are understood."""
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise DescriptionError(f"{where}: {text[:60]!r} is not a list or table of plain values")
    return found


def to_xml(description: Description) -> str:
    """Return an experiment as XML, from which `from_xml` makes the same, all NEW. Raises DescriptionError."""
    root = SafeTree.fromstring("<experiment/>")
    about = {name: getattr(description, name) for name in ("exp_id", "run_id", "local_dir")}
    _set(root, {**about, "nthreads": description.max_running, "persist": description.persist or None, "fedmon": FORMAT})
    if description.topology is not None:
        _topology(root, description.topology)
    if description.failures is not None:
        (failures,) = _add(root, "failures", {"policy": description.failures.policy})
        for one in description.failures.quorums:
            _add(failures, "quorum", {"at_least": one.at_least, "group": list(one.group) or None, "rtype": one.rtype})
    for resource in description.resources:
        _resource(root, resource)
    _indent(root, "\n")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{SafeTree.tostring(root, encoding="unicode")}\n'


def _resource(root: Any, resource: ResourceDescription) -> None:
    about = {"guid": resource.guid, "rtype": resource.rtype, "name": resource.name or None}
    times = {_TIMES[state]: repr(t) for state, t in resource.times}
    (element,) = _add(root, "rms/rm", {**about, "state": resource.state.name, **times})
    _add(element, "attributes/attribute", *_named(resource.attributes))
    _add(element, "connections/connection", *({"guid": guid} for guid in resource.connections))
    for action, condition in resource.conditions:
        _add(element, "conditions/condition", {"action": action.name, **_condition(condition)})
    for each in resource.sets:
        (one,) = _add(element, "sets/set", {"name": each.attribute, **_as_text(each.value)})
        if each.condition is not None:
            _add(one, "condition", _condition(each.condition))
    _add(element, "traces/trace", *({"name": name} for name in resource.traces))
    for verb, retry in resource.retry.items():
        numbers = {name: getattr(retry, field) for name, field in _RETRY.items()}
        _add(element, "policies/retry", {"verb": verb, **numbers})
    for verb, timeout_s in resource.timeouts.items():
        _add(element, "policies/timeout", {"verb": verb, "time": repr(timeout_s)})


def _condition(condition: AnyCondition) -> dict[str, Any]:
    names = {field: name for name, field in _CONDITION.items()}
    return {names.get(name, name): value for name, value in condition_table(condition).items()}


def _topology(root: Any, topology: Topology) -> None:
    (element,) = _add(root, "topology", {"topo-type": topology.kind})
    for node in topology.nodes:
        marks = {"source": node.is_source or None, "target": node.is_target or None}
        (one,) = _add(element, "nodes/node", {**_nid("nid", node.nid), **marks})
        _add(one, "ip", *({"address": address} for address in node.ips))
        _add(one, "node-annotations/node-annotation", *_named(node.annotations))
    for edge in topology.edges:
        (one,) = _add(element, "edges/edge", {**_nid("nid1", edge.nid1), **_nid("nid2", edge.nid2)})
        if edge.net is not None:
            _add(one, "net", msgspec.structs.asdict(edge.net))
        _add(one, "edge-annotations/edge-annotation", *_named(edge.annotations))


def _nid(name: str, nid: Any) -> dict[str, str]:
    about = _as_text(nid)
    return {name: about["value"], f"{name}-type": about["type"]}


def _named(values: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    return ({"name": name, **_as_text(value)} for name, value in values.items())


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


def _add(parent: Any, path: str, *rows: Mapping[str, object]) -> list[Any]:
    """Add an element with the attributes of each row, below the lists that the path names."""
    *lists, tag = path.split("/")
    for name in lists if rows else ():
        found = parent.find(name)
        parent = _add(parent, name, {})[0] if found is None else found
    made = [parent.makeelement(tag, {}) for _ in rows]
    parent.extend(made)
    for element, row in zip(made, rows, strict=True):
        _set(element, row)
    return made


def _set(element: Any, attributes: Mapping[str, object]) -> None:
    for name, value in attributes.items():
        if _NOT_IN_XML.search(str(value)):
            raise DescriptionError(f"{name} of <{element.tag}>, {value!r:.60}, has a character that XML cannot hold")
        if value is not None:
            element.set(name, str(value))


def _indent(element: Any, line: str) -> None:
    if len(element):
        element.text = f"{line}  "
        for child in element:
            _indent(child, f"{line}  ")
            child.tail = f"{line}  "
        element[-1].tail = line
