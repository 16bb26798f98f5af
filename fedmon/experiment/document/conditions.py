"""Conditions as text: "after train is STARTED for 2s", "2 of [a, b, c] are STOPPED within 60s"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from fedmon.experiment.conditions import (
    AnyCondition,
    Comparison,
    Metric,
    MetricCondition,
    StateCondition,
    state_of,
)
from fedmon.experiment.durations import seconds
from fedmon.experiment.errors import DescriptionError

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
    r"\.(?P<metric>[^\s<>=!{]+(?:\{[^{}]*\})?)\s*(?P<comparison>>=|<=|==|!=|>|<)\s*"
    r"(?P<value>[+-]?[0-9.][0-9.eE+-]*)\s*(?P<percent>%)?(?:\s+for\s+(?P<samples>[0-9]{1,9})\s+samples?)?",
    re.IGNORECASE,
)


class ConditionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition as a table."""

    group: list[str | int]
    state: str | None = None
    delay_s: float = 0.0
    at_least: int | None = None
    timeout_s: float | None = None
    metric: str | None = None
    comparison: str = ">"
    value: float | None = None
    samples: int = 1


def condition_of(table: ConditionTable, names: Mapping[str, int], *, number: int) -> AnyCondition:
    """Return the condition that a table means; members are names or guids. Raises a ValueError with the reason."""
    group = tuple(member_named(member, names) for member in table.group)
    shared: dict[str, Any] = {"number": number, "group": group, "at_least": table.at_least}
    shared["timeout_s"] = table.timeout_s
    if table.state is not None and table.metric is None:
        return StateCondition(state=state_of(table.state), delay_s=table.delay_s, **shared)
    if table.metric is not None and table.state is None and table.value is not None:
        comparison = cast("Comparison", table.comparison)  # checked with the whole document
        metric = Metric(name=table.metric, comparison=comparison, value=table.value, samples=table.samples)
        return MetricCondition(metric=metric, **shared)
    raise DescriptionError("a condition needs either a state, or a metric with a value")


def condition_table(condition: AnyCondition, names: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Return a condition as the plain values of its table."""
    about: dict[str, Any] = {"at_least": condition.at_least, "timeout_s": condition.timeout_s}
    if isinstance(condition, StateCondition):
        about |= {"state": condition.state.name} | ({"delay_s": float(condition.delay_s)} if condition.delay_s else {})
    else:
        metric = msgspec.structs.asdict(condition.metric)
        about |= {"metric": metric.pop("name"), **metric, "value": float(condition.metric.value)}
    table = ConditionTable(group=[(names or {}).get(guid, guid) for guid in condition.group], **about)
    found: dict[str, Any] = msgspec.to_builtins(table)
    return found


def condition_from(text: str, names: Mapping[str, int], *, number: int) -> AnyCondition:
    """Return the condition that a text means; members are names or guids. Raises a ValueError with the reason."""
    text = text.strip()
    within = _WITHIN.fullmatch(text[:_MAX_CHARACTERS])
    subject = _SUBJECT.fullmatch(within["rest"] if within else text[:_MAX_CHARACTERS])
    unclear = DescriptionError(f"cannot understand the condition {text[:120]!r}; write it like {FORMS}")
    if subject is None or len(text) > _MAX_CHARACTERS:
        raise unclear
    members = subject["group"] if subject["member"] is None else subject["member"]
    quorum, rest = (subject["quorum"] or "all").lower(), subject["rest"].rstrip()
    about: dict[str, Any] = {"timeout_s": seconds(within["within"]) if within else None}
    about["at_least"] = int(quorum) if quorum.isdecimal() else {"all": None, "any": 1}[quorum]
    if found := _STATE.fullmatch(rest):
        about |= {"state": found["state"], "delay_s": seconds(found["delay"])}
    elif found := _METRIC.fullmatch(rest):
        try:
            about["value"] = float(found["value"]) / (100 if found["percent"] else 1)
        except ValueError as error:
            raise unclear from error
        about |= {"metric": found["metric"], "comparison": found["comparison"], "samples": int(found["samples"] or 1)}
    else:
        raise unclear
    group = [member.strip() for member in members.split(",")] if members.strip() else []
    return condition_of(ConditionTable(group=group, **about), names, number=number)


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
        same = condition_from(text, {name: guid for guid, name in names.items()}, number=condition.number)
    except ValueError:
        return None
    return text if same == condition else None


def member_named(name: str | int, names: Mapping[str, int]) -> int:
    """Return the guid of a resource by its name or guid. Raises DescriptionError."""
    if isinstance(name, int):
        return name
    if name in names:
        return names[name]
    if re.fullmatch(r"[0-9]{1,19}", name):
        return int(name)
    known = ", ".join(list(names)[:20]) or "no names"
    raise DescriptionError(f"resource {name[:60]!r} not found; known are: {known}")


def _number(value: float) -> str:
    return repr(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
