"""The dependency graph of an experiment: which step needs which, the order of all steps, and a circle as a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.errors import ExperimentError
from fedmon.experiment.events import COMES_TO, VERB_OF, ActionVerb
from fedmon.experiment.natures import nature, needed
from fedmon.experiment.situation import Group, Resource, State, is_met
from fedmon.experiment.states import ResourceState

DONE: Mapping[ActionVerb, ResourceState] = {verb: COMES_TO[verb] for verb in VERB_OF.values()}
"""The state that completes a verb."""
_VERB_TO = {
    wanted: next(verb for verb, state in DONE.items() if wanted <= state)
    for wanted in ResourceState
    if wanted <= ResourceState.STOPPED
}
NEW_GROUP = -1
"""The number of a group that is about to be deployed; those of a controller are not negative."""

ProblemKind = Literal[
    "unknown-resource", "unknown-type", "condition-cycle", "group-deadlock", "failed-resource", "impossible-quorum",
    "refused-connection", "not-stopped", "may-not-come", "missing-part", "wrong-attribute", "missing-dataset",
    "approval-needed", "offline-node", "not-asked", "aborted", "unknown-metric",
]  # fmt: skip
Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: an error makes the plan impossible, a warning may.

    ``guids`` are the resources concerned; of a circle, the path through it, which ends where it begins.
    """

    kind: ProblemKind
    severity: Severity = "error"
    guids: tuple[int, ...] = ()
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.text}"


class ImpossiblePlanError(ExperimentError, RuntimeError):
    """The experiment can never finish; ``problems`` says why, and the message has the first of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        told = [f"{one.kind}: {one.text}" for one in self.problems[:3]]
        if len(self.problems) > 3:
            told.append(f"{len(self.problems) - 3} more: see ec.plan() or `fedmon experiment check FILE`")
        super().__init__(f"the experiment cannot work: {'; '.join(told)}")


def titled(guid: int, state: State) -> str:
    """Return how messages name a resource: by guid, with its name or else its type."""
    resource = state.resources.get(guid)
    return f"resource {guid}" if resource is None else resource.title


def grouped(state: State, guids: Iterable[int], *, group: int = NEW_GROUP, wait_all_ready: bool = True) -> State:
    """Return a state in which those of some resources that are in no group have joined one, which may be new."""
    known, there = state.groups.get(group), filter(None, map(state.resources.get, guids))
    joining = {one.guid: replace(one, group=group) for one in there if one.group is None}
    if known is None:
        made = Group(members=tuple(joining), unready=0, wait_all_ready=wait_all_ready)
    else:
        made = replace(known, members=(*known.members, *joining))
    return replace(state, resources=state.resources.update(joining), groups=state.groups.insert(group, made))


def waits_of(resource: Resource, state: State) -> Iterator[tuple[str, str, AnyCondition]]:
    """Return each condition of a resource, with the name of the want that has it, and this want in words."""
    for action, condition in resource.conditions:
        yield VERB_OF[action], VERB_OF[action], condition
    for name in resource.sets:
        want = state.wants.get((resource.guid, name))
        if want is not None:  # else an error of the machine ended all wants
            for condition in want.conditions:
                yield name, want.words, condition


class Step(NamedTuple):
    """A verb of resource ``guid``; or a group that gets READY or a condition, under a number."""

    guid: int
    kind: ActionVerb | Literal["group", "condition"]


class Dependencies:
    """The steps still to come of ``roots`` (default: all resources), and all steps that those need.

    Resources in no group are deployed later, and block nothing. A resource that may end by itself is expected to.

    ``waves`` holds the verbs in the order in which they can come, ``stuck`` the steps that never can.
    """

    def __init__(self, state: State, roots: Iterable[int] = ()) -> None:
        self._state, self._resources = state, state.resources
        self._needs: dict[Step, list[Step]] = {}
        self._conditions: dict[int, AnyCondition] = {}
        self._missing: dict[Step, int] = {}
        """How many of its needs a quorum still waits for."""
        steps = [self._coming(guid, wanted) for guid in (roots or self._resources) for wanted in DONE.values()]
        while steps:
            step = steps.pop()
            if step is not None and step not in self._needs:
                self._needs[step] = list(dict.fromkeys(filter(None, self._needs_of(step))))
                steps += self._needs[step]
        self.waves: list[list[Step]] = []
        self.stuck = self._order()

    def circle(self) -> Problem | None:
        """Return a circle of steps that wait for each other, with its path, as a problem; None if there is none."""
        stuck = {step: [need for need in self._needs[step] if need in self.stuck] for step in sorted(self.stuck)}
        try:
            TopologicalSorter(stuck).prepare()
        except CycleError as error:
            return self._problem(error.args[1][:0:-1])
        return None

    # --- needs of steps -----------------------------------------------------------------------------------------------

    def _needs_of(self, step: Step) -> Iterator[Step | None]:
        if step.kind == "group":
            yield from (self._coming(guid, ResourceState.READY) for guid in self._state.groups[step.guid].members)
        elif step.kind == "condition":
            condition = self._conditions[step.guid]
            yield from (self._coming(guid, self._wanted(condition, guid)) for guid in condition.group)
        else:
            resource = self._resources[step.guid]
            if step.kind == "start":
                yield self._coming(step.guid, ResourceState.READY)
                if resource.group is not None and self._state.groups[resource.group].wait_all_ready:
                    yield Step(resource.group, "group")
            elif step.kind == "stop":
                yield self._coming(step.guid, ResourceState.STARTED)
            yield from map(self._condition, self._asked(resource, step.kind))

    def _asked(self, resource: Resource, verb: ActionVerb) -> list[AnyCondition]:
        """Return the conditions of a verb, and the needs that its type declares as conditions of number 0."""
        conditions = [condition for action, condition in resource.conditions if VERB_OF[action] == verb]
        found = list(needed(resource, verb, self._resources)) if resource.connections else []
        own = [StateCondition(number=0, group=(other.guid,), state=need.state) for need, other in found]
        if verb != "stop":
            return [*conditions, *own]
        mine = nature(resource.rtype)
        ends_freely = mine.ending == "always" and all(need.verb != "stop" for need in mine.needs)
        if ends_freely or mine.ending == "maybe":
            conditions = []
        elif own and conditions:
            return []  # whichever comes first ends it
        at_least = resource.attributes.get("atLeast")
        if own and isinstance(at_least, int):
            group = tuple(other.guid for _, other in found)
            own = [StateCondition(number=0, group=group, at_least=at_least, state=ResourceState.STOPPED)]
        return [*conditions, *own]

    def _coming(self, guid: int, wanted: ResourceState) -> Step | None:
        """Return the step that leads to a resource's state; None if it has reached it, or no known step does."""
        other = self._resources.get(guid)
        if other is None or other.state >= wanted or wanted > ResourceState.STOPPED or other.group is None:
            return None
        return Step(guid, _VERB_TO[wanted])

    def _condition(self, condition: AnyCondition) -> Step:
        """Return the step of a condition, and count the missing members of a quorum."""
        step = Step(id(condition), "condition")
        if step.guid in self._conditions:
            return step
        self._conditions[step.guid] = condition  # kept, so that its id is not used again
        if condition.at_least is not None or isinstance(condition, MetricCondition):
            missing = condition.needed - sum(self._is_there(condition, guid) for guid in condition.group)
            coming = len(set(filter(None, self._needs_of(step))))
            self._missing[step] = missing if 0 < missing <= coming else 0
        return step

    def _wanted(self, condition: AnyCondition, guid: int) -> ResourceState:
        if isinstance(condition, StateCondition):
            return condition.state
        other = self._resources.get(guid)
        is_early = other is not None and nature(other.rtype).measures_when_ready
        return ResourceState.READY if is_early else ResourceState.STARTED

    def _is_there(self, condition: AnyCondition, guid: int) -> bool:
        """Tell whether a member of a group needs no further step."""
        other = self._resources.get(guid)
        if other is None or other.group is None:
            return other is not None
        is_measured = isinstance(condition, MetricCondition) and other.state < ResourceState.FAILED
        return is_met(condition, other) or (is_measured and self._wanted(condition, guid) <= other.state)

    def _order(self) -> set[Step]:
        """Fill the waves, and return the steps that never come."""
        # graphlib cannot wait for some of several steps, as quorums do.
        left = {step: self._missing.get(step, len(needs)) for step, needs in self._needs.items()}
        waiting: dict[Step, list[Step]] = {}
        for step, needs in self._needs.items():
            for need in needs:
                waiting.setdefault(need, []).append(step)
        ready = [step for step, count in left.items() if not count]
        while ready:
            wave = []
            for step in ready:  # which grows: only a quorum that still misses members takes a wave
                del left[step]
                if step.kind == "condition" and not self._missing.get(step):
                    ready += _freed(step, waiting, left)
                else:
                    wave.append(step)
            self.waves.append(sorted(step for step in wave if step.kind in DONE))
            ready = [each for step in wave for each in _freed(step, waiting, left)]
        return set(left)

    # --- circles in words ---------------------------------------------------------------------------------------------

    def _problem(self, circle: list[Step]) -> Problem:
        """Return a circle as a problem; its path begins with the lowest guid."""
        start = circle.index(min(step for step in circle if step.kind in DONE))
        circle = circle[start:] + circle[: start + 1]
        verbs = [(step, need) for step, need in pairwise(circle) if step.kind in DONE]
        hops = [self._hop(*hop, end) for hop, (end, _) in zip(verbs, verbs[1:] + verbs[:1], strict=True)]
        path = [guid for guid, _ in groupby(step.guid for step, _ in verbs)]
        path += [path[0]] * (path[-1] != path[0] or len(path) == 1)
        is_group = any(step.kind == "group" for step in circle)
        kind: ProblemKind = "group-deadlock" if is_group else "condition-cycle"
        return Problem(kind=kind, guids=tuple(path), text=", ".join(hops))

    def _hop(self, step: Step, need: Step, end: Step) -> str:
        who, whom = (titled(guid, self._state) for guid in (step.guid, end.guid))
        if need.kind == "group":
            return f"{step.kind} of {who} waits for its whole group to be READY, including {whom}"
        if need.kind != "condition":
            return f"{step.kind} of {who} comes after its {end.kind}"
        condition = self._conditions[need.guid]
        wanted = condition.aim
        if len(condition.group) > 1 and (condition.at_least is not None or isinstance(condition, MetricCondition)):
            whom, wanted = f"{condition.needed} of {len(condition.group)} resources", f"{wanted}, including {whom}"
        if not condition.number:
            return f"{'end' if step.kind == 'stop' else step.kind} of {who} needs {whom} {wanted}"
        return f"{step.kind} of {who} waits for {whom} {wanted}"


def _freed(step: Step, waiting: Mapping[Step, list[Step]], left: dict[Step, int]) -> Iterator[Step]:
    """Count a step as done, and return the steps that waited for it alone."""
    for each in waiting.get(step, ()):
        if left.get(each):
            left[each] -= 1
            if not left[each]:
                yield each


def refuse_circles(
    state: State, *, deploying: Collection[int], group: int | None = None, wait_all_ready: bool = True
) -> None:
    """Refuse a deployment in which resources would wait for each other forever. Raises ImpossiblePlanError."""
    joined = None if group is None else state.groups.get(group)
    candidates = map(state.resources.get, (*deploying, *(() if joined is None else joined.members)))
    # Most resources of a large experiment wait for nothing.
    roots = [
        one.guid
        for one in candidates
        if one is not None and (one.conditions or (one.connections and nature(one.rtype).needs))
    ]
    if roots:
        state = grouped(state, deploying, group=NEW_GROUP if group is None else group, wait_all_ready=wait_all_ready)
        if circle := Dependencies(state, roots).circle():
            raise ImpossiblePlanError([circle])
