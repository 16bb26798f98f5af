"""The machine of an experiment: ``step(state, event)`` returns the next state and the actions to perform.

It knows no clock, thread, file or network: whatever happened, and when, is in the event. A verb is under way from its
`Call` until its hook has returned or raised, and, if it returned, until the state was reached that the verb leads to.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from immutables import Map
from msgspec.structs import replace

from fedmon.experiment import events
from fedmon.experiment.conditions import AnyCondition, MetricCondition
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
    Reached,
    Timer,
    Verb,
)
from fedmon.experiment.situation import (
    MET,
    Blocked,
    Doomed,
    Group,
    Resource,
    State,
    Verdict,
    Want,
    WantKey,
    verdict_on,
    verdict_on_condition,
)
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

_NOBODY: Map[WantKey, None] = Map()
_NO_ATTRIBUTES: Map[str, Any] = Map()
_NO_COUNTS: Map[str, int] = Map()
_KEPT_VALUES = 64
"""How many of the last values of a metric a condition that is registered later can look back at."""
_TICK_S = 2e-6
"""What comes later within a step is later by this: more than a microsecond, so that datetimes differ, too."""
_AWAITED: tuple[Verb, ...] = ("deploy", "start", "stop", "release")
"""The verbs that are under way until their state was reached, for something else may say so after the hook."""


def _limits(key: WantKey, conditions: Iterable[AnyCondition], *, since: float) -> Iterator[Alarm]:
    """Return the alarms of those conditions that have a timeout."""
    guid, name = key
    for condition in conditions:
        if condition.timeout_s is not None:
            timer = Timer(guid=guid, purpose="condition-timeout", want=name, number=condition.number)
            yield Alarm(timer=timer, at=since + condition.timeout_s)


def alarms(state: State, now: float) -> Iterator[Alarm]:
    """Return the alarms of a state that another process left, each for the moment it was meant for.

    A verb that was under way or to be tried again has no such moment: its time begins ``now``.
    """
    for want in state.wants.values():
        if want.due is not None:
            yield Alarm(timer=Timer(guid=want.guid, purpose="delay", want=want.name), at=want.due)
        yield from _limits(want.key, want.conditions, since=want.since)
    for resource in state.resources.values():
        if resource.retrying is not None:
            yield Alarm(timer=Timer(guid=resource.guid, purpose="retry", want=resource.retrying), at=now)
        if resource.calling is not None and resource.calling in resource.timeouts:
            timer = Timer(guid=resource.guid, purpose="verb-timeout", want=resource.calling)
            yield Alarm(timer=timer, at=now + resource.timeouts[resource.calling])


class Change:
    """Collects what a step changes; the state that it began with stays as it was. `finish` returns the next one."""

    def __init__(self, state: State, now: float) -> None:
        self.before, self.now = state, now
        self.resources = state.resources.mutate()
        self.wants = state.wants.mutate()
        self.watchers = state.watchers.mutate()
        self.groups = state.groups.mutate()
        self.level, self.level_reason, self.numbers = state.level, state.level_reason, state.numbers
        self.latest = state.latest
        self.actions: list[Action] = []
        self.awake: deque[WantKey] = deque()
        """Wants that are to be judged before the step is over."""
        self.due: list[tuple[int, ResourceState, str]] = []
        """Who comes to a state, and why, before the step is over, for nothing has to be called for that."""

    def finish(self) -> State:
        """Return the state after the step."""
        while self.awake or self.due:
            while self.awake:
                want = self.wants.get(self.awake.popleft())
                if want is not None:
                    _judge(self, want)
            due, self.due = self.due, []
            if due:
                _come(self, due)
        return State(
            resources=self.resources.finish(),
            wants=self.wants.finish(),
            watchers=self.watchers.finish(),
            groups=self.groups.finish(),
            level=self.level,
            level_reason=self.level_reason,
            numbers=self.numbers,
            latest=self.latest,
        )

    def tell_timer(self, at: float | None, guid: int, purpose: events.Purpose, want: str) -> None:
        """Set a timer, or, where ``at`` is None, drop it."""
        self.actions.append(Alarm(timer=Timer(guid=guid, purpose=purpose, want=want), at=at))

    def block(self, want: Want, found: Blocked) -> None:
        """Note what a want waits for."""
        if found.due != want.due:
            self.tell_timer(found.due, want.guid, "delay", want.name)
        self._watch(want, found.guids)
        self.wants[want.key] = replace(want, watching=found.guids, due=found.due)

    def end_want(self, want: Want) -> None:
        """Take a want out: it is done, or given up."""
        del self.wants[want.key]
        resource = self.resources.get(want.guid)
        if resource is not None and want.attribute is not None:
            left = tuple(name for name in resource.sets if name != want.name)
            self.resources[want.guid] = replace(resource, sets=left)
        self._watch(want, ())
        if want.due is not None:
            self.tell_timer(None, want.guid, "delay", want.name)
        self.actions += [replace(alarm, at=None) for alarm in _limits(want.key, want.conditions, since=0.0)]

    def drop_wants(self, resource: Resource, names: Iterable[str] | None = None) -> None:
        """Give up what a resource is still to do: all of it, or what has one of ``names``."""
        for name in (*VERB_OF.values(), *resource.sets) if names is None else names:
            want = self.wants.get((resource.guid, name))
            if want is not None:
                self.end_want(want)

    def wake_watchers(self, guid: int) -> None:
        """Have those who wait for a resource judged again."""
        self.awake.extend(sorted(self.watchers.get(guid, ())))

    def _watch(self, want: Want, guids: tuple[int, ...]) -> None:
        before = want.watching
        if before == guids:
            return
        for guid in before:
            left = self.watchers[guid].delete(want.key)
            if left:
                self.watchers[guid] = left
            else:
                del self.watchers[guid]
        for guid in guids:
            self.watchers[guid] = self.watchers.get(guid, _NOBODY).set(want.key, None)


# --- what is wanted ---------------------------------------------------------------------------------------------------


def _deploy_asked(change: Change, event: events.DeployAsked) -> None:
    """Have resources deployed, and started when their group is ready; what came to its end stays so."""
    group = change.groups.get(event.group)
    if group is None:
        group = Group(members=(), unready=0, wait_all_ready=event.wait_all_ready)
    known = set(group.members)
    fresh = tuple(guid for guid in event.guids if guid not in known and guid in change.resources)
    unready = group.unready + sum(change.resources[guid].state < ResourceState.READY for guid in fresh)
    change.groups[event.group] = replace(group, members=(*group.members, *fresh), unready=unready)
    for guid in fresh:
        _leave_group(change, change.resources[guid])
        change.resources[guid] = resource = replace(change.resources[guid], group=event.group)
        _begin(change, resource, "deploy")
    if not group.wait_all_ready or not unready:
        _start_members(change, fresh)


def _leave_group(change: Change, resource: Resource) -> None:
    """Have a group wait no longer for a resource that goes elsewhere."""
    if resource.group is None:
        return
    group = change.groups[resource.group]
    left = tuple(guid for guid in group.members if guid != resource.guid)
    change.groups[resource.group] = replace(group, members=left)
    if resource.state < ResourceState.READY:
        _count_unready(change, resource.group, -1)


def _count_unready(change: Change, number: int, by: int) -> None:
    """Count who of a group is below READY; when nobody is, all are started."""
    group = change.groups[number]
    group = change.groups[number] = replace(group, unready=group.unready + by)
    if not group.unready and group.wait_all_ready:
        _start_members(change, group.members)


def _start_members(change: Change, guids: tuple[int, ...]) -> None:
    """Have members of a group started, and stopped where a condition says when."""
    for guid in guids:
        resource = change.resources.get(guid)
        if resource is None or resource.state >= ResourceState.STOPPED:
            continue
        _begin(change, resource, "start")
        if any(action is ResourceAction.STOP for action, _ in resource.conditions):
            _begin(change, change.resources[guid], "stop")


def _begin(change: Change, resource: Resource, verb: Verb) -> None:
    """Begin to want a verb of a resource, unless that is wanted already."""
    key = (resource.guid, verb)
    if key not in change.wants:
        conditions = tuple([each for action, each in resource.conditions if VERB_OF[action] == verb])
        _want(change, Want(key=key, since=change.now, conditions=conditions))


def _want(change: Change, want: Want) -> None:
    """Do what is wanted at once where nothing holds it back, and wait for that where something does."""
    if change.level is not FailureLevel.OK:
        return
    found = verdict_on(want, change.resources, change.now)
    if not isinstance(found, Blocked):
        _settle(change, want, found)
        return
    if want.attribute is not None:
        resource = change.resources[want.guid]
        change.resources[want.guid] = replace(resource, sets=(*resource.sets, want.name))
    change.actions += _limits(want.key, want.conditions, since=want.since)
    change.block(want, found)


def _judge(change: Change, want: Want) -> None:
    """Do what is wanted, give it up, or note what it waits for."""
    found = verdict_on(want, change.resources, change.now)
    if isinstance(found, Blocked):
        change.block(want, found)
    else:
        change.end_want(want)
        _settle(change, want, found)


def _settle(change: Change, want: Want, found: Verdict) -> None:
    resource = change.resources.get(want.guid)
    if resource is None:
        return
    if isinstance(found, Doomed):
        _give_up(change, resource, f"{want.name.partition(':')[0]} cannot be done: {found.reason}")
    elif found is not MET:
        return
    elif want.attribute is not None:
        attribute, value = want.attribute
        change.actions.append(Assign(guid=resource.guid, name=attribute, value=value))
    else:
        _call(change, resource, want.name)  # type: ignore[arg-type] # such a want is named after its verb


def _action_wanted(change: Change, event: events.ActionWanted, resource: Resource) -> None:
    _begin(change, resource, VERB_OF[event.action])


def _set_wanted(change: Change, event: events.SetWanted) -> None:
    if event.condition is not None:
        _count_values(change, event.condition)
    conditions = () if event.condition is None else (event.condition,)
    for guid in event.guids:
        if guid in change.resources:
            change.numbers += 1
            key = (guid, f"set:{change.numbers}")
            _want(change, Want(key=key, since=event.t, conditions=conditions, attribute=(event.name, event.value)))


def _release_asked(change: Change, event: events.ReleaseAsked) -> None:
    """Have resources released; nothing holds that back."""
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is not None and resource.state is not ResourceState.RELEASED and resource.calling != "release":
            change.drop_wants(resource)
            _call(change, _end_verb(change, change.resources[guid]), "release")


# --- conditions -------------------------------------------------------------------------------------------------------


def _condition_added(change: Change, event: events.ConditionAdded) -> None:
    """Give resources one more condition; what they wait for already waits for it, too."""
    _count_values(change, event.condition)
    name = VERB_OF[event.action]
    for guid in event.guids:
        resource = change.resources.get(guid)
        if resource is None:
            continue
        resource = replace(resource, conditions=(*resource.conditions, (event.action, event.condition)))
        change.resources[guid] = resource
        want = change.wants.get((guid, name))
        if want is not None:
            change.wants[want.key] = replace(want, conditions=(*want.conditions, event.condition))
            change.actions += _limits(want.key, (event.condition,), since=event.t)
            change.awake.append(want.key)
        elif event.action is ResourceAction.STOP and resource.group is not None:
            group = change.groups[resource.group]
            if not group.wait_all_ready or not group.unready:  # it was told to start
                _begin(change, resource, "stop")


def _conditions_removed(change: Change, event: events.ConditionsRemoved) -> None:
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
        for action, verb in VERB_OF.items():
            want = change.wants.get((guid, verb))
            if want is not None:
                mine = tuple(condition for other, condition in kept if other is action)
                change.wants[want.key] = replace(want, conditions=mine)
                change.awake.append(want.key)


def _count_values(change: Change, condition: AnyCondition) -> None:
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
                counts = met.get(condition.number, _NO_COUNTS)
                met = met.set(condition.number, counts.set(source, sum(1 for _ in held)))
        change.resources[guid] = replace(resource, asked=(*resource.asked, condition), met=met)


def _measured(change: Change, event: events.Measured, resource: Resource) -> None:
    """Note a value; it counts for conditions on it, whether anybody waits for them yet or not."""
    met, series = resource.met, (event.name, event.source)
    for condition in resource.asked:
        counts = met.get(condition.number, _NO_COUNTS)
        count = counts.get(event.source, 0)
        if condition.metric.name == event.name and count < condition.metric.samples:  # what held once has held
            count = count + 1 if condition.metric.holds(event.value) else 0
            met = met.set(condition.number, counts.set(event.source, count))
    told = resource.told.set(series, (*resource.told.get(series, ())[1 - _KEPT_VALUES :], event.value))
    change.resources[event.guid] = replace(resource, told=told, met=met)
    if met is not resource.met:
        change.wake_watchers(event.guid)


# --- verbs ------------------------------------------------------------------------------------------------------------


def _call(change: Change, resource: Resource, verb: Verb) -> None:
    """Have a verb called, and ended in time; one without code has no need of that."""
    if verb in resource.plain:
        change.resources[resource.guid] = replace(resource, retrying=None)
        change.due.append((resource.guid, COMES_TO[verb], ""))
    else:
        _under_way(change, resource, verb)
        change.actions.append(Call(guid=resource.guid, verb=verb))


def _under_way(change: Change, resource: Resource, verb: Verb) -> None:
    """Note that a verb is under way, and when it is given up."""
    timeout_s = resource.timeouts.get(verb)
    ends_at = None if timeout_s is None else change.now + timeout_s
    change.resources[resource.guid] = replace(
        resource, calling=verb, returned=False, scheduled=False, left_alone=False, retrying=None, alarm_at=ends_at
    )
    if ends_at is not None:
        change.tell_timer(ends_at, resource.guid, "verb-timeout", verb)


def _end_verb(change: Change, resource: Resource, *, attempt: int = 0) -> Resource:
    """Note that no verb is under way or to be tried again any more; return the resource."""
    if resource.calling is not None and resource.calling in resource.timeouts:
        change.tell_timer(None, resource.guid, "verb-timeout", resource.calling)
    if resource.retrying is not None:
        change.tell_timer(None, resource.guid, "retry", resource.retrying)
    made = replace(resource, calling=None, returned=False, scheduled=False, retrying=None, attempt=attempt)
    change.resources[resource.guid] = made
    return made


def _give_up(change: Change, resource: Resource, reason: str) -> None:
    """Have a resource fail: first its state, for others wait for that, and then its hook."""
    if resource.state >= ResourceState.FAILED:
        return
    change.drop_wants(resource)
    change.due.append((resource.guid, ResourceState.FAILED, reason))
    if "fail" not in resource.plain:
        change.actions.append(Call(guid=resource.guid, verb="fail", reason=reason))


def _verb_began(change: Change, event: events.VerbBegan, resource: Resource) -> None:
    if resource.state < ResourceState.FAILED:
        _under_way(change, _end_verb(change, resource), event.verb)


def _verb_returned(change: Change, event: events.VerbReturned, resource: Resource) -> None:
    """Note that a hook returned; its verb is over where the state was reached, or comes to none."""
    if resource.calling != event.verb:
        return
    if resource.state >= COMES_TO[event.verb] or event.verb not in _AWAITED:
        _end_verb(change, resource)
    else:
        change.resources[event.guid] = replace(resource, returned=True, scheduled=event.scheduled)
    change.wake_watchers(event.guid)


def _verb_failed(change: Change, event: events.VerbFailed, resource: Resource) -> None:
    """Have a verb tried again, or the resource fail, whatever state the hook had said before it raised."""
    is_left_behind = resource.calling != event.verb and (resource.calling is not None or event.verb in _AWAITED)
    if is_left_behind or resource.state >= ResourceState.FAILED:
        return
    retry, attempt = resource.retry.get(event.verb), resource.attempt + 1
    if retry is None or attempt > retry.times or change.level is not FailureLevel.OK:
        tried = f" ({attempt} times)" if resource.attempt else ""
        _give_up(change, resource, f"{event.verb} failed{tried}: {event.reason}")
        return
    again_at = event.t + retry.delay_before_s(attempt)
    resource = _end_verb(change, resource, attempt=attempt)
    change.resources[event.guid] = replace(resource, retrying=event.verb, alarm_at=again_at, reason=event.reason)
    change.tell_timer(again_at, event.guid, "retry", event.verb)


def _fired(change: Change, event: events.Fired) -> None:
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
        case "verb-timeout" if resource.calling == timer.want:
            _verb_timed_out(change, resource, resource.calling, event.waits_for)
        case "retry" if resource.retrying == timer.want and change.level is FailureLevel.OK:
            _call(change, resource, resource.retrying)


def _condition_timed_out(change: Change, resource: Resource, timer: Timer) -> None:
    want = change.wants.get((timer.guid, timer.want))
    for condition in () if want is None else want.conditions:
        if want is None or condition.number != timer.number:
            continue
        if verdict_on_condition(condition, want, change.resources, change.now) is MET:
            return
        change.end_want(want)
        reason = f"{timer.want.partition(':')[0]} waited {condition.timeout_s:g} s for resource "
        _give_up(change, resource, f"{reason}{', '.join(map(str, condition.group))} to be {condition}")


def _verb_timed_out(change: Change, resource: Resource, verb: Verb, waited_for: str) -> None:
    reason = f"{verb} did not end within {resource.timeouts[verb]:g} s"
    reason += f": it waited for {waited_for}" if waited_for else ""
    change.actions.append(Abandon(guid=resource.guid))
    if verb == "release":
        # Whatever its hook still holds, the experiment is done with it.
        change.due.append((resource.guid, ResourceState.RELEASED, reason))
    else:
        _verb_failed(change, events.VerbFailed(t=change.now, guid=resource.guid, verb=verb, reason=reason), resource)


# --- states -----------------------------------------------------------------------------------------------------------


def _became(change: Change, event: events.Became) -> None:
    _come(change, [(guid, event.state, event.reason) for guid in event.guids])


def _come(change: Change, due: Iterable[tuple[int, ResourceState, str]]) -> None:
    """Have resources come to states, for reasons. What is over stays; what failed can be released."""
    reached: dict[ResourceState, list[int]] = {}
    unready: dict[int, int] = {}
    change.latest = max(change.now, change.latest + _TICK_S)
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
    change.actions += [Reached(guids=tuple(guids), state=state) for state, guids in reached.items()]
    for group, by in unready.items():
        if by:
            _count_unready(change, group, by)


def _moved(change: Change, resource: Resource, now: ResourceState, reason: str) -> None:
    calling, retrying, before = resource.calling, resource.retrying, resource.state
    is_over = now is ResourceState.RELEASED or (now is ResourceState.FAILED and calling != "release")
    has_come = calling is not None and resource.returned and now >= COMES_TO[calling]
    came_meanwhile = retrying is not None and before < COMES_TO[retrying] <= now
    if (calling or retrying) and (is_over or has_come or came_meanwhile):
        resource = _end_verb(change, resource)
    resource = change.resources[resource.guid] = replace(
        resource,
        state=now,
        times=(*(each for each in resource.times if each[0] is not now), (now, change.latest)),
        reason=reason or resource.reason,
        left_alone=False,
    )
    if now >= ResourceState.FAILED:
        change.drop_wants(resource)
        if now is ResourceState.FAILED:
            change.actions.append(Inform(guid=resource.guid))
    elif now is not before:  # what was to be done and has happened otherwise
        change.drop_wants(resource, [verb for verb in VERB_OF.values() if COMES_TO[verb] <= now])
    change.wake_watchers(resource.guid)


def _returned(change: Change, event: events.Returned, resource: Resource) -> None:
    """Have a lost resource back; who passed it over meanwhile does not go back for it."""
    if resource.state is ResourceState.FAILED:
        times = tuple(each for each in resource.times if each[0] is not ResourceState.FAILED)
        change.resources[event.guid] = replace(resource, state=event.state, times=times, reason="")
        change.wake_watchers(event.guid)


# --- what there is ----------------------------------------------------------------------------------------------------


def _registered(change: Change, event: events.Registered) -> None:
    change.resources[event.guid] = Resource(
        guid=event.guid,
        rtype=event.rtype,
        critical=event.critical,
        attributes=Map(event.attributes) if event.attributes else _NO_ATTRIBUTES,  # one for all who have none
        timeouts=event.timeouts,
        retry=event.retry,
        plain=event.plain,
    )


def _removed(change: Change, event: events.Removed) -> None:
    """Take resources out, with all that they were to do and all who were connected to them."""
    for guid in event.guids:
        resource = change.resources.pop(guid, None)
        if resource is None:
            continue
        change.drop_wants(resource)
        _leave_group(change, resource)
        for other in resource.connections:
            if other in change.resources:
                neighbour = change.resources[other]
                change.resources[other] = replace(neighbour, connections=neighbour.connections - {guid})
        change.wake_watchers(guid)


def _connected(change: Change, event: events.Connected) -> None:
    pair = {event.guid, event.other}
    if event.is_on and not all(guid in change.resources for guid in pair):
        return  # another thread took one of them out meanwhile
    for guid in pair:
        resource = change.resources.get(guid)
        if resource is not None:
            others = pair - {guid}
            mine = resource.connections | others if event.is_on else resource.connections - others
            change.resources[guid] = replace(resource, connections=mine)


def _recoded(change: Change, event: events.Recoded, resource: Resource) -> None:
    change.resources[event.guid] = replace(resource, plain=event.plain)


def _attribute_set(change: Change, event: events.AttributeSet, resource: Resource) -> None:
    """Look at a new value of an attribute; ``critical`` alone says what others do."""
    critical = bool(event.value) if event.name == "critical" else resource.critical
    attributes = resource.attributes.set(event.name, event.value)
    change.resources[event.guid] = replace(resource, attributes=attributes, critical=critical)
    if critical is not resource.critical:
        change.wake_watchers(event.guid)


def _trace_enabled(change: Change, event: events.TraceEnabled, resource: Resource) -> None:
    if event.name not in resource.traces:
        change.resources[event.guid] = replace(resource, traces=(*resource.traces, event.name))


def _reopened(change: Change, event: events.Reopened) -> None:
    """Note what the process that took the run up does not know how to take up."""
    for guid in event.left_alone:
        if guid in change.resources:
            change.resources[guid] = replace(change.resources[guid], left_alone=True)


def _leveled(change: Change, event: events.Leveled) -> None:
    """Note how bad it is; a failure ends all waiting, and it never becomes better."""
    if event.level > change.level:
        change.level, change.level_reason = event.level, event.reason
        for want in change.before.wants.values():
            change.end_want(want)


_HANDLERS: dict[type[AnyEvent], Callable[[Change, Any], None]] = {
    events.Registered: _registered,
    events.Connected: _connected,
    events.Removed: _removed,
    events.ConditionAdded: _condition_added,
    events.ConditionsRemoved: _conditions_removed,
    events.SetWanted: _set_wanted,
    events.DeployAsked: _deploy_asked,
    events.ReleaseAsked: _release_asked,
    events.Became: _became,
    events.Reopened: _reopened,
    events.Fired: _fired,
    events.Leveled: _leveled,
}
_OF_ONE: dict[type[AnyEvent], Callable[[Change, Any, Resource], None]] = {
    events.Recoded: _recoded,
    events.AttributeSet: _attribute_set,
    events.TraceEnabled: _trace_enabled,
    events.ActionWanted: _action_wanted,
    events.Returned: _returned,
    events.VerbBegan: _verb_began,
    events.VerbReturned: _verb_returned,
    events.VerbFailed: _verb_failed,
    events.Measured: _measured,
}
"""What happens to one resource, and to none where that was taken out."""


def step(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event, and what it asks to be done, in this order. The old state stays as it was."""
    change = Change(state, event.t)
    if type(event) in _HANDLERS:
        _HANDLERS[type(event)](change, event)
    elif type(event) in _OF_ONE:
        resource = change.resources.get(event.guid)  # type: ignore[union-attr] # these have one
        if resource is not None:
            _OF_ONE[type(event)](change, event, resource)
    else:
        return state, ()  # who takes the run up again looks at it
    return change.finish(), tuple(change.actions)


def step_safely(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...], str]:
    """Return what `step` does, and ""; where that raises, a state that wants nothing any more, and what was wrong.

    That is the same whenever the event is read back from a journal, so nothing of it has to be written down.
    """
    try:
        return *step(state, event), ""
    except Exception as error:  # noqa: BLE001 - the experiment counts as failed, and can still be released
        wrong = f"the machine failed on {event!r:.200}: {error!r}"
        reason = state.level_reason if state.is_aborted else wrong
        state = replace(state, wants=Map(), watchers=Map(), level=FailureLevel.EC_FAILURE, level_reason=reason)
    # What happened has happened: without what was wanted, which is what steps stumble over, it can mostly be noted.
    try:
        return *step(state, event), wrong
    except Exception as error:  # noqa: BLE001 - as above
        return state, (), f"{wrong}; it is passed over: {error!r}"
