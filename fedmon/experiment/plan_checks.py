"""What can be wrong with a plan, one resource or condition at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import Nature, Natures, is_kind, needed
from fedmon.experiment.plan_problems import Facts, Problem, ProblemKind, Severity, called
from fedmon.experiment.situation import Resource, State, Want
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verdicts import Doomed, has_held, verdict_on_condition

_DONE = {
    ResourceAction.DEPLOY: ResourceState.READY,
    ResourceAction.START: ResourceState.STARTED,
    ResourceAction.STOP: ResourceState.STOPPED,
}


class PlannedWait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One condition of something that is still to be done. ``name`` is that of its want, ``what`` it in words."""

    guid: int
    name: str
    what: str
    condition: AnyCondition


def is_to_come(resource: Resource, action: ResourceAction) -> bool:
    """Tell whether an action of a resource was not done yet."""
    return resource.state < _DONE[action]


def planned_waits(state: State, names: Mapping[int, str], guids: Iterable[int] | None = None) -> Iterator[PlannedWait]:
    """Return what all resources, or some, wait for still; of all, also the attributes that are to be set."""
    chosen = state.resources.values() if guids is None else filter(None, map(state.resources.get, guids))
    for resource in chosen:
        for action, condition in resource.conditions:
            if is_to_come(resource, action):
                name = VERB_OF[action]
                what = f"{name} of {called(resource.guid, names, state)}"
                yield PlannedWait(guid=resource.guid, name=name, what=what, condition=condition)
    for want in state.wants.values() if guids is None else ():
        for condition in want.conditions if want.attribute is not None else ():
            what = f"setting {want.attribute[0] if want.attribute else ''} of {called(want.guid, names, state)}"
            yield PlannedWait(guid=want.guid, name=want.name, what=what, condition=condition)


def missing_parts(
    resource: Resource, state: State, nature: Natures, attributes: Mapping[str, Any], names: Mapping[int, str]
) -> Iterator[Problem]:
    """Say what a resource that was not deployed lacks; what its deploy waits for may still bring it, so that warns."""
    mine = nature(resource.rtype)
    if resource.state >= ResourceState.READY or not (mine.attributes or mine.connections):
        return
    is_held = any(action is ResourceAction.DEPLOY for action, _ in resource.conditions)
    severity: Severity = "warning" if is_held else "error"
    who = called(resource.guid, names, state)
    for name in mine.attributes:
        if attributes.get(name) in (None, "") and resource.attributes.get(name) in (None, ""):
            yield _without(resource, name, who, severity, mine)
    for rtypes in mine.connections:
        others = filter(None, map(state.resources.get, resource.connections))
        if not any(is_kind(other.rtype, rtype, nature) for other in others for rtype in rtypes):
            text = f"{who} has no {' or '.join(rtypes)}: connect it to one"
            yield Problem(kind="missing-part", severity=severity, guids=(resource.guid,), text=text)


def _without(resource: Resource, name: str, who: str, severity: Severity, mine: Nature) -> Problem:
    if name == "traceName" and any(rtype.rpartition("::")[2] == "Collector" for rtype in mine.rtypes):
        text = f"{who} has no traceName, so there is nothing that it could collect"
        return Problem(kind="collector-without-trace", severity=severity, guids=(resource.guid,), text=text)
    text = f"{who} has no {name}: set that attribute"
    return Problem(kind="missing-part", severity=severity, guids=(resource.guid,), text=text)


def loss_problems(state: State, facts: Facts, wait: PlannedWait) -> Iterator[Problem]:
    """Say why a condition can never hold any more."""
    condition = wait.condition
    if condition.at_least is None and not isinstance(condition, MetricCondition):
        # Whoever of them is not there yet is waited for first, but it ends in this all the same.
        for guid in condition.group if condition.state is not ResourceState.FAILED else ():
            member = state.resources.get(guid)
            if member is not None and member.state is ResourceState.FAILED and member.critical:
                text = f"{wait.what} waits for {called(guid, facts.names, state)}, which is critical and failed"
                yield Problem(kind="failed-resource", guids=(wait.guid, guid), text=text)
        return
    want = Want(key=(wait.guid, wait.name), since=0.0, conditions=(condition,))
    found = verdict_on_condition(condition, want, state.resources, 0.0)
    if isinstance(found, Doomed) and (facts.are_removed or all(guid in state.resources for guid in condition.group)):
        is_quorum = condition.at_least is not None
        text = f"{wait.what} waits in vain: {found.reason}"
        kind: ProblemKind = "impossible-quorum" if is_quorum else "may-not-come"
        yield Problem(kind=kind, guids=(wait.guid, *condition.group), text=text)


def type_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say whose type nobody knows, and who lacks what his type cannot do without."""
    for resource in state.resources.values():
        if facts.rtypes is not None and resource.rtype not in facts.rtypes:
            known = ", ".join(sorted(facts.rtypes)[:20])
            who = called(resource.guid, facts.names, state)
            text = f"{who} is of a type that nobody registered; there is: {known}"
            yield Problem(kind="unknown-type", guids=(resource.guid,), text=text)
        if facts.attributes is not None:
            attributes = facts.attributes.get(resource.guid, {})
            yield from missing_parts(resource, state, facts.nature, attributes, facts.names)


def connection_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say which connections are not taken by both sides."""
    for resource in state.resources.values():
        for guid in sorted(resource.connections):
            pair = (resource.guid, guid)
            who, whom = (called(each, facts.names, state) for each in pair)
            other = state.resources.get(guid)
            if other is None:
                yield Problem(
                    kind="unknown-resource", guids=pair, text=f"{who} is connected to {whom}, which is not there"
                )
            elif resource.guid not in other.connections:
                text = f"{who} is connected to {whom}, but {whom} not to {who}"
                yield Problem(kind="one-sided-connection", guids=pair, text=text)
            elif facts.accepts is not None and resource.guid < guid:
                yield from _accepted(facts.accepts, pair, (who, whom))


def _accepted(accepts: Callable[[int, int], bool], pair: tuple[int, int], names: tuple[str, str]) -> Iterator[Problem]:
    takes = (accepts(*pair), accepts(*pair[::-1]))
    if not any(takes):
        text = f"neither {names[0]} nor {names[1]} takes a connection to the other"
        yield Problem(kind="refused-connection", guids=pair, text=text)
    elif not all(takes):
        willing, refusing = names if takes[0] else names[::-1]
        text = f"{willing} takes a connection to {refusing}, but {refusing} takes none to {willing}"
        yield Problem(kind="one-sided-connection", guids=pair, text=text)


def condition_problems(state: State, facts: Facts, is_coming: Callable[[Resource], bool]) -> Iterator[Problem]:
    """Say who waits for whom in vain, or for what he may not expect."""
    for wait in planned_waits(state, facts.names):
        yield from loss_problems(state, facts, wait)
        for guid in wait.condition.group:
            other = state.resources.get(guid)
            if other is None and not facts.are_removed:
                text = f"{wait.what} waits for {called(guid, facts.names, state)}, which is not there"
                yield Problem(kind="unknown-resource", guids=(wait.guid, guid), text=text)
            elif other is not None and not is_coming(other) and other.state is ResourceState.NEW:
                yield _not_deployed(wait.what, wait.guid, other, facts, state)
            elif other is not None and isinstance(wait.condition, StateCondition):
                yield from _state(state, facts, wait, wait.condition.state, other)
            elif other is not None and isinstance(wait.condition, MetricCondition):
                yield from _metric(state, facts, wait, wait.condition, other)


def need_problems(state: State, facts: Facts, is_coming: Callable[[Resource], bool]) -> Iterator[Problem]:
    """Say who waits by himself, through a connection, for one that nobody has deployed yet, or that is lost."""
    for resource in state.resources.values():
        if not facts.nature(resource.rtype).needs or not is_coming(resource) or resource.state >= ResourceState.FAILED:
            continue
        for action in filter(partial(is_to_come, resource), ResourceAction):
            verb = VERB_OF[action]
            what = f"{verb} of {called(resource.guid, facts.names, state)}"
            for _, other in needed(resource, verb, state.resources, facts.nature):
                if other.state is ResourceState.NEW and not is_coming(other):
                    yield _not_deployed(what, resource.guid, other, facts, state)
                elif other.state >= ResourceState.FAILED and other.critical and action is not ResourceAction.STOP:
                    text = f"{what} needs {called(other.guid, facts.names, state)}, which is {other.state.name}"
                    pair = (resource.guid, other.guid)
                    yield Problem(kind="failed-resource", severity="warning", guids=pair, text=text)


def _not_deployed(what: str, guid: int, other: Resource, facts: Facts, state: State) -> Problem:
    text = f"{what} waits for {called(other.guid, facts.names, state)}, which nobody has deployed yet"
    return Problem(kind="not-deployed", severity="warning", guids=(guid, other.guid), text=text)


def _state(state: State, facts: Facts, wait: PlannedWait, wanted: ResourceState, other: Resource) -> Iterator[Problem]:
    if other.state >= wanted:
        return
    pair, who = (wait.guid, other.guid), called(other.guid, facts.names, state)
    if wanted in facts.nature(other.rtype).skips:
        text = f"{wait.what} waits for {who} to be {wanted.name}, which its type skips: the next state counts"
        yield Problem(kind="skipped-state", severity="warning", guids=pair, text=text)
    elif wanted is ResourceState.FAILED:
        text = f"{wait.what} waits for {who} to be FAILED, which does not come where that does well"
        yield Problem(kind="not-failed", severity="hint", guids=pair, text=text)


def _metric(
    state: State, facts: Facts, wait: PlannedWait, condition: MetricCondition, other: Resource
) -> Iterator[Problem]:
    if has_held(condition, other) or other.state >= ResourceState.STOPPED:
        return
    pair, nature = (wait.guid, other.guid), facts.nature(other.rtype)
    text = f"{wait.what} waits for {condition.metric.name} of {called(other.guid, facts.names, state)}"
    neighbours = [state.resources[guid].rtype for guid in other.connections if guid in state.resources]
    measured_by = nature.measured_by
    if measured_by is not None and not any(
        is_kind(each, by, facts.nature) for each in neighbours for by in measured_by
    ):
        if measured_by:
            text += f", which nobody measures: connect it to a {' or a '.join(measured_by)}"
            yield Problem(kind="not-measured", severity="warning", guids=pair, text=text)
        else:
            text += ", whose type tells no numbers: somebody has to, by ec.measured"
            yield Problem(kind="not-measured", severity="hint", guids=pair, text=text)
    elif nature.ending == "always" and wait.name != "stop":
        text += ", which may come to its end without it, and that ends the waiting"
        yield Problem(kind="may-not-come", severity="hint", guids=pair, text=text)
