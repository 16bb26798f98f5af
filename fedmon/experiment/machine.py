"""The machine of an experiment: ``step(state, event)`` returns the next state and the actions to perform.

It knows no clock, thread, file or network: an event holds the change and its time. A verb is under way from its `Call`
until its hook has returned or raised; after a return, until the state is reached that the verb leads to.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace
from rpds import HashTrieMap, HashTrieSet

from fedmon.experiment import events
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition
from fedmon.experiment.events import (
    COMES_TO,
    VERB_OF,
    Abandon,
    Action,
    Alarm,
    AnyEvent,
    Assign,
    Call,
    Inform,
    Timer,
    Verb,
)
from fedmon.experiment.situation import (
    MET,
    Blocked,
    Group,
    Impossible,
    Resource,
    State,
    Want,
    WantKey,
    verdict_on,
)
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

_KEPT_VALUES = 64
"""The number of last values of a metric that count for conditions registered later."""
_TICK_S = 2e-6
"""The least time between two states: more than a microsecond, so that datetimes differ, too."""
_AWAITED: tuple[Verb, ...] = ("deploy", "start", "stop", "release")
"""The verbs that are under way until their state is reached, which something else may report after the hook."""


def due_at(state: State, timer: Timer) -> float | None:
    """Return when a timer is due; None if it is no longer needed."""
    if timer.purpose == "delay":
        want = state.wants.get((timer.guid, timer.want))
        return None if want is None else want.due
    resource = state.resources.get(timer.guid)
    verb = None if resource is None else resource.calling if timer.purpose == "verb-timeout" else resource.retrying
    return resource.alarm_at if resource is not None and verb == timer.want else None


def alarms(state: State) -> Iterator[Alarm]:
    """Return the alarms with which another process continues; timeouts of verbs begin with their hooks."""
    for want in state.wants.values():
        if want.due is not None:
            yield Alarm(timer=Timer(guid=want.guid, purpose="delay", want=want.name), at=want.due)
    for resource in state.resources.values():
        if resource.retrying is not None and resource.alarm_at is not None:
            yield Alarm(timer=Timer(guid=resource.guid, purpose="retry", want=resource.retrying), at=resource.alarm_at)


class Change:
    """The changes of one step; the state before it stays as it was."""

    def __init__(self, state: State, now: float) -> None:
        self.before, self.now = state, now
        self.resources, self.wants = state.resources, state.wants
        self.watchers, self.groups = state.watchers, state.groups
        self.level, self.level_reason, self.numbers = state.level, state.level_reason, state.numbers
        self.latest = state.latest
        self.actions: list[Action] = []
        self.woken: deque[WantKey] = deque()
        """Wants to judge before the step is over."""
        self.transitions: list[tuple[int, ResourceState, str]] = []
        """Resources that reach a state, for a reason, before the step is over."""

    def finish(self) -> State:
        """Return the state after the step."""
        while self.woken or self.transitions:
            while self.woken:
                want = self.wants.get(self.woken.popleft())
                if want is not None:
                    _judge(self, want)
            transitions, self.transitions = self.transitions, []
            if transitions:
                _reach(self, transitions)
        return State(
            resources=self.resources,
            wants=self.wants,
            watchers=self.watchers,
            groups=self.groups,
            level=self.level,
            level_reason=self.level_reason,
            numbers=self.numbers,
            latest=self.latest,
        )

    def found(self, guids: Iterable[int]) -> Iterator[Resource]:
        """Return those of some resources that exist, each in its present state."""
        return filter(None, map(self.resources.get, guids))

    def update(self, resource: Resource, **fields: Any) -> Resource:
        """Replace fields of a resource, and return it."""
        made = replace(resource, **fields)
        self.resources = self.resources.insert(made.guid, made)
        return made

    def block(self, want: Want, found: Blocked) -> None:
        """Keep a want until a resource of a verdict changes, or until its moment."""
        if found.due is not None and found.due != want.due:
            timer = Timer(guid=want.guid, purpose="delay", want=want.name)
            self.actions.append(Alarm(timer=timer, at=found.due))
        if want.attribute is not None and want.key not in self.wants:
            resource = self.resources[want.guid]
            self.update(resource, sets=(*resource.sets, want.name))
        for guid in found.guids:
            watching = self.watchers.get(guid, HashTrieSet()).insert(want.key)
            self.watchers = self.watchers.insert(guid, watching)
        self.wants = self.wants.insert(want.key, replace(want, due=found.due))

    def end_want(self, key: WantKey) -> None:
        """Remove a want, if there is one."""
        want, resource = self.wants.get(key), self.resources.get(key[0])
        self.wants = self.wants.discard(key)
        if want is not None and want.attribute is not None and resource is not None:
            self.update(resource, sets=tuple(name for name in resource.sets if name != want.name))

    def drop_wants(self, resource: Resource, names: Iterable[str] | None = None) -> None:
        """Remove the wants of a resource, or those with one of ``names``."""
        for name in (*VERB_OF.values(), *resource.sets) if names is None else names:
            self.end_want((resource.guid, name))

    def wake_watchers(self, guid: int) -> None:
        """Judge the wants again that watch a resource, by their number; those that stay blocked watch again."""
        self.woken.extend(sorted(self.watchers.get(guid, ()), key=lambda key: (key[0], len(key[1]), key)))
        self.watchers = self.watchers.discard(guid)


# --- wants --------------------------------------------------------------------------------------------------------


def _deploy_asked(change: Change, event: events.DeployAsked) -> None:
    """Deploy resources, and start them when their group is ready; STOPPED ones stay so."""
    group = change.groups.get(event.group)
    if group is None:
        group = Group(members=(), unready=0, wait_all_ready=event.wait_all_ready)
    known = set(group.members)
    fresh = tuple(guid for guid in event.guids if guid not in known and guid in change.resources)
    unready = group.unready + sum(change.resources[guid].state < ResourceState.READY for guid in fresh)
    change.groups = change.groups.insert(event.group, replace(group, members=(*group.members, *fresh), unready=unready))
    for resource in change.found(fresh):
        _leave_group(change, resource)
        _begin(change, change.update(resource, group=event.group), "deploy")
    if not group.wait_all_ready or not unready:
        _start_members(change, fresh)


def _leave_group(change: Change, resource: Resource) -> None:
    if resource.group is None:
        return
    group = change.groups[resource.group]
    left = tuple(guid for guid in group.members if guid != resource.guid)
    change.groups = change.groups.insert(resource.group, replace(group, members=left))
    if resource.state < ResourceState.READY:
        _count_unready(change, resource.group, -1)


def _count_unready(change: Change, number: int, by: int) -> None:
    """Change the number of members below READY; at 0 all members are started."""
    group = change.groups[number]
    group = replace(group, unready=group.unready + by)
    change.groups = change.groups.insert(number, group)
    if not group.unready and group.wait_all_ready:
        _start_members(change, group.members)


def _start_members(change: Change, guids: tuple[int, ...]) -> None:
    """Start members of a group, and stop them if a condition says when."""
    for resource in change.found(guids):
        if resource.state < ResourceState.STOPPED:
            _begin(change, resource, "start")
            if any(action is ResourceAction.STOP for action, _ in resource.conditions):
                _begin(change, resource, "stop")


def _begin(change: Change, resource: Resource, verb: Verb) -> None:
    """Add the want of a verb, unless there is one."""
    key = (resource.guid, verb)
    if key not in change.wants:
        conditions = tuple([each for action, each in resource.conditions if VERB_OF[action] == verb])
        _judge(change, Want(key=key, since=change.now, conditions=conditions))


def _judge(change: Change, want: Want) -> None:
    """Perform a want, fail the resource if that is impossible, or keep the want if something blocks it."""
    if change.level is not FailureLevel.OK:
        return
    found = verdict_on(want, change.resources, change.now)
    if isinstance(found, Blocked):
        change.block(want, found)
        return
    change.end_want(want.key)
    resource = change.resources[want.guid]
    if isinstance(found, Impossible):
        _fail(change, resource, f"{want.name.partition(':')[0]} cannot be done: {found.reason}")
    elif found is MET and want.attribute is not None:
        attribute, value = want.attribute
        change.actions.append(Assign(guid=resource.guid, name=attribute, value=value))
    elif found is MET:
        _call(change, resource, want.name)  # type: ignore[arg-type] # such a want is named after its verb


def _action_wanted(change: Change, event: events.ActionWanted, resource: Resource) -> None:
    _begin(change, resource, VERB_OF[event.action])


def _set_wanted(change: Change, event: events.SetWanted) -> None:
    conditions = () if event.condition is None else (event.condition,)
    _count_values(change, event.condition)
    for resource in change.found(event.guids):
        change.numbers += 1
        name, attribute = f"set:{change.numbers}", (event.name, event.value)
        _judge(change, Want(key=(resource.guid, name), since=event.t, conditions=conditions, attribute=attribute))


def _release_asked(change: Change, event: events.ReleaseAsked) -> None:
    """Release resources, unconditionally."""
    for resource in change.found(event.guids):
        if resource.state is not ResourceState.RELEASED and resource.calling != "release":
            change.drop_wants(resource)
            _call(change, _set_verb(change, change.resources[resource.guid], None), "release")


# --- conditions -----------------------------------------------------------------------------------------------------


def _condition_added(change: Change, event: events.ConditionAdded) -> None:
    """Add a condition to resources, and to their wants."""
    _count_values(change, event.condition)
    for found in change.found(event.guids):
        resource = change.update(found, conditions=(*found.conditions, (event.action, event.condition)))
        want = change.wants.get((resource.guid, VERB_OF[event.action]))
        if want is not None:
            added = want.added | {event.condition.number: event.t}
            want = replace(want, conditions=(*want.conditions, event.condition), added=added)
            change.wants = change.wants.insert(want.key, want)
            change.woken.append(want.key)
        elif event.action is ResourceAction.STOP and resource.group is not None:
            group = change.groups[resource.group]
            if not group.wait_all_ready or not group.unready:  # its start was wanted
                _begin(change, resource, "stop")


def _conditions_removed(change: Change, event: events.ConditionsRemoved) -> None:
    """Remove members from conditions, and the conditions that have none left."""
    for resource in change.found(event.guids):
        kept = []
        for action, condition in resource.conditions:
            group = condition.group
            if event.action is None or action is event.action:
                group = tuple(one for one in group if one not in event.group)
            if group:
                kept.append((action, replace(condition, group=group)))
        change.update(resource, conditions=tuple(kept))
        for action, verb in VERB_OF.items():
            want = change.wants.get((resource.guid, verb))
            if want is not None:
                mine = tuple(condition for other, condition in kept if other is action)
                change.wants = change.wants.insert(want.key, replace(want, conditions=mine))
                change.woken.append(want.key)


def _count_values(change: Change, condition: AnyCondition | None) -> None:
    """Count the last values of a metric for a condition on it, and note this for the values to come."""
    if not isinstance(condition, MetricCondition):
        return
    for resource in change.found(condition.group):
        streaks: HashTrieMap[str, int] = HashTrieMap()
        for (name, source), values in resource.values.items():
            if name == condition.metric.name:
                count = functools.reduce(functools.partial(_counted, condition.metric), values, 0)
                streaks = streaks.insert(source, count)
        change.update(
            resource,
            metric_conditions=(*resource.metric_conditions, condition),
            streaks=resource.streaks.insert(condition.number, streaks) if streaks else resource.streaks,
        )


def _counted(metric: Metric, count: int, value: float | None) -> int:
    """Return how many values in a row fulfil a comparison, after one more; enough of them count for good."""
    if count >= metric.samples:
        return count
    return count + 1 if metric.holds(value) else 0


def _measured(change: Change, event: events.Measured, resource: Resource) -> None:
    """Note a value, and count it for the conditions on its metric, even before a want waits for them."""
    streaks, series = resource.streaks, (event.name, event.source)
    for condition in resource.metric_conditions:
        if condition.metric.name == event.name:
            counts = streaks.get(condition.number, HashTrieMap())
            count = _counted(condition.metric, counts.get(event.source, 0), event.value)
            streaks = streaks.insert(condition.number, counts.insert(event.source, count))
    values = resource.values.insert(series, (*resource.values.get(series, ())[1 - _KEPT_VALUES :], event.value))
    change.update(resource, values=values, streaks=streaks)
    if streaks is not resource.streaks:
        change.wake_watchers(event.guid)


# --- verbs --------------------------------------------------------------------------------------------------------


def _call(change: Change, resource: Resource, verb: Verb) -> None:
    """Call a verb; one without code reaches its state within the step."""
    if verb in resource.plain:
        change.update(resource, retrying=None)
        change.transitions.append((resource.guid, COMES_TO[verb], ""))
    else:
        _set_verb(change, resource, verb, attempt=resource.attempt)
        change.actions.append(Call(guid=resource.guid, verb=verb))


def _set_verb(change: Change, resource: Resource, verb: Verb | None, *, attempt: int = 0) -> Resource:
    """Set the verb that is under way, and end the one before or its wait for an attempt; return the resource."""
    change.latest = max(change.now, change.latest)
    return change.update(
        resource, calling=verb, called=change.latest, returned=False, scheduled=False, waits_for="", left_alone=False,
        retrying=None, alarm_at=None, attempt=attempt,
    )  # fmt: skip


def _fail(change: Change, resource: Resource, reason: str) -> None:
    """Fail a resource: first its state, because others wait for that, and then its hook."""
    change.drop_wants(resource)
    change.transitions.append((resource.guid, ResourceState.FAILED, reason))
    if "fail" not in resource.plain:
        change.actions.append(Call(guid=resource.guid, verb="fail", reason=reason))


def _verb_began(change: Change, event: events.VerbBegan, resource: Resource) -> None:
    """Start the timeout of a verb when its hook begins; a verb that a user called is under way from here on."""
    if resource.calling != event.verb:
        if resource.state >= ResourceState.FAILED:
            return
        resource = _set_verb(change, resource, event.verb)
    timeout_s = resource.timeouts.get(event.verb)
    if timeout_s is not None:
        _set_alarm(change, resource, "verb-timeout", event.verb, event.t + timeout_s)


def _set_alarm(change: Change, resource: Resource, purpose: Any, verb: Verb, at: float) -> None:
    change.update(resource, alarm_at=at)
    change.actions.append(Alarm(timer=Timer(guid=resource.guid, purpose=purpose, want=verb), at=at))


def _verb_returned(change: Change, event: events.VerbReturned, resource: Resource) -> None:
    """Note that a hook returned; its verb ends if its state is reached."""
    if resource.calling != event.verb:
        return
    if resource.state >= COMES_TO[event.verb] or event.verb not in _AWAITED:
        _set_verb(change, resource, None)
    else:
        change.update(resource, returned=True, scheduled=event.scheduled)
    change.wake_watchers(event.guid)


def _waits_for(change: Change, event: events.WaitsFor, resource: Resource) -> None:
    change.update(resource, waits_for=event.what)


def _verb_failed(change: Change, event: events.VerbFailed, resource: Resource) -> None:
    """Retry a verb, or fail the resource, even if the hook reported a state before it raised."""
    is_left_behind = resource.calling != event.verb and (resource.calling is not None or event.verb in _AWAITED)
    if is_left_behind or resource.state >= ResourceState.FAILED:
        return
    retry, attempt = resource.retry.get(event.verb), resource.attempt + 1
    if retry is None or attempt > retry.times or change.level is not FailureLevel.OK:
        tried = f" ({attempt} times)" if resource.attempt else ""
        _fail(change, resource, f"{event.verb} failed{tried}: {event.reason}")
        return
    resource = replace(_set_verb(change, resource, None, attempt=attempt), retrying=event.verb, reason=event.reason)
    _set_alarm(change, resource, "retry", event.verb, event.t + retry.delay_before_s(attempt))


def _fired(change: Change, event: events.Fired) -> None:
    timer = event.timer
    resource = change.resources.get(timer.guid)
    if resource is None:
        return
    match timer.purpose:
        case "delay":
            change.woken.append((timer.guid, timer.want))
        case "verb-timeout" if resource.calling == timer.want:
            _verb_timed_out(change, resource, resource.calling)
        case "retry" if resource.retrying == timer.want and change.level is FailureLevel.OK:
            _call(change, resource, resource.retrying)


def _verb_timed_out(change: Change, resource: Resource, verb: Verb) -> None:
    reason = f"{verb} did not end within {resource.timeouts[verb]:g} s"
    reason += f": it waited for {resource.waits_for}" if resource.waits_for else ""
    change.actions.append(Abandon(guid=resource.guid))
    if verb == "release":
        change.transitions.append((resource.guid, ResourceState.RELEASED, reason))
    else:
        _verb_failed(change, events.VerbFailed(t=change.now, guid=resource.guid, verb=verb, reason=reason), resource)


# --- states -------------------------------------------------------------------------------------------------------


def _became(change: Change, event: events.Became) -> None:
    _reach(change, [(guid, event.state, event.reason) for guid in event.guids])


def _reach(change: Change, transitions: Iterable[tuple[int, ResourceState, str]]) -> None:
    """Move resources to states, for reasons. RELEASED is final, and FAILED leads to RELEASED only."""
    unready: dict[int, int] = {}
    change.latest = max(change.now, change.latest + _TICK_S)
    for guid, state, reason in transitions:
        resource = change.resources.get(guid)
        if resource is None or resource.state >= max(state, ResourceState.FAILED):
            continue
        _enter(change, resource, state, reason)
        if resource.group is not None and (resource.state < ResourceState.READY) is not (state < ResourceState.READY):
            unready[resource.group] = unready.get(resource.group, 0) + (1 if state < ResourceState.READY else -1)
    for group, by in unready.items():
        _count_unready(change, group, by)


def _enter(change: Change, resource: Resource, state: ResourceState, reason: str) -> None:
    calling, retrying, before = resource.calling, resource.retrying, resource.state
    is_over = state is ResourceState.RELEASED or (state is ResourceState.FAILED and calling != "release")
    is_complete = calling is not None and resource.returned and state >= COMES_TO[calling]
    is_superseded = retrying is not None and before < COMES_TO[retrying] <= state
    if (calling or retrying) and (is_over or is_complete or is_superseded):
        resource = _set_verb(change, resource, None)
    resource = change.update(
        resource,
        state=state,
        times=(*(each for each in resource.times if each[0] is not state), (state, change.latest)),
        reason=reason or (resource.reason if state >= ResourceState.FAILED else ""),  # else a new attempt came further
        left_alone=False,
    )
    if state >= ResourceState.FAILED:
        change.drop_wants(resource)
        if state is ResourceState.FAILED:
            change.actions.append(Inform(guid=resource.guid))
    elif state is not before:
        change.drop_wants(resource, [verb for verb in VERB_OF.values() if COMES_TO[verb] <= state])
    change.wake_watchers(resource.guid)


# --- resources ----------------------------------------------------------------------------------------------------


def _registered(change: Change, event: events.Registered) -> None:
    resource = Resource(
        guid=event.guid,
        rtype=event.rtype,
        name=event.name,
        critical=event.critical,
        attributes=HashTrieMap(event.attributes),
        timeouts=event.timeouts,
        retry=event.retry,
        plain=event.plain,
    )
    change.update(resource)


def _removed(change: Change, event: events.Removed) -> None:
    """Remove resources, with their wants and connections."""
    for resource in change.found(event.guids):
        change.resources = change.resources.remove(resource.guid)
        change.drop_wants(resource)
        _leave_group(change, resource)
        for other in resource.connections:
            _connect(change, other, resource.guid, is_on=False)
        change.wake_watchers(resource.guid)


def _connected(change: Change, event: events.Connected) -> None:
    if event.guid in change.resources and event.other in change.resources:  # else another thread removed one meanwhile
        _connect(change, event.guid, event.other, is_on=event.is_on)
        _connect(change, event.other, event.guid, is_on=event.is_on)


def _connect(change: Change, guid: int, other: int, *, is_on: bool) -> None:
    resource = change.resources[guid]
    change.update(resource, connections=resource.connections | {other} if is_on else resource.connections - {other})


def _recoded(change: Change, event: events.Recoded, resource: Resource) -> None:
    change.update(resource, plain=event.plain)


def _attribute_set(change: Change, event: events.AttributeSet, resource: Resource) -> None:
    critical = bool(event.value) if event.name == "critical" else resource.critical
    change.update(resource, attributes=resource.attributes.insert(event.name, event.value), critical=critical)
    if critical is not resource.critical:
        change.wake_watchers(event.guid)


def _trace_enabled(change: Change, event: events.TraceEnabled, resource: Resource) -> None:
    change.update(resource, traces=(*resource.traces, event.name))


def _reopened(change: Change, event: events.Reopened) -> None:
    """Note which resources are left alone, and forget the causes of waits, which this process finds anew."""
    alone = set(event.left_alone)
    for resource in change.found(change.before.resources):
        returned = resource.returned and not resource.waits_for
        change.update(resource, left_alone=resource.guid in alone, returned=returned, waits_for="")


def _leveled(change: Change, event: events.Leveled) -> None:
    """Note the level of a failure, which ends all waiting and never falls."""
    if event.level > change.level:
        change.level, change.level_reason = event.level, event.reason
        for key in change.before.wants:
            change.end_want(key)


def _of_one(handle: Callable[[Change, Any, Resource], None]) -> Callable[[Change, Any], None]:
    """Return the handler of an event of one resource, which does nothing once that was removed."""

    def handler(change: Change, event: Any) -> None:
        resource = change.resources.get(event.guid)
        if resource is not None:
            handle(change, event, resource)

    return handler


_HANDLERS: dict[type[AnyEvent], Callable[[Change, Any], None]] = {
    events.Registered: _registered,
    events.Recoded: _of_one(_recoded),
    events.Removed: _removed,
    events.Connected: _connected,
    events.AttributeSet: _of_one(_attribute_set),
    events.TraceEnabled: _of_one(_trace_enabled),
    events.ConditionAdded: _condition_added,
    events.ConditionsRemoved: _conditions_removed,
    events.SetWanted: _set_wanted,
    events.DeployAsked: _deploy_asked,
    events.ActionWanted: _of_one(_action_wanted),
    events.ReleaseAsked: _release_asked,
    events.Became: _became,
    events.VerbBegan: _of_one(_verb_began),
    events.VerbReturned: _of_one(_verb_returned),
    events.VerbFailed: _of_one(_verb_failed),
    events.WaitsFor: _of_one(_waits_for),
    events.Reopened: _reopened,
    events.Fired: _fired,
    events.Measured: _of_one(_measured),
    events.Leveled: _leveled,
}


def step(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event and the actions to perform, in order. The old state stays as it was."""
    handler = _HANDLERS.get(type(event))
    if handler is None:
        return state, ()  # it is for the process that reconnects
    change = Change(state, event.t)
    handler(change, event)
    return change.finish(), tuple(change.actions)


def step_safely(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...], str]:
    """Return the result of `step`, and ""; if it raises, an aborted state without wants, and the error.

    A replay of the journal ends in the same state, so the error needs no event.
    """
    try:
        return *step(state, event), ""
    except Exception as error:  # noqa: BLE001 - the experiment counts as failed, and can still be released
        wrong = f"the machine failed on {event!r:.200}: {error!r}"
        reason = state.level_reason if state.is_aborted else wrong
        nothing: HashTrieMap[Any, Any] = HashTrieMap()
        state = replace(state, wants=nothing, watchers=nothing, level=FailureLevel.EC_FAILURE, level_reason=reason)
        return state, (), wrong
