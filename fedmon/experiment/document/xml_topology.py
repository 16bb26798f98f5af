"""The topology of an experiment out of XML: ours, and NEPI's, in which addresses are Python lists and tables as text.

Those are taken apart by what they may consist of; nothing is evaluated.
"""

from __future__ import annotations

import re

from fedmon.experiment.document.description import Net, Nid, Topology, TopologyEdge, TopologyNode
from fedmon.experiment.document.errors import ValueFormError
from fedmon.experiment.document.values import from_text, integer
from fedmon.experiment.document.xml_elements import Element

_TEXT = r"""u?(?:'[^'\\]*'|"[^"\\]*")"""
_LIST = re.compile(rf"\[\s*(?:{_TEXT}\s*(?:,\s*|(?=\])))*\]")
_TABLE = re.compile(rf"\{{\s*(?:(?:{_TEXT}|[0-9]+)\s*:\s*(?:{_TEXT}|[0-9]+)\s*(?:,\s*|(?=\}})))*\}}")
_PAIR = re.compile(rf"({_TEXT}|[0-9]+)\s*:\s*({_TEXT}|[0-9]+)")
_MARKS = {"source", "target"}


def topology_of(root: Element, *, is_ours: bool) -> Topology | None:
    """Return the topology of an experiment; null where it has none. Raises DescriptionError."""
    for element in root.each("topology"):
        return Topology(
            kind=element.attributes.get("topo-type", "adhoc"),
            nodes=tuple(_node(each, is_ours=is_ours) for each in element.each("nodes", "node")),
            edges=tuple(_edge(each, is_ours=is_ours) for each in element.each("edges", "edge")),
        )
    return None


def _node(element: Element, *, is_ours: bool) -> TopologyNode:
    nid = _nid(element, "nid")
    where = f"node {nid} of the topology"
    notes = _notes(element, "node-annotation")
    addresses = [each.needed("address", where=where) for each in element.each("ip")]
    if not is_ours:
        notes = {name: note for name, note in notes.items() if name not in _MARKS}
        if "ips" in notes:
            addresses = _addresses(notes.pop("ips")[0], where=where)
    return TopologyNode(
        nid=nid,
        is_source="source" in element.attributes,
        is_target="target" in element.attributes,
        ips=tuple(addresses),
        annotations=_values(notes, is_ours=is_ours, where=where),
    )


def _edge(element: Element, *, is_ours: bool) -> TopologyEdge:
    nid1, nid2 = _nid(element, "nid1"), _nid(element, "nid2")
    where = f"edge {nid1} - {nid2} of the topology"
    notes = _notes(element, "edge-annotation")
    net = None
    for each in element.each("net"):
        told = {name: each.needed(name, where=where) for name in Net.__struct_fields__}
        net = _net(told, where=where)
    if not is_ours and "net" in notes:
        told = _table(notes.pop("net")[0], where=where)
        ends = {"ip1": told.get(str(nid1), ""), "ip2": told.get(str(nid2), "")}
        net = _net({"mask": "", "network": "", "prefix": told.get("prefixlen", "0"), **told, **ends}, where=where)
    return TopologyEdge(nid1=nid1, nid2=nid2, net=net, annotations=_values(notes, is_ours=is_ours, where=where))


def _net(told: dict[str, str], *, where: str) -> Net:
    prefix = integer(told["prefix"], where=where)
    return Net(ip1=told["ip1"], ip2=told["ip2"], mask=told["mask"], network=told["network"], prefix=prefix)


def _nid(element: Element, name: str) -> Nid:
    where = "the topology"
    text = element.needed(name, where=where)
    nid: Nid = from_text(text, element.attributes.get(f"{name}-type", "string"), where=where)
    if not isinstance(nid, (str, int, float)):
        raise ValueFormError(f"{where}: {text[:60]!r} names no node; use text or a number")
    return nid


def _notes(element: Element, tag: str) -> dict[str, tuple[str, str]]:
    return {
        each.needed("name", where="the topology"): (each.attributes.get("value", ""), each.attributes.get("type", ""))
        for each in element.each(f"{tag}s", tag)
    }


def _values(notes: dict[str, tuple[str, str]], *, is_ours: bool, where: str) -> dict[str, Nid]:
    values = {}
    for name, (text, kind) in notes.items():
        value = from_text(text, kind or "string", where=f"{where}: {name}", is_ours=is_ours)
        if value is None and not is_ours:
            value = text
        if not isinstance(value, (str, int, float)):
            raise ValueFormError(f"{where}: the note {name!r} is neither text nor a number nor true or false")
        values[name] = value
    return values


def _addresses(text: str, *, where: str) -> list[str]:
    if not _LIST.fullmatch(text.strip()):
        raise ValueFormError(f"{where}: {text[:60]!r} is not a list of addresses")
    return [_unquoted(part) for part in re.findall(_TEXT, text)]


def _table(text: str, *, where: str) -> dict[str, str]:
    if not _TABLE.fullmatch(text.strip()):
        raise ValueFormError(f"{where}: {text[:60]!r} is not a table of addresses")
    return {_unquoted(name): _unquoted(value) for name, value in _PAIR.findall(text)}


def _unquoted(part: str) -> str:
    return part if part.isdigit() else part.lstrip("u")[1:-1]
