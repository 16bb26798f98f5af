"""A dry run: what would happen in which order, and what could never happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from fedmon.researcher.experiment.conditions import AnyCondition, StateCondition
from fedmon.researcher.experiment.dependencies import Dependencies, Step
from fedmon.researcher.experiment.plan_circles import circle_problem
from fedmon.researcher.experiment.plan_problems import ImpossiblePlanError, Problem
from fedmon.researcher.experiment.situation import Resource, State
from fedmon.researcher.experiment.states import ResourceAction, ResourceState

_END_THEMSELVES = frozenset({"fedmon::Job", "fedmon::Aggregator", "fedmon::Collector", "local::Process"})
_MEASURE_WHEN_READY = frozenset({"fedmon::Node"})
NEW_GROUP = -1
"""The number of the group that does not exist yet; those of a controller are not negative."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the state of an experiment; whatever is null is not looked at.

    ``accepts`` tells whether the first of two resources would take a connection to the second. ``skips`` names the
    states that resources of a type pass without stopping in them. ``problems`` were found by the resources themselves,
    such as a dataset that is missing.
    """

    rtypes: Collection[str] | None = None
    accepts: Callable[[int, int], bool] | None = None
    attributes: Mapping[int, Mapping[str, Any]] | None = None
    names: Mapping[int, str] = {}
    skips: Callable[[str], Collection[ResourceState]] | None = None
    ends_itself: Callable[[str], bool] = _END_THEMSELVES.__contains__
    measures_when_ready: Callable[[str], bool] = _MEASURE_WHEN_READY.__contains__
    problems: tuple[Problem, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a dry run found. ``waves`` holds the steps in the order in which they can come, those of one time together.

    ``stuck`` are the resources with a step that can never come.
    """

    state: State
    facts: Facts
    waves: tuple[tuple[Step, ...], ...]
    stuck: tuple[int, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems with which it cannot work."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The other problems."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @property
    def is_possible(self) -> bool:
        """Whether nothing is known that keeps it from working."""
        return not self.errors

    def check(self) -> None:
        """Raise ImpossiblePlanError where there are errors."""
        if self.errors:
            raise ImpossiblePlanError(self.errors)

    def __str__(self) -> str:
        from fedmon.researcher.experiment.plan_text import text_of

        return text_of(self)

    def text(self) -> str:
        """Return the plan for people."""
        return str(self)

    def dot(self) -> str:
        """Return the plan as a graph in the language of Graphviz."""
        from fedmon.researcher.experiment.drawing import dot_of, picture_of

        return dot_of(picture_of(self.state, names=self.facts.names, problems=self.problems))

    def svg(self) -> str:
        """Return the plan as a drawing. Raises MissingExtraError without matplotlib."""
        from fedmon.researcher.experiment.drawing import draw, picture_of

        return draw(picture_of(self.state, names=self.facts.names, problems=self.problems), "svg").decode()


def plan(
    state: State,
    facts: Facts | None = None,
    *,
    deploying: Collection[int] | None = None,
    wait_all_ready: bool = True,
) -> Plan:
    """Plan the rest of an experiment without doing any of it.

    ``deploying`` are the resources that are about to be deployed as one group, null: all that are in none. Those in no
    group and not among them are taken to be deployed by somebody later. Nothing is changed, and nothing is raised:
    `Plan.check` does.
    """
    facts = Facts() if facts is None else facts
    chosen = None if deploying is None else frozenset(deploying)

    def is_coming(resource: Resource) -> bool:
        return resource.group is not None or chosen is None or resource.guid in chosen

    def group_of(resource: Resource) -> int | None:
        if resource.group is None:
            return NEW_GROUP if wait_all_ready else None
        group = state.groups.get(resource.group)
        return resource.group if group is not None and group.wait_all_ready else None

    found = Dependencies(
        state,
        is_coming=is_coming,
        group_of=group_of,
        ends_itself=facts.ends_itself,
        measures_when_ready=facts.measures_when_ready,
    )
    circles = [circle_problem(circle, found, facts.names) for circle in found.circles()]
    problems = [
        *_types(state, facts),
        *_connections(state, facts),
        *_conditions(state, facts, is_coming),
        *circles,
        *facts.problems,
    ]
    stopping = {
        guid for guid, one in state.resources.items() if any(a is ResourceAction.STOP for a, _ in one.conditions)
    }
    waves = [
        [step for step in wave if step.kind in {"deploy", "start"} or (step.kind == "stop" and step.guid in stopping)]
        for wave in found.waves
    ]
    return Plan(
        state=state,
        facts=facts,
        waves=tuple(tuple(sorted(wave)) for wave in waves if wave),
        stuck=tuple(sorted({step.guid for step in found.stuck if step.kind in {"deploy", "start", "stop"}})),
        problems=tuple(sorted(problems, key=lambda problem: problem.severity)),
    )


def _types(state: State, facts: Facts) -> Iterator[Problem]:
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


def _connections(state: State, facts: Facts) -> Iterator[Problem]:
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


def _conditions(state: State, facts: Facts, is_coming: Callable[[Resource], bool]) -> Iterator[Problem]:
    for resource in state.resources.values():
        if resource.state >= ResourceState.FAILED:
            continue
        for action, condition in resource.conditions:
            what = f"{action.name.lower()} of {called(resource.guid, facts.names, state)}"
            yield from _condition(state, facts, is_coming, condition, (resource.guid, what))
    for key, want in state.wants.items():
        for condition in want.conditions if want.attribute is not None else ():
            what = f"setting {want.attribute[0] if want.attribute else ''} of {called(key.guid, facts.names, state)}"
            yield from _condition(state, facts, is_coming, condition, (key.guid, what))


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


def called(guid: int, names: Mapping[int, str], state: State) -> str:
    """Return what people call a resource: its guid, with its name, or else its type."""
    resource = state.resources.get(guid)
    more = names.get(guid) or (resource.rtype if resource is not None else "")
    return f"resource {guid}{f' ({more})' if more else ''}"
