"""What resources take from others by name, and whether anything has them wait for it: they do not by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import Natures, needed
from fedmon.experiment.plan_facts import Facts, called
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.plan_waits import is_to_come
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction


def input_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say who takes something from another that no condition has him wait for, not even one of others."""
    for resource in state.resources.values():
        if not any(need.attribute for need in facts.nature(resource.rtype).needs):
            continue
        for action in ResourceAction:
            verb = VERB_OF[action]
            for need, other in needed(resource, verb, state.resources, facts.nature):
                is_due = need.attribute and is_to_come(resource, action) and other.state < need.state
                if is_due and other.guid not in _awaited(resource, state, facts.nature):
                    who, whom = (called(each.guid, facts.names, state) for each in (resource, other))
                    text = f"{verb} of {who} needs {whom} to be {need.state.name} ({need.attribute})"
                    text += ", and no condition has it wait for that"
                    yield Problem(kind="missing-part", severity="warning", guids=(resource.guid, other.guid), text=text)


def _awaited(resource: Resource, state: State, nature: Natures) -> set[int]:
    """Return whom a resource waits for in any way, or who waits for those."""
    found: set[int] = set()
    waiting = [resource]
    while waiting:
        each = waiting.pop()
        guids = {guid for _, condition in each.conditions for guid in condition.group}
        for action in ResourceAction:
            others = needed(each, VERB_OF[action], state.resources, nature)
            guids.update(other.guid for need, other in others if not need.attribute)
        for guid in guids - found:
            found.add(guid)
            other = state.resources.get(guid)
            waiting += [] if other is None else [other]
    return found
