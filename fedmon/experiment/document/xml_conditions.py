"""Conditions as XML attributes, with names for states: NEPI's four and what only ours have; and what failures mean."""

from __future__ import annotations

import re
from typing import cast, get_args

from fedmon.experiment.conditions import (
    COMPARE,
    AnyCondition,
    Comparison,
    Metric,
    MetricCondition,
    StateCondition,
)
from fedmon.experiment.document.condition_text import checked_condition
from fedmon.experiment.document.description import FailurePolicy, Policy, QuorumDescription
from fedmon.experiment.document.errors import ConditionTextError, DescriptionError, UnknownStateError
from fedmon.experiment.document.nepi_versions import state_of
from fedmon.experiment.document.values import integer, number, seconds_text
from fedmon.experiment.document.xml_elements import Element
from fedmon.experiment.durations import seconds
from fedmon.experiment.states import ResourceAction

_GROUP = re.compile(r"(?:set\()?\s*[\[({]\s*((?:[0-9]{1,19}L?\s*(?:,\s*|(?=[\])}])))*)[\])}]\s*\)?")
_NUMBER = re.compile(r"(?!\d{20}$)[0-9.]{1,24}(e[+-]?[0-9]{1,3})?")  # not a moment of 20 digits
_NOBODY = re.compile(r"(?:set\(\s*)?[\[({]\s*[\])}](?:\s*\))?|set\(\s*\)")
_ONE = re.compile(r"\s*[0-9]{1,19}L?\s*")


def attributes_of(condition: AnyCondition) -> dict[str, str]:
    """Return a condition as XML attributes."""
    given = {"group": f"[{', '.join(map(str, condition.group))}]"}
    if isinstance(condition, StateCondition):
        given |= {"state": condition.state.name}
        if condition.delay_s:
            given["time"] = f"{seconds_text(condition.delay_s)}"
    else:
        metric = condition.metric
        given |= {"metric": metric.name, "comparison": metric.comparison, "value": repr(float(metric.value))}
        if metric.samples != 1:
            given["samples"] = str(metric.samples)
    if condition.at_least is not None:
        given["at_least"] = str(condition.at_least)
    if condition.timeout_s is not None:
        given["timeout"] = seconds_text(condition.timeout_s)
    return given


def condition_of(element: Element, version: int, *, index: int, where: str) -> AnyCondition:
    """Return the condition of an element; times of ours are in seconds, NEPI's have a unit. Raises DescriptionError."""
    given = element.attributes
    group = group_of(element.needed("group", where=where), where=where)
    at_least = integer(given["at_least"], where=where) if "at_least" in given else None
    timeout_s = _seconds(given["timeout"], where=where) if "timeout" in given else None
    if "metric" not in given:
        made = StateCondition(
            number=index,
            group=group,
            at_least=at_least,
            timeout_s=timeout_s,
            state=state_of(element.needed("state", where=where), version, where=where),
            delay_s=_seconds(given.get("time", ""), where=where),
        )
        return checked_condition(made, where=where)
    comparison = element.needed("comparison", where=where)
    if comparison not in COMPARE:
        raise ConditionTextError(f"{where}: no comparison {comparison[:60]!r}; one of: {' '.join(COMPARE)}")
    metric = Metric(
        name=given["metric"],
        comparison=cast("Comparison", comparison),
        value=number(element.needed("value", where=where), where=where),
        samples=integer(given.get("samples", "1"), where=where),
    )
    told = MetricCondition(number=index, group=group, at_least=at_least, timeout_s=timeout_s, metric=metric)
    return checked_condition(told, where=where)


def is_of_nobody(element: Element) -> bool:
    """Tell whether a condition of NEPI's was left without members, and so asks for nothing any more."""
    return _NOBODY.fullmatch(element.attributes.get("group", "").strip()) is not None


def action_of(text: str, *, where: str) -> ResourceAction:
    """Return an action by its name or NEPI's number. Raises UnknownStateError."""
    text = text.strip()
    if text.upper() in ResourceAction.__members__:
        return ResourceAction[text.upper()]
    if text in {"0", "1", "2"}:
        return ResourceAction(int(text))
    raise UnknownStateError(f"{where}: no action {text[:60]!r}; one of: {', '.join(ResourceAction.__members__)}")


def group_of(text: str, *, where: str) -> tuple[int, ...]:
    """Return the guids of a group as Python writes a list, tuple or set of numbers. Raises ConditionTextError."""
    found = _GROUP.fullmatch(text.strip())
    if found is None and not _ONE.fullmatch(text):
        raise ConditionTextError(f"{where}: the group {text[:60]!r} is not a list of guids such as [1, 2]")
    inside = text if found is None else found[1]
    return tuple(int(part) for part in re.findall(r"[0-9]+", inside))


def _seconds(text: str, *, where: str) -> float:
    """Return seconds of a text with a unit or without one. Raises ConditionTextError."""
    text = text.strip()
    if text in {"", "None"}:
        return 0.0
    try:
        return float(text) if _NUMBER.fullmatch(text) else seconds(text)
    except ValueError as error:
        raise ConditionTextError(
            f"{where}: the time {text[:60]!r} cannot be understood; write it as 2s, 1.5m, 500ms or 1h"
        ) from error


def failures_of(root: Element) -> FailurePolicy | None:
    """Return what failures mean; null where it is not said. Raises DescriptionError."""
    for element in root.each("failures"):
        policy = element.needed("policy", where="failures")
        if policy not in get_args(Policy):
            raise DescriptionError(f"failures: no policy {policy[:60]!r}; one of: {', '.join(get_args(Policy))}")
        return FailurePolicy(policy=cast("Policy", policy), quorums=tuple(map(_quorum, element.each("quorum"))))
    return None


def quorum_attributes(quorum: QuorumDescription) -> dict[str, str | None]:
    """Return a quorum as XML attributes."""
    group = f"[{', '.join(map(str, quorum.group))}]" if quorum.group else None
    return {"at_least": str(quorum.at_least), "group": group, "rtype": quorum.rtype}


def _quorum(element: Element) -> QuorumDescription:
    where = "failures: a quorum"
    return QuorumDescription(
        at_least=integer(element.needed("at_least", where=where), where=where),
        group=group_of(element.attributes["group"], where=where) if "group" in element.attributes else (),
        rtype=element.attributes.get("rtype"),
    )
