"""Conditions as text: "after train is STARTED for 2s", "2 of [a, b, c] are STOPPED within 60s"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from fedmon.common.errors import FedmonError
from fedmon.experiment.conditions import COMPARE, AnyCondition, Comparison, Metric, MetricCondition, StateCondition
from fedmon.experiment.durations import seconds
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.states import ResourceState

FORMS = (
    '"after train is STARTED for 2s", "2 of [a, b, c] are STOPPED within 60s", '
    '"when train.accuracy > 0.9 for 3 samples"'
)
_MAX_CHARACTERS = 100_000
_MEMBER = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_SUBJECT = re.compile(
    rf"(?:(?:after|when)\s+)?(?:(?P<quorum>[0-9]{{1,9}}|all|any)\s+of\s+)?"
    rf"(?:\[(?P<group>[^\[\]]*)\]|(?P<member>{_MEMBER}))(?P<rest>[\s.].*)",
    re.IGNORECASE | re.DOTALL,
)
_WITHIN = re.compile(r"(?P<rest>.*\S)\s+within\s+(?P<within>\S+)", re.IGNORECASE | re.DOTALL)
_STATE = re.compile(r"\s+(?:is|are)\s+(?P<state>[A-Za-z]+)(?:\s+for\s+(?P<delay>\S+))?", re.IGNORECASE)
_METRIC = re.compile(
    r"\.(?P<metric>[^\s<>=!]+)\s*(?P<comparison>>=|<=|==|!=|>|<)\s*"
    r"(?P<value>[+-]?[0-9.][0-9.eE+-]*)\s*(?P<percent>%)?(?:\s+for\s+(?P<samples>[0-9]{1,9})\s+samples?)?",
    re.IGNORECASE,
)


def checked_condition(condition: AnyCondition, *, where: str) -> AnyCondition:
    """Return a condition with each member of its group once. Raises DescriptionError, naming ``where``."""
    group = tuple(dict.fromkeys(condition.group))
    if not group:
        raise DescriptionError(f"{where}: the condition names no resource; name one or more")
    if condition.at_least is not None and not 1 <= condition.at_least <= len(group):
        raise DescriptionError(f"{where}: {condition.at_least} of {len(group)} resources; take 1 to {len(group)}")
    for name in ("timeout_s", "delay_s"):
        value = getattr(condition, name, None)
        if value is not None and not 0 <= value < math.inf:
            raise DescriptionError(f"{where}: {name} of the condition is {value}, and must be 0 or more seconds")
    if isinstance(condition, MetricCondition):
        metric = condition.metric
        if metric.comparison not in COMPARE:
            raise DescriptionError(f"{where}: unknown comparison {metric.comparison!r:.60}; use {' '.join(COMPARE)}")
        if not math.isfinite(metric.value) or metric.samples < 1:
            raise DescriptionError(f"{where}: a metric needs a finite value and 1 sample or more, not {metric}")
    return replace(condition, group=group)


def condition_from(text: str, names: Mapping[str, int], *, number: int, where: str) -> AnyCondition:
    """Return the condition that a text means; members are names or guids. Raises DescriptionError."""
    text = text.strip()
    within = _WITHIN.fullmatch(text[:_MAX_CHARACTERS])
    subject = _SUBJECT.fullmatch(within["rest"] if within else text[:_MAX_CHARACTERS])
    unclear = DescriptionError(f"{where}: cannot understand the condition {text[:120]!r}; write it like {FORMS}")
    if subject is None or len(text) > _MAX_CHARACTERS:
        raise unclear
    members = subject["group"] if subject["member"] is None else subject["member"]
    group = tuple(
        dict.fromkeys(member_named(each.strip(), names, where) for each in members.split(",") if members.strip())
    )
    timeout_s = seconds_of(within["within"], where) if within else None
    at_least = {"": None, "all": None, "any": 1}.get((subject["quorum"] or "").lower(), -1)
    if at_least == -1:
        at_least = int(subject["quorum"])
    rest = subject["rest"].rstrip()
    made: AnyCondition
    if found := _STATE.fullmatch(rest):
        state, delay_s = state_named(found["state"], where), seconds_of(found["delay"] or "", where)
        made = StateCondition(
            number=number, group=group, at_least=at_least, timeout_s=timeout_s, state=state, delay_s=delay_s
        )
    elif found := _METRIC.fullmatch(rest):
        try:
            value = float(found["value"]) / (100 if found["percent"] else 1)
        except ValueError as error:
            raise unclear from error
        comparison = cast("Comparison", found["comparison"])
        metric = Metric(name=found["metric"], comparison=comparison, value=value, samples=int(found["samples"] or 1))
        made = MetricCondition(number=number, group=group, at_least=at_least, timeout_s=timeout_s, metric=metric)
    else:
        raise unclear
    return checked_condition(made, where=where)


def text_of(condition: AnyCondition, names: Mapping[int, str]) -> str | None:
    """Return a condition as text; None if no text means exactly that."""
    members = [names.get(guid, str(guid)) for guid in condition.group]
    within = f" within {_number(condition.timeout_s)}s" if condition.timeout_s is not None else ""
    if condition.at_least is None and len(members) == 1:
        subject, verb = members[0], "is"
    else:
        quorum = "" if condition.at_least is None else f"{condition.at_least} of "
        subject, verb = f"{quorum}[{', '.join(members)}]", "are"
    if isinstance(condition, StateCondition):
        delay = f" for {_number(condition.delay_s)}s" if condition.delay_s else ""
        text = f"after {subject} {verb} {condition.state.name}{delay}{within}"
    else:
        metric = condition.metric
        rows = f" for {metric.samples} samples" if metric.samples != 1 else ""
        text = f"when {subject}.{metric.name} {metric.comparison} {_number(metric.value)}{rows}{within}"
    try:
        same = condition_from(text, {name: guid for guid, name in names.items()}, number=condition.number, where="")
    except FedmonError:
        return None
    return text if same == condition else None


def member_named(name: str | int, names: Mapping[str, int], where: str) -> int:
    """Return the guid of a resource by its name or guid. Raises DescriptionError."""
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    if isinstance(name, str) and name in names:
        return names[name]
    if isinstance(name, str) and re.fullmatch(r"[0-9]{1,19}", name):
        return int(name)
    known = ", ".join(list(names)[:20]) or "no resource has a name"
    raise DescriptionError(f"{where}: there is no resource {str(name)[:60]!r}; there is: {known}")


def state_named(name: str, where: str) -> ResourceState:
    """Return a state by its name. Raises DescriptionError."""
    if name.upper() not in ResourceState.__members__:
        raise DescriptionError(
            f"{where}: unknown state {name[:60]!r}; use one of {', '.join(ResourceState.__members__)}"
        )
    return ResourceState[name.upper()]


def seconds_of(text: str, where: str) -> float:
    """Return the length of a duration. Raises DescriptionError."""
    try:
        return seconds(text)
    except ValueError as error:
        raise DescriptionError(f"{where}: {text[:60]!r} is not a time; write it as 2s, 1.5m, 500ms or 1h") from error


def _number(value: float) -> str:
    return repr(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
