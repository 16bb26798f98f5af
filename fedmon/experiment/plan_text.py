"""A plan for people: what comes in which order, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.dependencies import Step
from fedmon.experiment.planning import Plan

_MANY = 12
_T = TypeVar("_T")


def text_of(plan: Plan) -> str:
    """Return a plan as lines of text."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    resources = plan.state.resources
    conditions = sum(len(resource.conditions) for resource in resources.values())
    yield f"{_counted(len(resources), 'resource')}, {_counted(conditions, 'condition')}"
    for number, wave in enumerate(plan.waves, 1):
        parts = [
            f"{kind} {_listed(plan, [step for step in wave if step.kind == kind])}"
            for kind in ("deploy", "start", "stop")
            if any(step.kind == kind for step in wave)
        ]
        yield f"{number:4}. {'; '.join(parts)}"
    if plan.stuck:
        shown = _shown(plan.stuck)
        who = (f"{guid} {_called(plan, guid)}".rstrip() for guid in shown)
        yield f"never comes to its end: {_joined(who, left=len(plan.stuck) - len(shown))}"
    yield from map(str, plan.problems)
    if plan.is_possible:
        yield "nothing is known that keeps it from working"
    else:
        yield f"it cannot work: {_counted(len(plan.errors), 'error')}"


def _listed(plan: Plan, steps: list[Step]) -> str:
    parts = []
    for step in _shown(steps):
        waits = [
            _wait(plan, condition, group)
            for action, condition in plan.state.resources[step.guid].conditions
            if action.name.lower() == step.kind and (group := _asked(plan, condition))
        ]
        who = _called(plan, step.guid) or plan.state.resources[step.guid].rtype
        parts.append(f"{step.guid} {who}" + (f" when {' and '.join(waits)}" if waits else ""))
    return _joined(parts, left=len(steps) - len(parts))


def _asked(plan: Plan, condition: AnyCondition) -> tuple[int, ...]:
    """Return whom a condition asks for; nobody waits for those who were taken out."""
    is_asked = plan.state.resources.__contains__
    return tuple(filter(is_asked, condition.group)) if plan.facts.are_removed else condition.group


def _wait(plan: Plan, condition: AnyCondition, group: tuple[int, ...]) -> str:
    quorum = "" if condition.at_least is None else f"{condition.at_least} of "
    shown = _shown(group)
    who = _joined((f"{guid} {_called(plan, guid)}".rstrip() for guid in shown), left=len(group) - len(shown))
    return f"{quorum}{who}{':' if isinstance(condition, MetricCondition) else ''} {condition}"


def _called(plan: Plan, guid: int) -> str:
    return plan.facts.names.get(guid, "")


def _shown(those: Sequence[_T]) -> Sequence[_T]:
    """Return those that are named: all, unless so many are left that a number says it better."""
    return those if len(those) <= _MANY + 2 else those[:_MANY]


def _joined(parts: Iterable[str], *, left: int) -> str:
    return ", ".join(parts) + (f" and {left} more" if left else "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
