"""The dependency graph of an experiment: which step needs which, in what order they come, and where they circle."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

from fedmon.experiment.check.problems import Facts, ImpossiblePlanError, Problem, ProblemKind
from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.natures import Natures, Need, needed
from fedmon.experiment.situation import Resource, State, has_held
from fedmon.experiment.states import ResourceAction, ResourceState

Kind = Literal["deploy", "start", "stop", "group", "condition"]
DONE: dict[Kind, ResourceState] = {
    "deploy": ResourceState.READY,
    "start": ResourceState.STARTED,
    "stop": ResourceState.STOPPED,
}
"""The state that completes a verb."""
NEW_GROUP = -1
"""Number of the group that is about to be deployed; those of a controller are not negative."""
_MOST_CIRCLES = 20


class Step(NamedTuple):
    """The deploy, start or stop of resource ``guid``; or, under its number, a group that gets READY or a condition."""

    guid: int
    kind: Kind


class Dependencies:
    """The steps still to come of ``roots`` (default: all resources), and all steps that those need.

    With ``roots``, deploys that nothing can hold back are left out: enough to find circles.

    ``deploying`` are deployed together, as members of ``group`` or of a new one (default: all that are in no group).
    A resource that is in no group and not deployed now counts as deployed later, so it blocks nothing. A resource that
    may end by itself is expected to, unless ``none_may_end``.

    ``waves`` holds the verbs in the order in which they can come, ``stuck`` the steps that never can.
    """

    def __init__(
        self,
        state: State,
        nature: Natures,
        *,
        roots: Iterable[int] | None = None,
        deploying: Collection[int] | None = None,
        group: int | None = None,
        wait_all_ready: bool = True,
        none_may_end: bool = False,
    ) -> None:
        self._resources, self._groups, self._nature = state.resources, state.groups, nature
        self._deploying = None if deploying is None else frozenset(deploying)
        self._group, self._wait_all_ready, self._none_may_end = group, wait_all_ready, none_may_end
        self._numbers: dict[int, int] = {}
        self.conditions: list[AnyCondition] = []
        self.needs: dict[Step, list[Step]] = {}
        self.causes: dict[tuple[Step, Step], Need] = {}
        self._quorums: dict[Step, int] = {}
        self._waiting: dict[Step, list[Step]] = {}
        self._is_brief = roots is not None
        self._expand(self._resources if roots is None else roots)
        self.waves: list[list[Step]] = []
        self.stuck = self._order()

    def is_coming(self, resource: Resource) -> bool:
        """Tell whether a resource is deployed, or about to be."""
        return resource.group is not None or self._deploying is None or resource.guid in self._deploying

    def circles(self, names: Mapping[int, str]) -> list[Problem]:
        """Return the circles of steps that wait for each other as problems, each with its path."""
        left = {step: [need for need in self.needs[step] if need in self.stuck] for step in sorted(self.stuck)}
        found: list[Problem] = []
        while left and len(found) < _MOST_CIRCLES:
            try:
                TopologicalSorter(left).prepare()
            except CycleError as error:
                circle = _shortest(min(error.args[1]), left)
            else:
                break
            found.append(_problem(circle, self, names))
            left = {step: [need for need in needs if need not in circle] for step, needs in left.items()}
        return sorted(found, key=lambda problem: problem.guids)

    def _expand(self, roots: Iterable[int]) -> None:
        waiting: list[Step] = []
        for guid in roots:
            resource = self._resources.get(guid)
            if resource is not None and resource.state < ResourceState.FAILED and self.is_coming(resource):
                kinds = (kind for kind, state in DONE.items() if resource.state < state)
                waiting += [Step(guid, kind) for kind in kinds if not self._is_free(resource, kind)]
        while waiting:
            step = waiting.pop()
            if step not in self.needs:
                self.needs[step] = list(dict.fromkeys(self._needs_of(step)))
                waiting += self.needs[step]

    def _needs_of(self, step: Step) -> Iterator[Step]:
        if step.kind == "group":
            yield from self._needs_of_group(step.guid)
            return
        if step.kind == "condition":
            condition = self.conditions[step.guid]
            yield from filter(None, (self._coming(guid, self._wanted(condition, guid)) for guid in condition.group))
            return
        resource = self._resources[step.guid]
        if step.kind == "start":
            yield from filter(None, (self._coming(step.guid, ResourceState.READY), self._group_of(resource)))
        elif step.kind == "stop":
            yield from filter(None, (self._coming(step.guid, ResourceState.STARTED),))
        conditions, own = self._asked(resource, step.kind)
        yield from filter(None, map(self._condition, conditions))
        for need, other in own:
            coming = self._coming(other.guid, need.state)
            if coming is not None:
                self.causes.setdefault((step, coming), need)
                yield coming

    def _asked(
        self, resource: Resource, kind: Literal["deploy", "start", "stop"]
    ) -> tuple[list[AnyCondition], list[tuple[Need, Resource]]]:
        """Return the conditions of a verb, and what it waits for by the nature of its type."""
        action = ResourceAction[kind.upper()]
        conditions = [condition for mine, condition in resource.conditions if mine is action]
        own = list(needed(resource, kind, self._resources, self._nature))
        if kind != "stop":
            return conditions, own
        nature = self._nature(resource.rtype)
        ends_freely = nature.ending == "always" and not nature.needs_at("stop")
        if ends_freely or (nature.ending == "maybe" and not self._none_may_end):
            conditions = []
        elif own and conditions:
            return [], []  # whichever comes first ends it
        at_least = resource.attributes.get("atLeast")
        if own and isinstance(at_least, int):
            group = tuple(other.guid for _, other in own)
            quorum = StateCondition(number=0, group=group, at_least=at_least, state=ResourceState.STOPPED)
            return [*conditions, quorum], []
        return conditions, own

    def _coming(self, guid: int, wanted: ResourceState) -> Step | None:
        """Return the step that brings a resource to a state; None if it is there, or nothing known brings it there."""
        other = self._resources.get(guid)
        if other is None or other.state >= wanted or wanted > ResourceState.STOPPED or not self.is_coming(other):
            return None
        kind = next(kind for kind, state in DONE.items() if wanted <= state)
        return None if kind == "deploy" and self._is_free(other, kind) else Step(guid, kind)

    def _is_free(self, resource: Resource, kind: Kind) -> bool:
        """Tell whether a step may be left out: nothing but an earlier step of its resource can hold it back."""
        if not self._is_brief or self._nature(resource.rtype).needs_at(kind):
            return False
        action = ResourceAction[kind.upper()]
        return all(mine is not action for mine, _ in resource.conditions)

    def _group_of(self, resource: Resource) -> Step | None:
        number = self._group if resource.group is None else resource.group
        group = None if number is None else self._groups.get(number)
        if group is not None and number is not None:
            return Step(number, "group") if group.wait_all_ready else None
        return Step(NEW_GROUP, "group") if self._wait_all_ready else None

    def _needs_of_group(self, number: int) -> Iterator[Step]:
        members = list(self._groups[number].members) if number in self._groups else []
        if number in (NEW_GROUP, self._group):
            chosen = self._resources if self._deploying is None else sorted(self._deploying)
            members += [guid for guid in chosen if guid in self._resources and self._resources[guid].group is None]
        yield from filter(None, (self._coming(guid, ResourceState.READY) for guid in members))

    def _condition(self, condition: AnyCondition) -> Step | None:
        """Return the step of a condition; None if it holds, or depends on nothing known to come."""
        number = self._numbers.setdefault(id(condition), len(self.conditions))
        if number < len(self.conditions):
            return Step(number, "condition")
        self.conditions.append(condition)  # kept, so that its id is not used again
        step = Step(number, "condition")
        if condition.at_least is None and isinstance(condition, StateCondition):
            return step
        missing = condition.needed - sum(self._is_there(condition, guid) for guid in condition.group)
        coming = set(self._needs_of(step))
        self._quorums[step] = missing if 0 < missing <= len(coming) else 0
        for need in coming:
            self._waiting.setdefault(need, []).append(step)
        return step

    def _wanted(self, condition: AnyCondition, guid: int) -> ResourceState:
        if isinstance(condition, StateCondition):
            return condition.state
        other = self._resources.get(guid)
        is_early = other is not None and self._nature(other.rtype).measures_when_ready
        return ResourceState.READY if is_early else ResourceState.STARTED

    def _is_there(self, condition: AnyCondition, guid: int) -> bool:
        """Tell whether a member of a group needs no step any more."""
        other = self._resources.get(guid)
        if other is None:
            return False
        is_free = other.state < self._wanted(condition, guid) <= ResourceState.READY and self._is_free(other, "deploy")
        if is_free or not self.is_coming(other):
            return True
        if isinstance(condition, MetricCondition):
            reached = self._wanted(condition, guid) <= other.state < ResourceState.FAILED
            return reached or has_held(condition, other)
        is_lost = other.state is ResourceState.FAILED and condition.state is not ResourceState.FAILED
        return other.state >= condition.state and not is_lost

    def _order(self) -> set[Step]:
        """Fill the waves, and return the steps that never come; groups and quorums take a wave of their own."""
        sorter: TopologicalSorter[Step] = TopologicalSorter()
        for step, needs in self.needs.items():
            sorter.add(step, *(() if step in self._quorums else needs))
        with contextlib.suppress(CycleError):  # the sorter still gives all steps that no circle blocks
            sorter.prepare()
        left = {step: count for step, count in self._quorums.items() if count}
        stuck, ready = set(self.needs), list(sorter.get_ready())
        while ready:
            wave = []
            while ready:
                step = ready.pop()
                if step.kind == "condition" and not self._quorums.get(step):
                    ready += self._come(step, sorter, left, stuck)
                elif step not in left:
                    wave.append(step)
            self.waves.append(sorted(step for step in wave if step.kind in DONE))
            ready = [following for step in wave for following in self._come(step, sorter, left, stuck)]
        return stuck

    def _come(
        self, step: Step, sorter: TopologicalSorter[Step], left: dict[Step, int], stuck: set[Step]
    ) -> Iterator[Step]:
        """Take a step as done, and return those that can come now; ``left`` counts down for quorums."""
        sorter.done(step)
        stuck.discard(step)
        for quorum in self._waiting.get(step, ()):
            if left.get(quorum, 0) > 0:
                left[quorum] -= 1
                if not left[quorum]:
                    del left[quorum]
                    yield quorum
        yield from sorter.get_ready()


def _shortest(start: Step, needs: dict[Step, list[Step]]) -> list[Step]:
    """Return a shortest circle through a step that is on one."""
    came: dict[Step, Step] = {}
    waiting = deque([start])
    while waiting:
        step = waiting.popleft()
        for need in needs[step]:
            if need == start:
                path = [step]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return path[::-1]
            if need not in came:
                came[need] = step
                waiting.append(need)
    return [start]


def refuse_circles(
    state: State,
    facts: Facts | None = None,
    *,
    deploying: Collection[int],
    group: int | None = None,
    wait_all_ready: bool = True,
) -> None:
    """Refuse a deployment in which resources would wait for each other forever. Raises ImpossiblePlanError."""
    facts = Facts() if facts is None else facts
    joined = state.groups.get(group) if group is not None else None
    candidates = [*deploying, *(() if joined is None else joined.members)]
    roots = [guid for guid in candidates if _may_wait(state.resources.get(guid), facts.nature)]
    if not roots:
        return
    graph = Dependencies(
        state,
        facts.nature,
        roots=roots,
        deploying=deploying,
        group=None if joined is None else group,
        wait_all_ready=wait_all_ready,
    )
    circles = graph.circles(facts.names)
    if circles:
        raise ImpossiblePlanError(circles)


def _may_wait(resource: Resource | None, nature: Natures) -> bool:
    if resource is None:
        return False
    return bool(resource.conditions or (resource.connections and nature(resource.rtype).needs))


def _problem(circle: list[Step], graph: Dependencies, names: Mapping[int, str]) -> Problem:
    """Return a circle as a problem; its path begins with the lowest guid."""
    first = min((step for step in circle if step.kind in DONE), default=circle[0])
    start = circle.index(first)
    circle = circle[start:] + circle[:start]
    path, hops = [first.guid], []
    for index, step in enumerate(circle):
        if step.kind in DONE:  # a group or a condition is told together with the step before it
            need = circle[(index + 1) % len(circle)]
            end = need if need.kind in DONE else circle[(index + 2) % len(circle)]
            hops.append(_hop(step, need, end, graph, names))
            if end.guid != path[-1]:
                path.append(end.guid)
    if path[-1] != path[0] or len(path) == 1:
        path.append(path[0])
    is_group = any(step.kind == "group" for step in circle)
    kind: ProblemKind = "group-deadlock" if is_group else "condition-cycle"
    return Problem(kind=kind, guids=tuple(path), text=", ".join(hops))


def _hop(step: Step, need: Step, end: Step, graph: Dependencies, names: Mapping[int, str]) -> str:
    who, whom = (f"resource {guid}{f' ({names[guid]})' if names.get(guid) else ''}" for guid in (step.guid, end.guid))
    if need.kind == "group":
        return f"{step.kind} of {who} waits for its whole group to be READY, with {whom}"
    if need.kind == "condition":
        condition = graph.conditions[need.guid]
        if condition.at_least is None and isinstance(condition, StateCondition):
            return f"{step.kind} of {who} waits for {whom} to be {condition.state.name}"
        return f"{step.kind} of {who} waits for {_several(condition)}, with {whom}"
    cause = graph.causes.get((step, need))
    if cause is None:
        return f"{step.kind} of {who} comes after its {end.kind}"
    how = f"its {cause.attribute}" if cause.attribute else "which it needs"
    what = f"the end of {who}" if step.kind == "stop" else f"{step.kind} of {who}"
    return f"{what} waits for {whom}, {how}, to be {cause.state.name}"


def _several(condition: AnyCondition) -> str:
    wanted = f"to be {condition.state.name}" if isinstance(condition, StateCondition) else f"with {condition}"
    if len(condition.group) == 1:
        return f"one resource {wanted}"
    return f"{condition.needed} of {len(condition.group)} resources {wanted}"
