"""Whether something that is wanted may be done now, and who or what it waits for if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF, Verb
from fedmon.experiment.situation import Resource, Want
from fedmon.experiment.states import ResourceAction, ResourceState

_BELOW_READY = frozenset(state for state in ResourceState if state < ResourceState.READY)
_BELOW_FAILED = frozenset(state for state in ResourceState if state < ResourceState.FAILED)
MAY: Mapping[str, frozenset[ResourceState]] = {
    "discover": _BELOW_FAILED,
    "reserve": _BELOW_FAILED,
    "provision": _BELOW_FAILED,
    "configure": _BELOW_FAILED,
    "deploy": _BELOW_READY | {ResourceState.READY},
    "start": frozenset({ResourceState.READY, ResourceState.STOPPED}),
    "stop": frozenset({ResourceState.STARTED}),
    "set": frozenset({ResourceState.STARTED}),
    "fail": _BELOW_FAILED,
    "release": _BELOW_FAILED | {ResourceState.FAILED},
}
"""The states in which each verb does something, whoever calls it; "set" is the setting of an attribute."""


_REACHED: Mapping[str, ResourceState] = {str(verb): state for verb, state in COMES_TO.items()}


class Resources(Protocol):
    """The resources of a state, or of one that is being made."""

    def get(self, guid: int, /) -> Resource | None:
        """Return a resource; null where it was taken out."""
        ...


class Met(msgspec.Struct, frozen=True, gc=False):
    """It may be done now."""


class Moot(msgspec.Struct, frozen=True, gc=False):
    """It can never be done: the resource is past it."""


class Doomed(msgspec.Struct, frozen=True, gc=False):
    """It can never be done, for what a condition asks for cannot come."""

    reason: str


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """It waits: for one of ``guids`` to change, or until ``due``; ``condition`` is null while it waits for itself.

    ``at`` is the place of the condition, and in its group, up to which all is as wanted.
    """

    guids: tuple[int, ...]
    due: float | None = None
    condition: AnyCondition | None = None
    at: tuple[int, int] = (0, 0)


Verdict = Met | Moot | Doomed | Blocked
MET, MOOT = Met(), Moot()


def waits_in_vain(guid: int, action: ResourceAction, condition: StateCondition) -> bool:
    """Tell whether an action would wait for its resource itself to be where only that action brings it."""
    return guid in condition.group and condition.state >= COMES_TO[VERB_OF[action]]


def may_now(verb: Verb, resource: Resource) -> bool:
    """Tell whether a resource itself allows a verb that was wanted: no other verb of it is under way."""
    is_reached = resource.state is COMES_TO[verb]
    return resource.state in MAY[verb] and not is_reached and not resource.is_busy and resource.calling != verb


def verdict_on(want: Want, resources: Resources, now: float) -> Verdict:
    """Judge a want as things stand at ``now``.

    It looks first where it was held up the last time: who waits for thousands need not look at all of them whenever one
    has come. All are looked at again before it is done.
    """
    guid, name = want.key
    kind = name if want.attribute is None else "set"
    resource = resources.get(guid)
    if resource is None:
        return MOOT
    state, verb = resource.state, None if kind == "set" else kind
    if state not in MAY[kind] or state is _REACHED.get(kind):
        is_early = state < min(MAY[kind]) or (kind == "set" and state is ResourceState.STOPPED)
        return Blocked((guid,)) if is_early else MOOT
    if verb is not None and (resource.is_busy or resource.calling == verb):
        return Blocked((guid,))
    found = _on_conditions(want, resources, now, want.held_up_at)
    if found is MET and want.held_up_at[0]:  # the conditions before that one
        found = _on_conditions(want, resources, now, (0, 0))
    return found


def _on_conditions(want: Want, resources: Resources, now: float, begin: tuple[int, int]) -> Verdict:
    first, done = begin
    for place, condition in enumerate(want.conditions):
        if place < first:
            continue
        found = verdict_on_condition(condition, want, resources, now, done=done)
        if found is not MET:
            return replace(found, at=(place, found.at[1])) if place and isinstance(found, Blocked) else found
        done = 0
    return MET


def verdict_on_condition(
    condition: AnyCondition, want: Want, resources: Resources, now: float, *, done: int = 0
) -> Verdict:
    """Judge one condition of a want; where that waits for all of its group, those before place ``done`` come last."""
    if condition.at_least is None and isinstance(condition, StateCondition):
        return _on_all(condition, resources, now, done)
    members = list(filter(None, map(resources.get, condition.group)))
    return (
        _on_metric(condition, want, members)
        if isinstance(condition, MetricCondition)
        else _on_some(condition, members, now)
    )


def _on_all(condition: StateCondition, resources: Resources, now: float, done: int) -> Verdict:
    """Members are looked at in order, and the first one that is not there decides."""
    wanted, last = condition.state, 0.0
    for place, guid in enumerate(condition.group[done:] if done else condition.group, done):
        member = resources.get(guid)
        if member is None:
            continue
        if member.state is ResourceState.FAILED and wanted is not ResourceState.FAILED:
            if member.critical:
                return Doomed(f"resource {member.guid} ({member.rtype}), which is critical, failed: {member.reason}")
        elif member.state < wanted:
            return Blocked((guid,), None, condition, (0, place))
        elif condition.delay_s:
            last = max(last, member.since(wanted) or 0.0)
    if done:
        return _on_all(condition, resources, now, 0)
    return _after(condition, last, now) if condition.delay_s else MET


def _on_some(condition: StateCondition, members: list[Resource], now: float) -> Verdict:
    wanted = condition.state
    lost = [one for one in members if one.state is ResourceState.FAILED and wanted is not ResourceState.FAILED]
    missing = [one.guid for one in members if one.state < wanted]
    there = len(members) - len(lost) - len(missing)
    if there + len(missing) < condition.needed:
        return Doomed(
            f"{condition.needed} of {len(condition.group)} resources must be {wanted.name}, and "
            f"{_listed([one.guid for one in lost])} failed"
        )
    if there < condition.needed:
        return Blocked(tuple(missing), condition=condition)
    moments = sorted(one.since(wanted) or 0.0 for one in members if one.state >= wanted and one not in lost)
    return _after(condition, moments[condition.needed - 1] if condition.needed else 0.0, now)


def _after(condition: StateCondition, since: float, now: float) -> Verdict:
    due = since + condition.delay_s
    return Blocked((), due=due, condition=condition) if condition.delay_s and since and due > now else MET


def has_held(condition: MetricCondition, resource: Resource) -> bool:
    """Tell whether a resource's values were as wanted, and often enough; those of each source, where it has several."""
    counts = resource.met.get(condition.number)
    return counts is not None and min(counts.values()) >= condition.metric.samples


def _on_metric(condition: MetricCondition, want: Want, members: list[Resource]) -> Verdict:
    """Who was taken out tells nothing any more; nor does who STOPPED, though nothing has to be stopped for that."""
    needed = len(members) or 1 if condition.at_least is None else condition.at_least
    unmet = [one for one in members if not has_held(condition, one)]
    if len(members) - len(unmet) >= needed:
        return MET
    end = ResourceState.FAILED if want.name == "stop" else ResourceState.STOPPED
    over = [one for one in unmet if one.state >= end]
    if len(members) - len(over) < needed:
        said = "; ".join(f"resource {one.guid} ({one.rtype}) is {one.state.name}" for one in over)
        return Doomed(f"{condition.metric} cannot come any more: {said or 'nobody is left who would tell'}")
    return Blocked(tuple(one.guid for one in unmet), condition=condition)


def _listed(guids: list[int]) -> str:
    return "nobody" if not guids else f"resource {', '.join(map(str, guids))}"
