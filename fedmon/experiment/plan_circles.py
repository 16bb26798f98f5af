"""A circle of steps that wait for each other, in words: who waits for whom, back to where it began."""

from __future__ import annotations

from collections.abc import Mapping

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.dependencies import Dependencies, Step
from fedmon.experiment.natures import Need
from fedmon.experiment.plan_problems import Problem

_STATES = {"deploy": "READY", "start": "STARTED", "stop": "STOPPED"}


def circle_problem(circle: list[Step], found: Dependencies, names: Mapping[int, str]) -> Problem:
    """Return the problem that a circle is, with its path named; it begins with the lowest guid."""
    waiting = [index for index, step in enumerate(circle) if step.kind in _STATES]
    first = min(waiting, key=lambda index: circle[index])
    circle = circle[first:] + circle[:first]
    hops = []
    path = [circle[0].guid]
    for index, step in enumerate(circle):
        if step.kind not in _STATES:
            continue  # told together with the step before it
        need = circle[(index + 1) % len(circle)]
        after = circle[(index + 2) % len(circle)]
        end = need if need.kind in _STATES else after
        hops.append(_hop(step, need, end, found, names))
        if end.guid != path[-1] or len(circle) == 1:
            path.append(end.guid)
    if path[-1] != path[0]:
        path.append(path[0])
    is_group = any(step.kind == "group" for step in circle)
    return Problem(
        kind="group-deadlock" if is_group else "condition-cycle",
        guids=tuple(path) if len(path) > 1 else (path[0], path[0]),
        text=", ".join(hop for hop in hops if hop),
    )


def _hop(step: Step, need: Step, end: Step, found: Dependencies, names: Mapping[int, str]) -> str:
    who, whom = _called(step.guid, names), _called(end.guid, names)
    if need.kind == "group":
        return f"{step.kind} of {who} waits for its whole group to be READY, with {whom}"
    cause = found.causes.get((step, need))
    if need.kind == "condition":
        several = _several(cause) if isinstance(cause, MetricCondition | StateCondition) else ""
        return f"{step.kind} of {who} waits for {several}, with {whom}"
    if cause is None:
        return f"{step.kind} of {who} comes after its {end.kind}"
    if isinstance(cause, Need):
        how = f"its {cause.attribute}" if cause.attribute else "which it needs"
        what = f"the end of {who}" if step.kind == "stop" else f"{step.kind} of {who}"
        return f"{what} waits for {whom}, {how}, to be {cause.state.name}"
    assert isinstance(cause, StateCondition)  # noqa: S101 - a metric has a step of its own
    return f"{step.kind} of {who} waits for {whom} to be {cause.state.name}"


def _several(condition: AnyCondition) -> str:
    wanted = f"to be {condition.state.name}" if isinstance(condition, StateCondition) else f"with {condition}"
    if len(condition.group) == 1:
        return f"one resource {wanted}"
    return f"{condition.needed} of {len(condition.group)} resources {wanted}"


def _called(guid: int, names: Mapping[int, str]) -> str:
    return f"resource {guid} ({names[guid]})" if names.get(guid) else f"resource {guid}"
