"""The machine of an experiment: ``step(state, event)`` returns the next state and what is to be done.

It knows no clock, no thread and no network: whatever happened, and when, is in the event.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fedmon.experiment import events
from fedmon.experiment.alarms import condition_alarms, retry_of, verb_limit_of
from fedmon.experiment.change import Change
from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.events import (
    COMES_TO,
    VERB_OF,
    Action,
    Alarm,
    AnyEvent,
    Assign,
    Call,
    Inform,
    Reached,
    Timer,
    Verb,
)
from fedmon.experiment.situation import Group, Resource, State, Want, WantKey
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from fedmon.experiment.verdicts import Blocked, Doomed, Met, Verdict, may_now, verdict_on, verdict_on_condition

_ACTIONS = {verb: action for action, verb in VERB_OF.items()}


def deploy_asked(change: Change, event: events.DeployAsked) -> None:
    """Have resources deployed, and started when their group is ready."""
    group = change.groups.get(event.group)
    old = () if group is None else group.members
    known = set(old)
    fresh = tuple(guid for guid in event.guids if guid not in known and guid in change.resources)
    unready = 0 if group is None else group.unready
    unready += sum(change.resources[guid].state < ResourceState.READY for guid in fresh)
    wait_all_ready = event.wait_all_ready if group is None else group.wait_all_ready
    change.groups[event.group] = group = Group(members=(*old, *fresh), unready=unready, wait_all_ready=wait_all_ready)
    for guid in fresh:
        resource = change.resources[guid]
        leave_group(change, resource)
        change.resources[guid] = resource = replace(resource, group=event.group)
        begin(change, resource, "deploy")
    if not wait_all_ready or not unready:
        start_members(change, fresh)


def leave_group(change: Change, resource: Resource) -> None:
    """Have a group wait no longer for a resource that goes elsewhere."""
    if resource.group is None:
        return
    group = change.groups[resource.group]
    left = tuple(guid for guid in group.members if guid != resource.guid)
    change.groups[resource.group] = replace(group, members=left)
    if resource.state < ResourceState.READY:
        count_unready(change, resource.group, -1)


def count_unready(change: Change, number: int, by: int) -> None:
    """Count who of a group is below READY; when nobody is, all are started."""
    group = change.groups[number]
    group = change.groups[number] = replace(group, unready=group.unready + by)
    if not group.unready and group.wait_all_ready and change.level is FailureLevel.OK:
        start_members(change, group.members)


def start_members(change: Change, guids: tuple[int, ...]) -> None:
    """Have members of a group started, and stopped where a condition says when."""
    for guid in guids:
        resource = change.resources.get(guid)
        if resource is None or resource.state >= ResourceState.FAILED:
            continue
        begin(change, resource, "start")
        if resource.conditions and ResourceAction.STOP in [action for action, _ in resource.conditions]:
            change.to_stop.append(guid)


def begin_stops(change: Change) -> None:
    """Begin to want those stopped who were started."""
    guids, change.to_stop = change.to_stop, []
    for guid in guids:
        resource = change.resources.get(guid)
        if resource is not None and resource.state < ResourceState.FAILED:
            begin(change, resource, "stop")


def begin(change: Change, resource: Resource, name: Verb) -> None:
    """Begin to want something of a resource, unless that is wanted already."""
    key = (resource.guid, name)
    if key in change.wants or change.level is not FailureLevel.OK:
        return
    conditions: tuple[AnyCondition, ...] = ()
    if resource.conditions:
        kind = _ACTIONS[name]
        conditions = tuple([condition for action, condition in resource.conditions if action is kind])
    if not conditions and may_now(name, resource.state):
        call(change, resource, name)
        return
    wanted = Want(key=key, since=change.now, conditions=conditions)
    found = verdict_on(wanted, change.resources, change.now)
    if isinstance(found, Blocked):
        change.add_want(wanted, found)
    else:
        _settle(change, wanted, resource, found)


def action_wanted(change: Change, event: events.ActionWanted) -> None:
    """Want one thing done with a resource."""
    resource = change.resources.get(event.guid)
    if resource is not None:
        begin(change, resource, VERB_OF[event.action])


def release_asked(change: Change, event: events.ReleaseAsked) -> None:
    """Have resources released; nothing holds that back."""
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is not None and resource.state is not ResourceState.RELEASED:
            change.drop_wants(resource)
            call(change, change.resources[guid], "release")


def judge(change: Change, key: WantKey) -> None:
    """Do what is wanted, give it up, or note what it waits for."""
    want = change.wants.get(key)
    if want is None:
        return
    found = verdict_on(want, change.resources, change.now)
    if isinstance(found, Blocked):
        change.block(want, found)
        return
    change.end_want(want)
    resource = change.resources.get(want.guid)
    if resource is not None:
        _settle(change, want, resource, found)


def _settle(change: Change, want: Want, resource: Resource, found: Verdict) -> None:
    name = want.name
    if isinstance(found, Doomed):
        give_up(change, resource, f"{name.partition(':')[0]} cannot be done: {found.reason}")
    elif not isinstance(found, Met):
        return
    elif want.attribute is not None:
        attribute, value = want.attribute
        change.actions.append(Assign(guid=resource.guid, name=attribute, value=value))
    else:
        call(change, resource, name)  # type: ignore[arg-type] # such a want is named after its verb


def call(change: Change, resource: Resource, verb: Verb, reason: str = "") -> None:
    """Have a verb called, and ended in time; one without code has no need of that."""
    if verb in resource.plain:
        if resource.retrying is not None:
            change.resources[resource.guid] = replace(resource, retrying=None)
        change.due.append((resource.guid, COMES_TO[verb], reason))
        return
    timeout_s = resource.timeouts.get(verb)
    ends_at = None if timeout_s is None else change.now + timeout_s
    change.resources[resource.guid] = replace(resource, calling=verb, retrying=None, alarm_at=ends_at)
    change.actions.append(Call(guid=resource.guid, verb=verb, reason=reason))
    if ends_at is not None:
        change.actions.append(Alarm(timer=verb_limit_of(resource.guid, verb), at=ends_at))


def give_up(change: Change, resource: Resource, reason: str) -> None:
    """Have a resource fail."""
    if resource.state < ResourceState.FAILED:
        change.drop_wants(resource)
        call(change, change.resources[resource.guid], "fail", reason)


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


_CAME: Mapping[ResourceState, tuple[Verb, ...]] = {
    ResourceState.READY: ("deploy",),
    ResourceState.STARTED: ("deploy", "start"),
    ResourceState.STOPPED: ("deploy", "start", "stop"),
}
"""What need not be done any more in a state to which a resource came."""


def became(change: Change, event: events.Became) -> None:
    """Note to which state resources came."""
    before = {guid: change.resources[guid].state for guid in event.guids if guid in change.resources}
    for guid in _come(change, [(guid, event.state, event.reason) for guid in event.guids]).get(event.state, ()):
        if event.state is not before[guid]:
            _drop_what_came(change, guid, event.state)


def come(change: Change) -> None:
    """Have those come to their states that are due to."""
    due, change.due = change.due, []
    for state, guids in _come(change, due).items():
        change.actions.append(Reached(guids=tuple(guids), state=state))


def _come(change: Change, due: Iterable[tuple[int, ResourceState, str]]) -> dict[ResourceState, list[int]]:
    """Have resources come to states, for reasons; return who did. What is over stays; what failed can be released."""
    reached: dict[ResourceState, list[int]] = {}
    unready: dict[int, int] = {}
    for guid, state, reason in due:
        resource = change.resources.get(guid)
        before = ResourceState.RELEASED if resource is None else resource.state
        is_over = before >= ResourceState.FAILED
        if resource is None or (is_over and not before < state is ResourceState.RELEASED):
            continue
        _moved(change, resource, state, reason)
        reached.setdefault(state, []).append(guid)
        if resource.group is not None and (before < ResourceState.READY) is not (state < ResourceState.READY):
            unready[resource.group] = unready.get(resource.group, 0) + (1 if state < ResourceState.READY else -1)
    for group, by in unready.items():
        if by:
            count_unready(change, group, by)
    return reached


def _moved(change: Change, resource: Resource, now: ResourceState, reason: str) -> None:
    calling, retrying, times = resource.calling, resource.retrying, resource.times
    if calling is not None and now >= COMES_TO[calling]:
        if calling in resource.timeouts:
            change.actions.append(Alarm(timer=verb_limit_of(resource.guid, calling), at=None))
        calling = None
    if retrying is not None and now >= COMES_TO[retrying]:
        change.actions.append(Alarm(timer=retry_of(resource.guid, retrying), at=None))
        retrying = None
    change.resources[resource.guid] = resource = replace(
        resource,
        state=now,
        times=change.history(times, now),
        calling=calling,
        retrying=retrying,
        attempt=0 if calling is None else resource.attempt,
        reason=reason or resource.reason,
    )
    if now >= ResourceState.FAILED:
        change.drop_wants(resource)
        if now is ResourceState.FAILED:
            change.actions.append(Inform(guid=resource.guid))
    change.wake_watchers(resource.guid)


def _drop_what_came(change: Change, guid: int, now: ResourceState) -> None:
    """Give up what was to be done and has happened otherwise, whatever it still waited for."""
    for name in _CAME.get(now, ()):
        want = change.wants.get((guid, name))
        if want is not None:
            change.end_want(want)


def returned(change: Change, event: events.Returned) -> None:
    """Have a lost resource back; who passed it over meanwhile does not go back for it."""
    resource = change.resources.get(event.guid)
    if resource is not None and resource.state is ResourceState.FAILED:
        times = tuple(each for each in resource.times if each[0] is not ResourceState.FAILED)
        change.resources[event.guid] = replace(resource, state=event.state, times=times, reason="")
        change.wake_watchers(event.guid)


def verb_failed(change: Change, event: events.VerbFailed) -> None:
    """Have a verb tried again, or the resource fail."""
    resource = change.resources.get(event.guid)
    if resource is None or resource.state >= ResourceState.FAILED:
        return
    retry = resource.retry.get(event.verb)
    if retry is None or resource.attempt >= retry.times or change.level is not FailureLevel.OK:
        tried = f" ({resource.attempt + 1} times)" if resource.attempt else ""
        give_up(change, resource, f"{event.verb} failed{tried}: {event.reason}")
        return
    attempt = resource.attempt + 1
    again_at = event.t + retry.delay_before_s(attempt)
    change.resources[event.guid] = replace(
        resource, attempt=attempt, calling=None, retrying=event.verb, alarm_at=again_at, reason=event.reason
    )
    change.actions.append(Alarm(timer=retry_of(event.guid, event.verb), at=again_at))


def fired(change: Change, event: events.Fired) -> None:
    """Do what a timer was for."""
    timer = event.timer
    resource = change.resources.get(timer.guid)
    if resource is None:
        return
    match timer.purpose:
        case "delay":
            change.awake.append((timer.guid, timer.want))
        case "condition-timeout":
            _condition_timed_out(change, resource, timer)
        case "verb-timeout":
            _verb_timed_out(change, resource, timer.want)  # type: ignore[arg-type] # such a timer is named after a verb
        case "retry":
            is_meant = resource.retrying == timer.want and resource.state < ResourceState.FAILED
            if is_meant and change.level is FailureLevel.OK:
                call(change, resource, timer.want)  # type: ignore[arg-type] # as above


def _condition_timed_out(change: Change, resource: Resource, timer: Timer) -> None:
    want = change.wants.get((timer.guid, timer.want))
    for condition in () if want is None else want.conditions:
        if condition.number != timer.number or want is None:
            continue
        if isinstance(verdict_on_condition(condition, want, change.resources, change.now), Met):
            return
        change.end_want(want)
        give_up(
            change,
            resource,
            f"{timer.want.partition(':')[0]} waited {condition.timeout_s:g} s for resource "
            f"{', '.join(map(str, condition.group))} to be {condition}",
        )


def _verb_timed_out(change: Change, resource: Resource, verb: Verb) -> None:
    if resource.calling != verb:
        return
    reason = f"{verb} did not end within {resource.timeouts[verb]:g} s"
    if verb == "release":
        # Whatever its hook still holds, the experiment is done with it.
        change.due.append((resource.guid, ResourceState.RELEASED, reason))
    else:
        verb_failed(change, events.VerbFailed(t=change.now, guid=resource.guid, verb=verb, reason=reason))


def measured(change: Change, event: events.Measured) -> None:
    """Note a value; it counts for conditions on it, whether anybody waits for them yet or not."""
    resource = change.resources.get(event.guid)
    if resource is None:
        return
    met, series = resource.met, (event.name, event.source)
    for condition in resource.asked:
        counts = met.get(condition.number, NO_COUNTS)
        count = counts.get(event.source, 0)
        if condition.metric.name == event.name and count < condition.metric.samples:  # what held once has held
            count = count + 1 if condition.metric.holds(event.value) else 0
            met = met.set(condition.number, counts.set(event.source, count))
    told = resource.told.set(series, (*resource.told.get(series, ())[1 - KEPT_VALUES :], event.value))
    change.resources[event.guid] = replace(resource, told=told, met=met)
    if met is not resource.met:
        for key in change.watchers.get(event.guid, ()):
            want = change.wants.get(key)
            if want is not None and any(isinstance(condition, MetricCondition) for condition in want.conditions):
                change.awake.append(key)


def leveled(change: Change, event: events.Leveled) -> None:
    """Note how bad it is; a failure ends all waiting, and it never becomes better."""
    if event.level > change.level:
        change.level, change.level_reason = event.level, event.reason
        change.drop_all_wants()


def step(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event, and what it asks to be done, in this order. The old state stays as it was."""
    at_once = _AT_ONCE.get(type(event))
    if at_once is not None:
        return at_once(state, event), ()
    change = Change(state, event.t)
    _HANDLERS[type(event)](change, event)
    while change.awake or change.due or change.to_stop:
        while change.awake:
            judge(change, change.awake.popleft())
        if change.due:
            come(change)
        else:
            begin_stops(change)
    return change.finish(), tuple(change.actions)


# Of these there are as many as resources and connections, nobody waits for them, and they touch one map alone.
_AT_ONCE: dict[type[AnyEvent], Callable[[State, Any], State]] = {
    events.Opened: opened,
    events.Registered: registered,
    events.Connected: connected,
}
_HANDLERS: dict[type[AnyEvent], Callable[[Change, Any], None]] = {
    events.Recoded: recoded,
    events.Removed: removed,
    events.AttributeSet: attribute_set,
    events.TraceEnabled: trace_enabled,
    events.ConditionAdded: condition_added,
    events.ConditionsRemoved: conditions_removed,
    events.SetWanted: set_wanted,
    events.DeployAsked: deploy_asked,
    events.ActionWanted: action_wanted,
    events.ReleaseAsked: release_asked,
    events.Became: became,
    events.Returned: returned,
    events.VerbFailed: verb_failed,
    events.Fired: fired,
    events.Measured: measured,
    events.Leveled: leveled,
}
