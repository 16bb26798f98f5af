"""A plan for people: what comes in which order, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedmon.researcher.experiment.dependencies import Step
from fedmon.researcher.experiment.planning import Plan

_MANY = 12


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
        yield f"never comes to its end: {_joined(map(str, plan.stuck))}"
    yield from map(str, plan.problems)
    if plan.is_possible:
        yield "nothing is known that keeps it from working"
    else:
        yield f"it cannot work: {_counted(len(plan.errors), 'error')}"


def _listed(plan: Plan, steps: list[Step]) -> str:
    parts = []
    for step in steps[: _MANY + 1]:
        name = plan.facts.names.get(step.guid) or plan.state.resources[step.guid].rtype
        waits = [
            f"{_of(condition.group, condition.at_least)}{condition}"
            for action, condition in plan.state.resources[step.guid].conditions
            if action.name.lower() == step.kind
        ]
        parts.append(f"{step.guid} {name}" + (f" when {' and '.join(waits)}" if waits else ""))
    return _joined(parts, left=len(steps) - _MANY)


def _of(group: tuple[int, ...], at_least: int | None) -> str:
    quorum = "" if at_least is None else f"{at_least} of "
    return f"{quorum}{_joined(map(str, group))} "


def _joined(parts: Iterable[str], left: int | None = None) -> str:
    shown = list(parts)
    more = len(shown) - _MANY if left is None else left
    return ", ".join(shown[:_MANY]) + (f" and {more} more" if more > 0 else "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
