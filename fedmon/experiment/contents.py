"""What is in an experiment: resources, connections and conditions come and go."""

from __future__ import annotations

import itertools
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fedmon.experiment import events
from fedmon.experiment.alarms import condition_alarms
from fedmon.experiment.change import Change
from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.situation import Resource, State, Want
from fedmon.experiment.states import FailureLevel, ResourceAction
from fedmon.experiment.wanting import begin, leave_group

_NO_ATTRIBUTES: Map[str, Any] = Map()
NO_COUNTS: Map[str, int] = Map()
KEPT_VALUES = 64
"""How many of the last values of a metric a condition that is registered later can look back at."""


def opened(state: State, event: events.Opened) -> State:  # noqa: ARG001 - as all of them are called
    """Change nothing: the state is that of the resources."""
    return state


def registered(state: State, event: events.Registered) -> State:
    """Take a resource in."""
    resource = Resource(
        guid=event.guid,
        rtype=event.rtype,
        critical=event.critical,
        attributes=Map(event.attributes) if event.attributes else _NO_ATTRIBUTES,  # one for all who have none
        timeouts=event.timeouts,
        retry=event.retry,
        plain=event.plain,
    )
    return replace(state, resources=state.resources.set(event.guid, resource))


def recoded(change: Change, event: events.Recoded) -> None:
    """Note which verbs have code now."""
    resource = change.resources.get(event.guid)
    if resource is not None:
        change.resources[event.guid] = replace(resource, plain=event.plain)


def removed(change: Change, event: events.Removed) -> None:
    """Take resources out, with all that they were to do and all who were connected to them."""
    for guid in event.guids:
        resource = change.resources.pop(guid, None)
        if resource is None:
            continue
        change.drop_wants(resource)
        leave_group(change, resource)
        for other in resource.connections:
            if other in change.resources:
                neighbour = change.resources[other]
                change.resources[other] = replace(neighbour, connections=neighbour.connections - {guid})
        change.wake_watchers(guid)


def connected(state: State, event: events.Connected) -> State:
    """Connect two resources, or take them apart."""
    resources = state.resources
    if event.is_on and not (event.guid in resources and event.other in resources):
        return state  # another thread took one of them out meanwhile
    for one, other in ((event.guid, event.other), (event.other, event.guid)):
        resource = resources.get(one)
        if resource is not None:
            mine = resource.connections | {other} if event.is_on else resource.connections - {other}
            resources = resources.set(one, replace(resource, connections=mine))
    return replace(state, resources=resources)


def attribute_set(change: Change, event: events.AttributeSet) -> None:
    """Look at a new value of an attribute; ``critical`` alone says what others do."""
    resource = change.resources.get(event.guid)
    if resource is None:
        return
    resource = replace(resource, attributes=resource.attributes.set(event.name, event.value))
    if event.name == "critical":
        resource = replace(resource, critical=bool(event.value))
        change.wake_watchers(event.guid)
    change.resources[event.guid] = resource


def trace_enabled(change: Change, event: events.TraceEnabled) -> None:
    """Note that a trace is kept."""
    resource = change.resources.get(event.guid)
    if resource is not None and event.name not in resource.traces:
        change.resources[event.guid] = replace(resource, traces=(*resource.traces, event.name))


def set_wanted(change: Change, event: events.SetWanted) -> None:
    """Want attributes set."""
    if event.condition is not None:
        _ask(change, event.condition)
    for guid in event.guids if change.level is FailureLevel.OK else ():
        if guid not in change.resources:
            continue
        change.numbers += 1
        key = (guid, f"set:{change.numbers}")
        conditions = () if event.condition is None else (event.condition,)
        change.add_want(Want(key=key, since=event.t, conditions=conditions, attribute=(event.name, event.value)))
        change.awake.append(key)


def _ask(change: Change, condition: AnyCondition) -> None:
    """Have the values of a group counted for a condition, from those on that were as it wants already."""
    if not isinstance(condition, MetricCondition):
        return
    for guid in condition.group:
        resource = change.resources.get(guid)
        if resource is None:
            continue
        met = resource.met
        for (name, source), values in resource.told.items():
            if name == condition.metric.name:
                held = itertools.takewhile(condition.metric.holds, reversed(values))
                counts = met.get(condition.number, NO_COUNTS)
                met = met.set(condition.number, counts.set(source, sum(1 for _ in held)))
        change.resources[guid] = replace(resource, asked=(*resource.asked, condition), met=met)


def condition_added(change: Change, event: events.ConditionAdded) -> None:
    """Give resources one more condition; what they wait for already waits for it, too."""
    _ask(change, event.condition)
    added = (event.action, event.condition)
    before = after = tuple[tuple[ResourceAction, AnyCondition], ...]()  # those who had the same share it again
    name = VERB_OF[event.action]
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is None:
            continue
        if resource.conditions is not before or not after:
            before, after = resource.conditions, (*resource.conditions, added)
        change.resources[guid] = resource = replace(resource, conditions=after)
        key = (guid, name)
        want = change.wants.get(key)
        if want is not None:
            change.wants[key] = replace(want, conditions=(*want.conditions, event.condition))
            change.actions.extend(condition_alarms(key, (event.condition,), since=event.t))
            change.awake.append(key)
        elif event.action is ResourceAction.STOP and _is_under_way(change, resource):
            begin(change, resource, "stop")


def _is_under_way(change: Change, resource: Resource) -> bool:
    group = None if resource.group is None else change.groups.get(resource.group)
    return group is not None and (not group.wait_all_ready or not group.unready)


def conditions_removed(change: Change, event: events.ConditionsRemoved) -> None:
    """Take members out of conditions; one that is left without any is gone."""
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is None:
            continue
        kept = []
        for action, condition in resource.conditions:
            left = condition
            if event.action is None or action is event.action:
                left = replace(condition, group=tuple(one for one in condition.group if one not in event.group))
            if left.group:
                kept.append((action, left))
        change.resources[guid] = replace(resource, conditions=tuple(kept))
        for action in ResourceAction:
            key = (guid, VERB_OF[action])
            want = change.wants.get(key)
            if want is not None:
                mine = tuple(condition for other, condition in kept if other is action)
                change.wants[key] = replace(want, conditions=mine, held_up_at=(0, 0))
                change.awake.append(key)
