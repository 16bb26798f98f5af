"""The machine of an experiment: ``step(state, event)`` returns the next state and the actions to perform.

It knows no clock, thread, file or network: whatever happened, and when, is in the event. A verb is under way from its
`Call` until its hook has returned or raised, and, if it returned, until the state was reached that the verb leads to.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from fedmon.experiment.situation import Group, Resource, State, Times, Want, WantKey
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from fedmon.experiment.verdicts import Blocked, Doomed, Met, Verdict, may_now, verdict_on, verdict_on_condition

_ACTIONS = {verb: action for action, verb in VERB_OF.items()}
_NOBODY: Map[WantKey, None] = Map()
TICK_S = 2e-6
"""What comes later within a step is later by this: more than a microsecond, so that datetimes differ, too."""


def delay_of(key: WantKey) -> Timer:
    """Return the timer of a want whose conditions hold, and are to hold for a time."""
    guid, name = key
    return Timer(guid=guid, purpose="delay", want=name)


def limit_of(key: WantKey, number: int) -> Timer:
    """Return the timer that ends the waiting of a want for the condition of a number."""
    guid, name = key
    return Timer(guid=guid, purpose="condition-timeout", want=name, number=number)


def verb_limit_of(guid: int, verb: Verb) -> Timer:
    """Return the timer of a verb that runs."""
    return Timer(guid=guid, purpose="verb-timeout", want=verb)


def retry_of(guid: int, verb: Verb) -> Timer:
    """Return the timer of a verb that is to be tried again."""
    return Timer(guid=guid, purpose="retry", want=verb)


def condition_alarms(key: WantKey, conditions: Iterable[AnyCondition], *, since: float) -> Iterator[Alarm]:
    """Return the alarms of those conditions that may not last for ever."""
    for condition in conditions:
        if condition.timeout_s is not None:
            yield Alarm(timer=limit_of(key, condition.number), at=since + condition.timeout_s)


def alarms(state: State, now: float) -> Iterator[Alarm]:
    """Return the alarms of a state that another process left, each for the moment it was meant for.

    A verb that was under way or to be tried again has no such moment: its time begins ``now``.
    """
    for want in state.wants.values():
        if want.due is not None:
            yield Alarm(timer=delay_of(want.key), at=want.due)
        yield from condition_alarms(want.key, want.conditions, since=want.since)
    for resource in state.resources.values():
        if resource.retrying is not None:
            yield Alarm(timer=retry_of(resource.guid, resource.retrying), at=now)
        if resource.calling is not None and resource.calling in resource.timeouts:
            yield Alarm(
                timer=verb_limit_of(resource.guid, resource.calling), at=now + resource.timeouts[resource.calling]
            )


class Change:
    """Collects what a step changes; the state that it began with stays as it was. `finish` returns the next one."""

    def __init__(self, state: State, now: float) -> None:
        self.now = now
        self._before = state
        self.resources = state.resources.mutate()
        self.wants = state.wants.mutate()
        self.watchers = state.watchers.mutate()
        self.groups = state.groups.mutate()
        self.level, self.level_reason, self.numbers = state.level, state.level_reason, state.numbers
        self.latest = state.latest
        self._woken: set[int] = set()
        self._histories: dict[tuple[Times, ResourceState, float], Times] = {}
        self.actions: list[Action] = []
        self.awake: deque[WantKey] = deque()
        """Wants that are to be judged before the step is over."""
        self.due: list[tuple[int, ResourceState, str]] = []
        """Who comes to a state, and why, before the step is over, for nothing has to be called for that."""
        self.to_stop: list[int] = []
        """Who is to be stopped as conditions say, once all have come to their states."""

    def finish(self) -> State:
        """Return the state after the step."""
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

    def history(self, before: Times, state: ResourceState) -> Times:
        """Return when a resource came to each state, now that it came to one; many of them share theirs."""
        key = (before, state, self.latest)
        found = self._histories.get(key)
        if found is None:
            kept = [each for each in before if each[0] is not state]  # it may have come to it before
            found = self._histories[key] = (*kept, (state, self.latest))
        return found

    def add_want(self, want: Want, found: Blocked | None = None) -> None:
        """Take a want that waits for what was ``found``, or was not looked at; have its conditions end in time."""
        if want.attribute is not None:
            resource = self.resources[want.guid]
            self.resources[want.guid] = replace(resource, sets=(*resource.sets, want.name))
        self.actions.extend(condition_alarms(want.key, want.conditions, since=want.since))
        if found is None or not self.block(want, found):
            self.wants[want.key] = want

    def block(self, want: Want, found: Blocked) -> bool:
        """Note what a want waits for; false where it is as it was."""
        is_due = found.due == want.due
        if not is_due:
            self.actions.append(Alarm(timer=delay_of(want.key), at=found.due))
        self._watch(want.key, want.watching, found.guids)
        if is_due and found.guids == want.watching:
            return False
        self.wants[want.key] = replace(want, watching=found.guids, held_up_at=found.at, due=found.due)
        return True

    def end_want(self, want: Want) -> None:
        """Take a want out: it is done, or given up."""
        del self.wants[want.key]
        resource = None if want.attribute is None else self.resources.get(want.guid)
        if resource is not None:
            left = tuple(name for name in resource.sets if name != want.name)
            self.resources[want.guid] = replace(resource, sets=left)
        self._watch(want.key, want.watching, ())
        if want.due is not None:
            self.actions.append(Alarm(timer=delay_of(want.key), at=None))
        for condition in want.conditions:
            if condition.timeout_s is not None:
                self.actions.append(Alarm(timer=limit_of(want.key, condition.number), at=None))

    def drop_wants(self, resource: Resource) -> None:
        """Give up everything that a resource is still to do."""
        for name in (*VERB_OF.values(), *resource.sets) if self.wants else ():
            want = self.wants.get((resource.guid, name))
            if want is not None:
                self.end_want(want)

    def drop_all_wants(self) -> None:
        """Give up everything that anybody is still to do; the first thing in a step."""
        for want in self._before.wants.values():
            self.end_want(want)

    def wake_watchers(self, guid: int) -> None:
        """Have those who wait for a resource judged again; who still waits for it then is put down again."""
        watchers = self.watchers.pop(guid, None)
        if watchers is not None:
            self._woken.add(guid)
            self.awake.extend(sorted(watchers))

    def _watch(self, key: WantKey, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        for guid in set(before).difference(now) if now else before:
            watchers = self.watchers.get(guid)
            if watchers is None or key not in watchers:  # `wake_watchers` was faster
                continue
            left = watchers.delete(key)
            if left:
                self.watchers[guid] = left
            else:
                del self.watchers[guid]
        for guid in [*set(now).difference(before), *self._woken.intersection(now)] if before else now:
            watchers = self.watchers.get(guid, _NOBODY)
            if key not in watchers:
                self.watchers[guid] = watchers.set(key, None)


def deploy_asked(change: Change, event: events.DeployAsked) -> None:
    """Have resources deployed, and started when their group is ready; what came to its end stays so."""
    group = change.groups.get(event.group)
    old = () if group is None else group.members
    known = set(old)
    fresh = tuple(guid for guid in event.guids if guid not in known and guid in change.resources)
    unready = 0 if group is None else group.unready
    unready += sum(change.resources[guid].state < ResourceState.READY for guid in fresh)
    wait_all_ready = event.wait_all_ready if group is None else group.wait_all_ready
    change.groups[event.group] = Group(members=(*old, *fresh), unready=unready, wait_all_ready=wait_all_ready)
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
        if resource is None or resource.state >= ResourceState.STOPPED:
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
    if not conditions and may_now(name, resource):
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
        if resource is not None and resource.state is not ResourceState.RELEASED and resource.calling != "release":
            change.drop_wants(resource)
            call(change, end_verb(change, change.resources[guid]), "release")


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


def call(change: Change, resource: Resource, verb: Verb) -> None:
    """Have a verb called, and ended in time; one without code has no need of that."""
    if verb in resource.plain:
        if resource.retrying is not None:
            change.resources[resource.guid] = replace(resource, retrying=None)
        change.due.append((resource.guid, COMES_TO[verb], ""))
        return
    under_way(change, resource, verb)
    change.actions.append(Call(guid=resource.guid, verb=verb))


def under_way(change: Change, resource: Resource, verb: Verb) -> None:
    """Note that a verb is under way, and when it is given up."""
    timeout_s = resource.timeouts.get(verb)
    ends_at = None if timeout_s is None else change.now + timeout_s
    change.resources[resource.guid] = replace(
        resource, calling=verb, returned=False, scheduled=False, left_alone=False, retrying=None, alarm_at=ends_at
    )
    if ends_at is not None:
        change.actions.append(Alarm(timer=verb_limit_of(resource.guid, verb), at=ends_at))


def end_verb(change: Change, resource: Resource, *, attempt: int = 0) -> Resource:
    """Note that no verb is under way or to be tried again any more; return the resource."""
    if resource.calling is not None and resource.calling in resource.timeouts:
        change.actions.append(Alarm(timer=verb_limit_of(resource.guid, resource.calling), at=None))
    if resource.retrying is not None:
        change.actions.append(Alarm(timer=retry_of(resource.guid, resource.retrying), at=None))
    made = replace(resource, calling=None, returned=False, scheduled=False, retrying=None, attempt=attempt)
    change.resources[resource.guid] = made
    return made


def give_up(change: Change, resource: Resource, reason: str) -> None:
    """Have a resource fail: first its state, for others wait for that, and then its hook."""
    if resource.state >= ResourceState.FAILED:
        return
    change.drop_wants(resource)
    change.due.append((resource.guid, ResourceState.FAILED, reason))
    if "fail" not in resource.plain:
        change.actions.append(Call(guid=resource.guid, verb="fail", reason=reason))


_NO_ATTRIBUTES: Map[str, Any] = Map()
NO_COUNTS: Map[str, int] = Map()
KEPT_VALUES = 64
"""How many of the last values of a metric a condition that is registered later can look back at."""


def opened(state: State, event: AnyEvent) -> State:  # noqa: ARG001 - as all of them are called
    """Change nothing: who takes the run up again looks at it."""
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
    for state, guids in _come(change, [(guid, event.state, event.reason) for guid in event.guids]).items():
        for guid in guids:
            if state is not before[guid]:
                _drop_what_came(change, guid, state)


def come(change: Change) -> None:
    """Have those come to their states that are due to."""
    due, change.due = change.due, []
    _come(change, due)


def _come(change: Change, due: Iterable[tuple[int, ResourceState, str]]) -> dict[ResourceState, list[int]]:
    """Have resources come to states, for reasons; return who did. What is over stays; what failed can be released."""
    reached: dict[ResourceState, list[int]] = {}
    unready: dict[int, int] = {}
    change.latest = max(change.now, change.latest + TICK_S)
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
            count_unready(change, group, by)
    return reached


def _moved(change: Change, resource: Resource, now: ResourceState, reason: str) -> None:
    calling, retrying = resource.calling, resource.retrying
    is_over = now is ResourceState.RELEASED or (now is ResourceState.FAILED and calling != "release")
    has_come = calling is not None and resource.returned and now >= COMES_TO[calling]
    came_meanwhile = retrying is not None and resource.state < COMES_TO[retrying] <= now
    if (calling or retrying) and (is_over or has_come or came_meanwhile):
        resource = end_verb(change, resource)
    change.resources[resource.guid] = resource = replace(
        resource,
        state=now,
        times=change.history(resource.times, now),
        reason=reason or resource.reason,
        left_alone=False,
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


def verb_began(change: Change, event: events.VerbBegan) -> None:
    """Note that a verb was called from outside."""
    resource = change.resources.get(event.guid)
    if resource is not None and resource.state < ResourceState.FAILED:
        under_way(change, end_verb(change, resource), event.verb)


def verb_returned(change: Change, event: events.VerbReturned) -> None:
    """Note that a hook returned; its verb is over where the state was reached, or comes to none."""
    resource = change.resources.get(event.guid)
    if resource is None or resource.calling != event.verb:
        return
    if resource.state >= COMES_TO[event.verb] or event.verb not in _AWAITED:
        end_verb(change, resource)
    else:
        change.resources[event.guid] = replace(resource, returned=True, scheduled=event.scheduled)
    change.wake_watchers(event.guid)


def verb_failed(change: Change, event: events.VerbFailed) -> None:
    """Have a verb tried again, or the resource fail, whatever state the hook had said before it raised."""
    resource = change.resources.get(event.guid)
    if resource is None or resource.state >= ResourceState.FAILED:
        return
    if resource.calling != event.verb and (resource.calling is not None or event.verb in _AWAITED):
        return  # of a hook that was left behind
    retry, attempt = resource.retry.get(event.verb), resource.attempt + 1
    if retry is None or attempt > retry.times or change.level is not FailureLevel.OK:
        tried = f" ({attempt} times)" if resource.attempt else ""
        give_up(change, resource, f"{event.verb} failed{tried}: {event.reason}")
        return
    again_at = event.t + retry.delay_before_s(attempt)
    resource = end_verb(change, resource, attempt=attempt)
    change.resources[event.guid] = replace(resource, retrying=event.verb, alarm_at=again_at, reason=event.reason)
    change.actions.append(Alarm(timer=retry_of(event.guid, event.verb), at=again_at))


_AWAITED: tuple[Verb, ...] = ("deploy", "start", "stop", "release")
"""The verbs that are under way until their state was reached, for something else may say so after the hook."""


def reopened(change: Change, event: events.Reopened) -> None:
    """Note what the process that took the run up does not know how to take up."""
    for guid in event.left_alone:
        resource = change.resources.get(guid)
        if resource is not None:
            change.resources[guid] = replace(resource, left_alone=True)


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
            _verb_timed_out(change, resource, timer.want, event.waits_for)  # type: ignore[arg-type] # named after a verb
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


def _verb_timed_out(change: Change, resource: Resource, verb: Verb, waited_for: str) -> None:
    if resource.calling != verb:
        return
    reason = f"{verb} did not end within {resource.timeouts[verb]:g} s"
    reason += f": it waited for {waited_for}" if waited_for else ""
    change.actions.append(Abandon(guid=resource.guid))
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
    events.TaskScheduled: opened,
    events.TaskDone: opened,
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
    events.VerbBegan: verb_began,
    events.VerbReturned: verb_returned,
    events.VerbFailed: verb_failed,
    events.Reopened: reopened,
    events.Fired: fired,
    events.Measured: measured,
    events.Leveled: leveled,
}


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
