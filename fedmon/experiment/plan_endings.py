"""Waits for an end that does not come by itself."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.natures import lasts
from fedmon.experiment.plan_facts import Facts, called
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.plan_waits import PlannedWait, planned_waits
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState


def ending_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say who waits for resources to be STOPPED that nothing is known to stop; somebody may still do so by a call."""
    for wait in planned_waits(state, facts.names):
        yield from _condition(state, facts, wait)


def _condition(state: State, facts: Facts, wait: PlannedWait) -> Iterator[Problem]:
    condition = wait.condition
    if not isinstance(condition, StateCondition) or condition.state is not ResourceState.STOPPED:
        return
    members = [state.resources[guid] for guid in condition.group if guid in state.resources]
    lasting = [member for member in members if _lasts(member, state, facts)]
    if len(condition.group) - len(lasting) >= condition.needed:
        return
    for member in lasting:
        who = called(member.guid, facts.names, state)
        text = f"{wait.what} waits for {who} to be STOPPED, but its type stays STARTED until a stop or its release"
        yield Problem(kind="not-stopped", severity="warning", guids=(wait.guid, member.guid), text=text)


def _lasts(resource: Resource, state: State, facts: Facts) -> bool:
    """Tell whether a resource is known to stay STARTED; a condition for its stop has it stopped when that holds."""
    actions = [action for action, _ in resource.conditions]
    if resource.state >= ResourceState.STOPPED or ResourceAction.STOP in actions:
        return False
    return lasts(resource, state.resources, facts.nature)
