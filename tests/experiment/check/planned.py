"""Experiments made from events alone, to be planned, explained and drawn."""

from __future__ import annotations

from collections.abc import Sequence

from fedmon.experiment import events
from fedmon.experiment.check.plan import ExperimentPlan
from fedmon.experiment.conditions import AnyCondition, Metric, MetricCondition, StateCondition
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceAction, ResourceState

Wish = tuple[int, ResourceAction, int | tuple[int, ...], ResourceState | Metric]
"""A resource, its action, the resources that this waits for, and what those must be."""


def after(state: State, *happened: events.AnyEvent) -> State:
    """Return a state after events."""
    for event in happened:
        state, _ = step(state, event)
    return state


def wish(
    number: int, whom: int | tuple[int, ...], wanted: ResourceState | Metric, at_least: int | None
) -> AnyCondition:
    """Return the condition of a wish."""
    group = whom if isinstance(whom, tuple) else (whom,)
    if isinstance(wanted, Metric):
        return MetricCondition(number=number, group=group, at_least=at_least, metric=wanted)
    return StateCondition(number=number, group=group, at_least=at_least, state=wanted)


def experiment(rtypes: int | Sequence[str], *wishes: Wish, at_least: int | None = None, name: str = "") -> State:
    """Return resources of types, or so many of type "t", with conditions; the first has a name."""
    rtypes = ["t"] * rtypes if isinstance(rtypes, int) else rtypes
    names = [name, *[""] * len(rtypes)]
    registered = enumerate(zip(rtypes, names, strict=False), 1)
    state = after(State(), *(events.Registered(t=0, guid=guid, rtype=t, name=own) for guid, (t, own) in registered))
    for number, (guid, action, whom, wanted) in enumerate(wishes, 1):
        condition = wish(number, whom, wanted, at_least)
        state = after(state, events.ConditionAdded(t=0, guids=(guid,), action=action, condition=condition))
    return state


def found(planned: ExperimentPlan) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the problems of a plan without their texts."""
    return [(one.severity, one.kind, one.guids) for one in planned.problems]
