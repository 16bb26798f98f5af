"""A dry run: what would happen in which order, and what could never happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec
from msgspec.structs import replace

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.dependencies import Dependencies, Step
from fedmon.experiment.plan_checks import (
    condition_problems,
    connection_problems,
    need_problems,
    type_problems,
)
from fedmon.experiment.plan_circles import circle_problem
from fedmon.experiment.plan_concerned import Concerned
from fedmon.experiment.plan_direction import go_one_way
from fedmon.experiment.plan_endings import ending_problems
from fedmon.experiment.plan_facts import Facts
from fedmon.experiment.plan_inputs import input_problems
from fedmon.experiment.plan_losses import loss_problems
from fedmon.experiment.plan_parts import missing_parts
from fedmon.experiment.plan_problems import SEVERITIES, ImpossiblePlanError, Problem
from fedmon.experiment.plan_waits import planned_waits
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState

NEW_GROUP = -1
"""The number of the group that does not exist yet; those of a controller are not negative."""


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
        """The problems with which it may work all the same."""
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
        from fedmon.experiment.plan_text import text_of

        return text_of(self)

    def text(self) -> str:
        """Return the plan for people."""
        return str(self)

    def dot(self) -> str:
        """Return the plan as a graph in the language of Graphviz."""
        from fedmon.experiment.drawing import dot_of, picture_of

        return dot_of(picture_of(self.state, names=self.facts.names, problems=self.problems))

    def svg(self) -> str:
        """Return the plan as a drawing. Raises MissingExtraError without matplotlib."""
        from fedmon.experiment.drawing import draw, picture_of

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
    found, is_coming = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready)
    circles = [circle_problem(circle, found, facts.names) for circle in found.circles()]
    in_circles = {pair for circle in circles for pair in zip(circle.guids, circle.guids[1:], strict=False)}
    problems = [
        *_abort(state),
        *type_problems(state, facts),
        *connection_problems(state, facts),
        *condition_problems(state, facts, is_coming),
        *need_problems(state, facts, is_coming),
        *input_problems(state, facts),
        *(problem for problem in ending_problems(state, facts) if problem.guids not in in_circles),
        *circles,
        *_possible_circles(state, facts, deploying, circles, wait_all_ready=wait_all_ready),
        *facts.problems,
    ]
    stopping = {
        guid for guid, one in state.resources.items() if any(a is ResourceAction.STOP for a, _ in one.conditions)
    }
    waves = [
        [step for step in wave if step.kind in {"deploy", "start"} or (step.kind == "stop" and step.guid in stopping)]
        for wave in (() if state.is_aborted else found.waves)
    ]
    return Plan(
        state=state,
        facts=facts,
        waves=tuple(tuple(sorted(wave)) for wave in waves if wave),
        stuck=tuple(sorted({step.guid for step in found.stuck if step.kind in {"deploy", "start", "stop"}})),
        problems=tuple(sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))),
    )


def refuse_impossible(
    state: State,
    *,
    deploying: Collection[int],
    group: int | None = None,
    wait_all_ready: bool = True,
    names: Mapping[int, str] | None = None,
    asked_for: AbstractSet[int] | None = None,
) -> None:
    """Refuse a deployment of what is known to be in vain, without asking anybody; cheap, for every one asks it.

    ``group`` is the number of the group that they come into, null for one of their own; ``asked_for`` are all that
    conditions ask for, null where nobody knows. Raises ImpossiblePlanError: with who lacks what his type cannot do
    without, who waits for others that are lost, and the path of each circle of resources that would wait for each other
    for ever.
    """
    facts = Facts(names=names or {}, are_removed=True)
    found = list(_impossible(state, facts, deploying))
    if found:
        raise ImpossiblePlanError(found)
    if asked_for is None or group is not None or _may_be_awaited(state, deploying, asked_for):
        refuse_circles(state, facts, deploying=deploying, group=group, wait_all_ready=wait_all_ready)


def refuse_circles(
    state: State,
    facts: Facts | None = None,
    *,
    deploying: Collection[int],
    group: int | None = None,
    wait_all_ready: bool = True,
) -> None:
    """Refuse a deployment with which resources would wait for each other for ever; cheap, too.

    Raises ImpossiblePlanError, with the path of each circle.
    """
    facts = Facts() if facts is None else facts
    group = group if group in state.groups else None
    concerned = Concerned(state, deploying, facts.nature, group)
    among = concerned.guids
    if not among or (not concerned.have_needs and go_one_way(state.resources, among)):
        return
    brief, _ = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready, group=group, among=among)
    if brief.takes:
        found, _ = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready, group=group)
        circles = [circle_problem(circle, found, facts.names) for circle in found.circles()]
        if circles:
            raise ImpossiblePlanError(circles)


def _impossible(state: State, facts: Facts, deploying: Collection[int]) -> Iterator[Problem]:
    chosen = [one for one in map(state.resources.get, deploying) if one is not None]
    natures = {rtype: facts.nature(rtype) for rtype in {one.rtype for one in chosen}}
    asking = {rtype for rtype, nature in natures.items() if nature.attributes or nature.connections}
    for resource in chosen if asking else ():
        if resource.rtype in asking:
            found = missing_parts(resource, state, facts.nature, resource.attributes, facts.names)
            yield from (problem for problem in found if problem.severity == "error")
    held = [one for one in chosen if one.conditions]
    asked = {id(condition): condition for one in held for _, condition in one.conditions}
    if any(_has_lost(condition, state) for condition in asked.values()):  # one for many, often
        for wait in planned_waits(state, facts.names, [one.guid for one in held]):
            yield from loss_problems(state, facts, wait)


def _may_be_awaited(state: State, deploying: Collection[int], asked_for: AbstractSet[int]) -> bool:
    """Tell whether anybody could wait for one of those that are deployed: a new circle leads through one of them."""
    if not asked_for.isdisjoint(deploying):
        return True
    chosen = map(state.resources.get, deploying)
    return any(one is not None and one.connections for one in chosen)


def _has_lost(condition: AnyCondition, state: State) -> bool:
    """Tell whether somebody whom a condition asks for may never be as it wants."""
    end = ResourceState.STOPPED if isinstance(condition, MetricCondition) else ResourceState.FAILED
    members = map(state.resources.get, condition.group)
    return any(member is None or member.state >= end for member in members)


def _abort(state: State) -> Iterator[Problem]:
    if state.is_aborted:
        text = f"the experiment was aborted, and nothing more comes of what waits: {state.level_reason}"
        yield Problem(kind="aborted", text=text)


def _possible_circles(
    state: State,
    facts: Facts,
    deploying: Collection[int] | None,
    known: Collection[Problem],
    *,
    wait_all_ready: bool,
) -> Iterator[Problem]:
    """Say which circles there are unless a resource whose type has code of its own ends by itself."""
    if not any(
        action is ResourceAction.STOP and facts.nature(resource.rtype).ending == "maybe"
        for resource in state.resources.values()
        for action, _ in resource.conditions
    ):
        return
    found, _ = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready, none_may_end=True)
    paths = {problem.guids for problem in known}
    for circle in found.circles():
        problem = circle_problem(circle, found, facts.names)
        if problem.guids not in paths:
            text = f"{problem.text}; only an end that comes by itself leads out of it"
            yield replace(problem, severity="warning", text=text)


def _dependencies(
    state: State,
    facts: Facts,
    deploying: Collection[int] | None,
    *,
    wait_all_ready: bool,
    group: int | None = None,
    among: Collection[int] | None = None,
    none_may_end: bool = False,
) -> tuple[Dependencies, Callable[[Resource], bool]]:
    chosen = None if deploying is None else frozenset(deploying)

    def is_coming(resource: Resource) -> bool:
        return resource.group is not None or chosen is None or resource.guid in chosen

    def group_of(resource: Resource) -> int | None:
        number = group if resource.group is None else resource.group
        if number is None:
            return NEW_GROUP if wait_all_ready else None
        found = state.groups.get(number)
        return number if found is not None and found.wait_all_ready else None

    found = Dependencies(
        state,
        is_coming=is_coming,
        group_of=group_of,
        nature=facts.nature,
        among=among,
        none_may_end=none_may_end,
    )
    return found, is_coming
