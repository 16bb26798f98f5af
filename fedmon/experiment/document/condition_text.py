"""Conditions as a person writes them: "after train is STARTED for 2s", "2 of [a, b, c] are STOPPED within 60s"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from fedmon.common.errors import FedmonError
from fedmon.experiment.conditions import COMPARE, AnyCondition, Comparison, Metric, MetricCondition, StateCondition
from fedmon.experiment.document.errors import ConditionTextError, UnknownMemberError
from fedmon.experiment.document.values import seconds_text
from fedmon.experiment.durations import seconds
from fedmon.experiment.states import ResourceState


def checked_condition(condition: AnyCondition, *, where: str) -> AnyCondition:
    """Return a condition with each of its group once. Raises ConditionTextError, naming ``where``."""
    group = tuple(dict.fromkeys(condition.group))
    if not group:
        raise ConditionTextError(f"{where}: a condition waits for one resource or more, and this one names none")
    if condition.at_least is not None and not 1 <= condition.at_least <= len(group):
        raise ConditionTextError(
            f"{where}: a condition asks for {condition.at_least} of {len(group)} resources; take 1 to {len(group)}"
        )
    for name in ("timeout_s", "delay_s"):
        seconds = getattr(condition, name, None)
        if seconds is not None and not 0 <= seconds < math.inf:
            raise ConditionTextError(f"{where}: {name} of a condition is {seconds}, and must be 0 or more seconds")
    if isinstance(condition, MetricCondition):
        _check_metric(condition.metric, where)
    return replace(condition, group=group)


def _check_metric(metric: Metric, where: str) -> None:
    if metric.comparison not in COMPARE:
        raise ConditionTextError(f"{where}: no comparison {metric.comparison!r}; one of: {' '.join(COMPARE)}")
    if not math.isfinite(metric.value):
        raise ConditionTextError(f"{where}: a metric is compared with a finite number, not with {metric.value}")
    if metric.samples < 1:
        raise ConditionTextError(f"{where}: a metric holds for 1 sample or more, not for {metric.samples}")


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


def condition_from(text: str, names: Mapping[str, int], *, number: int, where: str) -> AnyCondition:
    """Return the condition that a text says; members are names or guids. Raises ConditionTextError."""
    text = text.strip()
    if len(text) > _MAX_CHARACTERS:
        raise ConditionTextError(f"{where}: a condition of more than {_MAX_CHARACTERS} characters")
    within = _WITHIN.fullmatch(text)
    subject = _SUBJECT.fullmatch(within["rest"] if within else text)
    if subject is None:
        raise _unclear(text, where)
    group = _group(subject["group"] if subject["member"] is None else subject["member"], names, where=where)
    at_least = _at_least(subject["quorum"], len(group), where=where)
    timeout_s = _seconds(within["within"], where=where) if within else None
    if state := _STATE.fullmatch(subject["rest"].rstrip()):
        made = StateCondition(
            number=number,
            group=group,
            at_least=at_least,
            timeout_s=timeout_s,
            state=state_named(state["state"], where=where),
            delay_s=_seconds(state["delay"], where=where) if state["delay"] else 0.0,
        )
        return checked_condition(made, where=where)
    if metric := _METRIC.fullmatch(subject["rest"].rstrip()):
        try:
            value = float(metric["value"]) / (100 if metric["percent"] else 1)
        except ValueError as error:
            raise _unclear(text, where) from error
        wanted = Metric(
            name=metric["metric"],
            comparison=cast("Comparison", metric["comparison"]),
            value=value,
            samples=int(metric["samples"] or 1),
        )
        told = MetricCondition(number=number, group=group, at_least=at_least, timeout_s=timeout_s, metric=wanted)
        return checked_condition(told, where=where)
    raise _unclear(text, where)


def text_of(condition: AnyCondition, names: Mapping[int, str]) -> str | None:
    """Return a condition as text; null where no text says exactly that."""
    members = [names.get(guid, str(guid)) for guid in condition.group]
    within = f" within {seconds_text(condition.timeout_s)}s" if condition.timeout_s is not None else ""
    if condition.at_least is None and len(members) == 1:
        subject, verb = members[0], "is"
    else:
        quorum = "" if condition.at_least is None else f"{condition.at_least} of "
        subject, verb = f"{quorum}[{', '.join(members)}]", "are"
    if isinstance(condition, StateCondition):
        delay = f" for {seconds_text(condition.delay_s)}s" if condition.delay_s else ""
        text = f"after {subject} {verb} {condition.state.name}{delay}{within}"
    else:
        metric = condition.metric
        rows = f" for {metric.samples} samples" if metric.samples != 1 else ""
        text = f"when {subject}.{metric.name} {metric.comparison} {seconds_text(metric.value)}{rows}{within}"
    known = {name: guid for guid, name in names.items()}
    try:
        same = condition_from(text, known, number=condition.number, where="")
    except FedmonError:
        return None
    return text if same == condition else None


def member_named(name: str | int, names: Mapping[str, int], *, where: str) -> int:
    """Return the guid of a resource by its name or guid. Raises UnknownMemberError."""
    if isinstance(name, str) and name in names:
        return names[name]
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    if isinstance(name, str) and re.fullmatch(r"[0-9]{1,19}", name):
        return int(name)
    known = ", ".join(list(names)[:20]) or "no resource has a name"
    raise UnknownMemberError(f"{where}: no resource is called {str(name)[:60]!r}; there is: {known}")


def state_named(name: str, *, where: str) -> ResourceState:
    """Return a state by its name. Raises ConditionTextError."""
    if name.upper() not in ResourceState.__members__:
        raise ConditionTextError(f"{where}: no state {name[:60]!r}; one of: {', '.join(ResourceState.__members__)}")
    return ResourceState[name.upper()]


def _group(text: str, names: Mapping[str, int], *, where: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return tuple(dict.fromkeys(member_named(part, names, where=where) for part in parts))


def _at_least(quorum: str | None, size: int, *, where: str) -> int | None:
    if quorum is None or quorum.lower() == "all":
        return None
    wanted = 1 if quorum.lower() == "any" else int(quorum)
    if not 1 <= wanted <= size:
        raise ConditionTextError(f"{where}: {wanted} of {size} resources; take 1 to {size} of them, any or all")
    return wanted


def _seconds(text: str, *, where: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise ConditionTextError(
            f"{where}: the time {text[:60]!r} cannot be understood; write it as 2s, 1.5m, 500ms or 1h"
        ) from error


def _unclear(text: str, where: str) -> ConditionTextError:
    return ConditionTextError(f"{where}: the condition {text[:120]!r} cannot be understood; write it like {FORMS}")
