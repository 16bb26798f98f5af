"""Whether something that is wanted may be done now, and who or what it waits for if not."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from immutables import MapMutation

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import COMES_TO, VERB_OF
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
Resources = Mapping[int, Resource] | MapMutation[int, Resource]


class Met(msgspec.Struct, frozen=True, gc=False):
    """It may be done now."""


class Moot(msgspec.Struct, frozen=True, gc=False):
    """It can never be done: the resource is past it."""


class Doomed(msgspec.Struct, frozen=True, gc=False):
    """It can never be done, for what a condition asks for cannot come."""

    reason: str


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """It waits: for one of ``guids`` to change, or until ``due``."""

    guids: tuple[int, ...]
    due: float | None = None


Verdict = Met | Moot | Doomed | Blocked
MET, MOOT = Met(), Moot()


def waits_in_vain(guid: int, action: ResourceAction, condition: StateCondition) -> bool:
    """Tell whether an action would wait for its resource itself to be where only that action brings it."""
    return guid in condition.group and condition.state >= COMES_TO[VERB_OF[action]]


def verdict_on(want: Want, resources: Resources, now: float) -> Verdict:
    """Judge a want as things stand at ``now``."""
    kind = want.name if want.attribute is None else "set"
    resource = resources.get(want.guid)
    if resource is None:
        return MOOT
    state = resource.state
    if state not in MAY[kind] or state is _REACHED.get(kind):
        is_early = state < min(MAY[kind]) or (kind == "set" and state is ResourceState.STOPPED)
        return Blocked((want.guid,)) if is_early else MOOT
    if kind != "set" and (resource.is_busy or resource.calling == kind):
        return Blocked((want.guid,))
    for condition in want.conditions:
        found = verdict_on_condition(condition, want, resources, now)
        if found is not MET:
            return found
    return MET


def verdict_on_condition(condition: AnyCondition, want: Want, resources: Resources, now: float) -> Verdict:
    """Judge one condition of a want. Who was taken out of the experiment is passed over."""
    members = list(filter(None, map(resources.get, condition.group)))
    if isinstance(condition, MetricCondition):
        return _on_metric(condition, want, members)
    wanted, needed = condition.state, condition.needed
    missing = [one.guid for one in members if one.state < wanted]
    lost = [one for one in members if one.state is ResourceState.FAILED and wanted is not ResourceState.FAILED]
    there = [one for one in members if one.state >= wanted and (not lost or one.state is not ResourceState.FAILED)]
    if condition.at_least is None:
        for one in lost:
            if one.critical:
                return Doomed(f"resource {one.guid} ({one.rtype}), which is critical, failed: {one.reason}")
        if missing:
            # Whoever waits for thousands is woken a few times, in whatever order they come, if it watches the middle.
            return Blocked((missing[len(missing) // 2],))
    elif len(there) + len(missing) < needed:
        failed = f"resource {', '.join(str(one.guid) for one in lost)}" if lost else "nobody"
        return Doomed(f"{needed} of {len(condition.group)} resources must be {wanted.name}, and {failed} failed")
    elif len(there) < needed:
        return Blocked(tuple(missing))
    return _after(condition, there, now) if condition.delay_s and there else MET


def _after(condition: StateCondition, there: list[Resource], now: float) -> Verdict:
    moments = sorted(one.since(condition.state) or 0.0 for one in there)
    due = moments[-1 if condition.at_least is None else condition.needed - 1] + condition.delay_s
    return Blocked((), due) if due > now else MET


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
    return Blocked(tuple(one.guid for one in unmet))
