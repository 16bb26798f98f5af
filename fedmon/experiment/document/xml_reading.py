"""An experiment out of XML: ours, and what NEPI 3 and NEPI 6 wrote."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, cast, get_args

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.description import (
    Description,
    Net,
    Nid,
    ResourceDescription,
    SetDescription,
    Topology,
    TopologyEdge,
    TopologyNode,
    even,
)
from fedmon.experiment.document.errors import DescriptionError, DuplicateResourceError, ValueFormError
from fedmon.experiment.document.nepi_versions import TIMES, VERSIONS, state_of, version_of
from fedmon.experiment.document.values import from_text, integer, number
from fedmon.experiment.document.xml_conditions import action_of, condition_of, failures_of, is_of_nobody
from fedmon.experiment.document.xml_elements import Element, parse
from fedmon.experiment.document.xml_writing import FORMAT
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.states import ResourceAction, ResourceState

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


_NO_TIME = {"", "None"}


def from_xml(source: bytes | str, *, nepi: int | None = None) -> Description:
    """Return the experiment of an XML text.

    ``nepi`` says which NEPI wrote it, 3 or 6; null: told by the states and times in it, or else 6. Nothing in it is
    run. Raises DescriptionError, of which a subclass says what is wrong.
    """
    if nepi is not None and nepi not in VERSIONS:
        raise DescriptionError(f"no files of NEPI {nepi}; one of: {', '.join(map(str, VERSIONS))}")
    root = parse(source)
    if root.tag != "experiment":
        raise DescriptionError(f"the XML is a <{root.tag[:60]}>, not an <experiment>")
    given = root.attributes
    ours = given.get("fedmon")
    if ours not in {None, FORMAT}:
        raise DescriptionError(f"the file is of format {str(ours)[:20]!r}, which this fedmon cannot read; it reads 1")
    reader = _Reader(is_ours=ours is not None, version=6 if ours is not None else nepi or version_of(root))
    return even(
        Description(
            exp_id=root.needed("exp_id", where="the experiment"),
            run_id=given.get("run_id") or None,
            # NEPI writes the number that it has by default, and with so few threads hooks that wait hold up the rest.
            nthreads=integer(given["nthreads"], where="nthreads") if reader.is_ours and given.get("nthreads") else None,
            local_dir=given.get("local_dir") or None,
            persist=from_text(given.get("persist", "False"), "bool", where="persist"),
            topology=topology_of(root, is_ours=reader.is_ours),
            failures=failures_of(root),
            # The first files of NEPI 3 have no <rms> around them.
            resources=tuple(map(reader.resource, root.below("rm"))),
        )
    )


class _Reader:
    def __init__(self, *, is_ours: bool, version: int) -> None:
        self.is_ours, self._version = is_ours, version

    def resource(self, element: Element) -> ResourceDescription:
        guid = integer(element.needed("guid", where="a resource"), where="guid")
        where = f"resource {guid}"
        return ResourceDescription(
            guid=guid,
            rtype=element.needed("rtype", where=where),
            name=element.attributes.get("name", ""),
            attributes=dict(self._attributes(element, where)),
            connections=tuple(
                integer(each.needed("guid", where=where), where=where)
                for each in element.each("connections", "connection")
            ),
            conditions=tuple(self._conditions(element, where)),
            sets=tuple(self._set(each, where) for each in element.each("sets", "set")),
            traces=tuple(each.needed("name", where=where) for each in element.each("traces", "trace")),
            retry={
                self._verb(each, where): self._retry(each, where=where) for each in element.each("policies", "retry")
            },
            timeouts={
                self._verb(each, where): number(each.needed("time", where=where), where=where)
                for each in element.each("policies", "timeout")
            },
            state=state_of(element.attributes.get("state", "0"), self._version, where=where),
            times=tuple(self._times(element, where)),
        )

    def _attributes(self, element: Element, where: str) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for each in element.each("attributes", "attribute"):
            name = each.needed("name", where=where)
            if name in seen:
                raise DuplicateResourceError(f"{where} has two values of the attribute {name!r}")
            seen.add(name)
            yield name, self._value(each, f"{where}: {name}")

    def _value(self, element: Element, where: str) -> Any:
        kind = element.attributes.get("type", "string")
        return from_text(element.needed("value", where=where), kind, where=where, is_ours=self.is_ours)

    def _conditions(self, element: Element, where: str) -> Iterator[tuple[ResourceAction, AnyCondition]]:
        told = element.each("conditions", "condition")
        for index, each in enumerate((each for each in told if self.is_ours or not is_of_nobody(each)), 1):
            action = action_of(each.needed("action", where=where), where=where)
            yield action, self._condition(each, index, f"{where}: {action.name} condition {index}")

    def _condition(self, element: Element, index: int, where: str) -> AnyCondition:
        return condition_of(element, self._version, index=index, where=where)

    def _set(self, element: Element, where: str) -> SetDescription:
        name = element.needed("name", where=where)
        conditions = [self._condition(each, 1, f"{where}: {name}") for each in element.each("condition")]
        value = self._value(element, f"{where}: {name}")
        return SetDescription(attribute=name, value=value, condition=conditions[0] if conditions else None)

    @staticmethod
    def _verb(element: Element, where: str) -> Verb:
        verb = element.needed("verb", where=where)
        if verb not in get_args(Verb):
            raise DescriptionError(f"{where}: no verb {verb[:60]!r}; one of: {', '.join(get_args(Verb))}")
        return cast("Verb", verb)

    @staticmethod
    def _retry(element: Element, *, where: str) -> Retry:
        return Retry(
            times=integer(element.needed("times", where=where), where=where),
            delay_s=number(element.attributes.get("delay", "1"), where=where),
            factor=number(element.attributes.get("factor", "2"), where=where),
            max_delay_s=number(element.attributes.get("max_delay", "60"), where=where),
        )

    def _times(self, element: Element, where: str) -> Iterator[tuple[ResourceState, float]]:
        names = {name: state for state, name in TIMES.items()} | {"new_time": ResourceState.NEW}
        given = [(name, text) for name, text in element.attributes.items() if name in names and text not in _NO_TIME]
        for name, text in given if self.is_ours else sorted(given, key=itemgetter(1)):
            yield names[name], _moment(text, where=f"{where}: {name}")


def _moment(text: str, *, where: str) -> float:
    """Return Unix seconds: ours are written as such, NEPI's as 20 digits of local time."""
    if not re.fullmatch(r"[0-9]{20}", text):
        return number(text, where=where)
    try:
        return datetime.datetime.strptime(text, "%Y%m%d%H%M%S%f").astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueFormError(f"{where}: {text!r} is not a moment of time") from error
