"""What can be wrong with a plan, one resource or condition at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from fedmon.experiment.conditions import MetricCondition, StateCondition
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import is_kind, needed
from fedmon.experiment.plan_facts import Facts, called
from fedmon.experiment.plan_losses import loss_problems
from fedmon.experiment.plan_parts import missing_parts
from fedmon.experiment.plan_problems import Problem
from fedmon.experiment.plan_waits import PlannedWait, is_to_come, planned_waits
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verdicts import has_held


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
