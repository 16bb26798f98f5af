"""What can be wrong with a plan, one resource or condition at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedmon.researcher.experiment.conditions import AnyCondition, StateCondition
from fedmon.researcher.experiment.plan_facts import Facts, called
from fedmon.researcher.experiment.plan_problems import Problem
from fedmon.researcher.experiment.situation import Resource, State
from fedmon.researcher.experiment.states import ResourceState


def type_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say whose type nobody knows, and which collector has nothing to collect."""
    for resource in state.resources.values():
        who = called(resource.guid, facts.names, state)
        if facts.rtypes is not None and resource.rtype not in facts.rtypes:
            known = ", ".join(sorted(facts.rtypes)[:20])
            text = f"{who} is of a type that nobody registered; there is: {known}"
            yield Problem(kind="unknown-type", guids=(resource.guid,), text=text)
        is_collector = resource.rtype.rpartition("::")[2] == "Collector"
        mine = {} if facts.attributes is None else facts.attributes.get(resource.guid, {})
        if is_collector and facts.attributes is not None and not mine.get("traceName"):
            text = f"{who} has no traceName, so there is nothing that it could collect"
            yield Problem(kind="collector-without-trace", guids=(resource.guid,), text=text)


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
    """Say who waits for whom in vain."""
    for resource in state.resources.values():
        if resource.state >= ResourceState.FAILED:
            continue
        for action, condition in resource.conditions:
            what = f"{action.name.lower()} of {called(resource.guid, facts.names, state)}"
            yield from _condition(state, facts, is_coming, condition, (resource.guid, what))
    for want in state.wants.values():
        for condition in want.conditions if want.attribute is not None else ():
            what = f"setting {want.attribute[0] if want.attribute else ''} of {called(want.guid, facts.names, state)}"
            yield from _condition(state, facts, is_coming, condition, (want.guid, what))


def _condition(
    state: State,
    facts: Facts,
    is_coming: Callable[[Resource], bool],
    condition: AnyCondition,
    waiting: tuple[int, str],
) -> Iterator[Problem]:
    mine, what = waiting
    lost = []
    for guid in condition.group:
        other = state.resources.get(guid)
        who = called(guid, facts.names, state)
        if other is None:
            text = f"{what} waits for {who}, which is not there"
            yield Problem(kind="unknown-resource", guids=(mine, guid), text=text)
        elif other.state is ResourceState.FAILED and getattr(condition, "state", None) is not ResourceState.FAILED:
            lost.append(guid)
            if condition.at_least is None and other.critical and isinstance(condition, StateCondition):
                text = f"{what} waits for {who}, which is critical and failed"
                yield Problem(kind="failed-resource", guids=(mine, guid), text=text)
        elif not is_coming(other) and other.state is ResourceState.NEW:
            text = f"{what} waits for {who}, which nobody has deployed yet"
            yield Problem(kind="not-deployed", severity="warning", guids=(mine, guid), text=text)
        elif isinstance(condition, StateCondition) and facts.skips and condition.state in facts.skips(other.rtype):
            text = f"{what} waits for {who} to be {condition.state.name}, which its type skips: the next state counts"
            yield Problem(kind="skipped-state", severity="warning", guids=(mine, guid), text=text)
    if condition.at_least is not None and condition.at_least > len(condition.group) - len(lost):
        text = f"{what} waits for {condition.at_least} of {len(condition.group)} resources" + (
            f", of which {len(lost)} failed" if lost else ""
        )
        yield Problem(kind="impossible-quorum", guids=(mine, *condition.group), text=text)
