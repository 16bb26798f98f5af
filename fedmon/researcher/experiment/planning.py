"""A dry run: what would happen in which order, and what could never happen."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from fedmon.researcher.experiment.dependencies import Dependencies, Step
from fedmon.researcher.experiment.plan_checks import condition_problems, connection_problems, type_problems
from fedmon.researcher.experiment.plan_circles import circle_problem
from fedmon.researcher.experiment.plan_direction import go_one_way
from fedmon.researcher.experiment.plan_endings import ending_problems
from fedmon.researcher.experiment.plan_facts import Facts
from fedmon.researcher.experiment.plan_problems import ImpossiblePlanError, Problem
from fedmon.researcher.experiment.situation import Resource, State
from fedmon.researcher.experiment.states import ResourceAction

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
    found, is_coming = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready)
    circles = [circle_problem(circle, found, facts.names) for circle in found.circles()]
    in_circles = {pair for circle in circles for pair in zip(circle.guids, circle.guids[1:], strict=False)}
    problems = [
        *type_problems(state, facts),
        *connection_problems(state, facts),
        *condition_problems(state, facts, is_coming),
        *(problem for problem in ending_problems(state, facts) if problem.guids not in in_circles),
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


def refuse_circles(
    state: State, facts: Facts | None = None, *, deploying: Collection[int], wait_all_ready: bool = True
) -> None:
    """Refuse a deployment with which resources would wait for each other for ever; cheap, for every deployment asks it.

    Raises ImpossiblePlanError, with the path of each circle.
    """
    facts = Facts() if facts is None else facts
    among = _concerned(state, deploying)
    if not among or go_one_way(state.resources, among):
        return
    brief, _ = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready, among=among)
    if brief.takes:
        found, _ = _dependencies(state, facts, deploying, wait_all_ready=wait_all_ready)
        raise ImpossiblePlanError(circle_problem(circle, found, facts.names) for circle in found.circles())


def _concerned(state: State, deploying: Collection[int]) -> Collection[int]:
    """Return those with conditions among who is deployed, whom they wait for, whom those wait for, and so on."""
    resources = state.resources
    held = [guid for guid in deploying if guid in resources and resources[guid].conditions]
    concerned = dict.fromkeys(held)
    groups: set[int] = set()
    while held:
        resource = resources[held.pop()]
        others = [guid for _, condition in resource.conditions for guid in condition.group]
        if resource.group is not None and resource.group not in groups:
            groups.add(resource.group)
            members = state.groups[resource.group].members
            others += [guid for guid in members if guid in resources and resources[guid].conditions]
        for guid in others:
            if guid in resources and guid not in concerned:
                concerned[guid] = None
                held.append(guid)
    return concerned


def _dependencies(
    state: State,
    facts: Facts,
    deploying: Collection[int] | None,
    *,
    wait_all_ready: bool,
    among: Collection[int] | None = None,
) -> tuple[Dependencies, Callable[[Resource], bool]]:
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
        among=among,
    )
    return found, is_coming
