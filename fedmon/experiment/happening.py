"""What happened to resources, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from fedmon.experiment import events
from fedmon.experiment.alarms import retry_of, verb_limit_of
from fedmon.experiment.change import Change
from fedmon.experiment.conditions import MetricCondition
from fedmon.experiment.contents import KEPT_VALUES, NO_COUNTS
from fedmon.experiment.events import COMES_TO, Alarm, Inform, Reached, Timer, Verb
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import FailureLevel, ResourceState
from fedmon.experiment.verdicts import Met, verdict_on_condition
from fedmon.experiment.wanting import call, count_unready, give_up

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
