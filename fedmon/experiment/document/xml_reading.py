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
    ResourceDescription,
    SetDescription,
    even,
)
from fedmon.experiment.document.errors import DescriptionError, DuplicateResourceError, ValueFormError
from fedmon.experiment.document.nepi_versions import TIMES, VERSIONS, state_of, version_of
from fedmon.experiment.document.values import from_text, integer, number
from fedmon.experiment.document.xml_conditions import action_of, condition_of, is_of_nobody
from fedmon.experiment.document.xml_elements import Element, parse
from fedmon.experiment.document.xml_failures import failures_of
from fedmon.experiment.document.xml_topology import topology_of
from fedmon.experiment.document.xml_writing import FORMAT
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.states import ResourceAction, ResourceState

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
