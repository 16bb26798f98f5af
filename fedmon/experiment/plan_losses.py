"""Waits that can never be over, for those they ask failed, ended, or were taken out; as the machine judges them."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.experiment.conditions import MetricCondition
from fedmon.experiment.plan_facts import Facts, called
from fedmon.experiment.plan_problems import Problem, ProblemKind
from fedmon.experiment.plan_waits import PlannedWait
from fedmon.experiment.situation import State, Want
from fedmon.experiment.states import ResourceState
from fedmon.experiment.verdicts import Doomed, verdict_on_condition


def loss_problems(state: State, facts: Facts, wait: PlannedWait) -> Iterator[Problem]:
    """Say why a condition can never hold any more."""
    condition = wait.condition
    if condition.at_least is None and not isinstance(condition, MetricCondition):
        # Whoever of them is not there yet is waited for first, but it ends in this all the same.
        for guid in condition.group if condition.state is not ResourceState.FAILED else ():
            member = state.resources.get(guid)
            if member is not None and member.state is ResourceState.FAILED and member.critical:
                text = f"{wait.what} waits for {called(guid, facts.names, state)}, which is critical and failed"
                yield Problem(kind="failed-resource", guids=(wait.guid, guid), text=text)
        return
    want = Want(key=(wait.guid, wait.name), since=0.0, conditions=(condition,))
    found = verdict_on_condition(condition, want, state.resources, 0.0)
    if isinstance(found, Doomed) and (facts.are_removed or all(guid in state.resources for guid in condition.group)):
        is_quorum = condition.at_least is not None
        text = f"{wait.what} waits in vain: {found.reason}"
        kind: ProblemKind = "impossible-quorum" if is_quorum else "may-not-come"
        yield Problem(kind=kind, guids=(wait.guid, *condition.group), text=text)
