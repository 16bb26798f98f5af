"""Whether all waits go one way, so that nobody can wait for himself: a look at guids, far cheaper than all steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import ResourceAction, ResourceState

_NEVER_WAITED_FOR = -1


def go_one_way(resources: Mapping[int, Resource], among: Collection[int]) -> bool:
    """Tell whether the conditions of resources surely are without a circle; false where that is not plain.

    Deploying comes before starting, and that before stopping. Where nobody waits for a later one of these than his own,
    a circle could only be among equal ones, and there is none when all go to higher guids, or all to lower ones. Those
    who do not wait themselves do not count, for no circle leads through them.
    """
    waits: dict[ResourceAction, dict[int, list[AnyCondition]]] = {action: {} for action in ResourceAction}
    stages: dict[int, int] = {}
    for guid in among:
        for action, condition in resources[guid].conditions:
            stage = stages.get(id(condition))  # many have one condition together
            if stage is None:
                stage = stages[id(condition)] = _stage(condition, resources)
            if stage > action:
                return False
            if stage == action:
                waits[action].setdefault(guid, []).append(condition)
    return all(map(_is_ordered, waits.values()))


def _stage(condition: AnyCondition, resources: Mapping[int, Resource]) -> int:
    """Return the action, as a number, that brings what a condition asks for."""
    if isinstance(condition, MetricCondition) or condition.state is ResourceState.STARTED:
        return ResourceAction.START
    if condition.state <= ResourceState.READY:
        return ResourceAction.DEPLOY
    if condition.state > ResourceState.STOPPED:
        return _NEVER_WAITED_FOR
    members = filter(None, map(resources.get, condition.group))
    holds_back = any(ResourceAction.STOP in [action for action, _ in member.conditions] for member in members)
    # Whom no condition keeps from stopping stops some time after he started.
    return ResourceAction.STOP if holds_back else ResourceAction.START


def _is_ordered(waits: Mapping[int, Collection[AnyCondition]]) -> bool:
    spans: dict[int, tuple[int, int] | None] = {}
    ways: set[str] = set()
    for guid, conditions in waits.items():
        for condition in conditions:
            if id(condition) not in spans:
                members = [member for member in condition.group if member in waits]
                spans[id(condition)] = (min(members), max(members)) if members else None
            span = spans[id(condition)]
            if span is None:
                continue
            lowest, highest = span
            if lowest <= guid <= highest:
                return False
            ways.add("up" if guid < lowest else "down")
    return len(ways) < 2
