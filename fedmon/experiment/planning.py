"""A dry run: what would happen in which order, and what could never happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fedmon.experiment.conditions import AnyCondition, MetricCondition, StateCondition
from fedmon.experiment.dependencies import Dependencies, Step
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import Natures, Need, lasts, needed
from fedmon.experiment.plan_checks import (
    PlannedWait,
    condition_problems,
    connection_problems,
    is_to_come,
    loss_problems,
    missing_parts,
    need_problems,
    planned_waits,
    type_problems,
)
from fedmon.experiment.plan_problems import SEVERITIES, Facts, ImpossiblePlanError, Problem, called
from fedmon.experiment.situation import Group, Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState


def input_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say who takes something from another that no condition has him wait for, not even one of others."""
    for resource in state.resources.values():
        if not any(need.attribute for need in facts.nature(resource.rtype).needs):
            continue
        for action in ResourceAction:
            verb = VERB_OF[action]
            for need, other in needed(resource, verb, state.resources, facts.nature):
                is_due = need.attribute and is_to_come(resource, action) and other.state < need.state
                if is_due and other.guid not in _awaited(resource, state, facts.nature):
                    who, whom = (called(each.guid, facts.names, state) for each in (resource, other))
                    text = f"{verb} of {who} needs {whom} to be {need.state.name} ({need.attribute})"
                    text += ", and no condition has it wait for that"
                    yield Problem(kind="missing-part", severity="warning", guids=(resource.guid, other.guid), text=text)


def _awaited(resource: Resource, state: State, nature: Natures) -> set[int]:
    """Return whom a resource waits for in any way, or who waits for those."""
    found: set[int] = set()
    waiting = [resource]
    while waiting:
        each = waiting.pop()
        guids = {guid for _, condition in each.conditions for guid in condition.group}
        for action in ResourceAction:
            others = needed(each, VERB_OF[action], state.resources, nature)
            guids.update(other.guid for need, other in others if not need.attribute)
        for guid in guids - found:
            found.add(guid)
            other = state.resources.get(guid)
            waiting += [] if other is None else [other]
    return found


def ending_problems(state: State, facts: Facts) -> Iterator[Problem]:
    """Say who waits for resources to be STOPPED that nothing is known to stop; somebody may still do so by a call."""
    for wait in planned_waits(state, facts.names):
        yield from _condition(state, facts, wait)


def _condition(state: State, facts: Facts, wait: PlannedWait) -> Iterator[Problem]:
    condition = wait.condition
    if not isinstance(condition, StateCondition) or condition.state is not ResourceState.STOPPED:
        return
    members = [state.resources[guid] for guid in condition.group if guid in state.resources]
    lasting = [member for member in members if _lasts(member, state, facts)]
    if len(condition.group) - len(lasting) >= condition.needed:
        return
    for member in lasting:
        who = called(member.guid, facts.names, state)
        text = f"{wait.what} waits for {who} to be STOPPED, but its type stays STARTED until a stop or its release"
        yield Problem(kind="not-stopped", severity="warning", guids=(wait.guid, member.guid), text=text)


def _lasts(resource: Resource, state: State, facts: Facts) -> bool:
    """Tell whether a resource is known to stay STARTED; a condition for its stop has it stopped when that holds."""
    actions = [action for action, _ in resource.conditions]
    if resource.state >= ResourceState.STOPPED or ResourceAction.STOP in actions:
        return False
    return lasts(resource, state.resources, facts.nature)


_STATES = {"deploy": "READY", "start": "STARTED", "stop": "STOPPED"}


def circle_problem(circle: list[Step], found: Dependencies, names: Mapping[int, str]) -> Problem:
    """Return the problem that a circle is, with its path named; it begins with the lowest guid."""
    waiting = [index for index, step in enumerate(circle) if step.kind in _STATES]
    first = min(waiting, key=lambda index: circle[index])
    circle = circle[first:] + circle[:first]
    hops = []
    path = [circle[0].guid]
    for index, step in enumerate(circle):
        if step.kind not in _STATES:
            continue  # told together with the step before it
        need = circle[(index + 1) % len(circle)]
        after = circle[(index + 2) % len(circle)]
        end = need if need.kind in _STATES else after
        hops.append(_hop(step, need, end, found, names))
        if end.guid != path[-1] or len(circle) == 1:
            path.append(end.guid)
    if path[-1] != path[0]:
        path.append(path[0])
    is_group = any(step.kind == "group" for step in circle)
    return Problem(
        kind="group-deadlock" if is_group else "condition-cycle",
        guids=tuple(path) if len(path) > 1 else (path[0], path[0]),
        text=", ".join(hop for hop in hops if hop),
    )


def _hop(step: Step, need: Step, end: Step, found: Dependencies, names: Mapping[int, str]) -> str:
    who, whom = _called(step.guid, names), _called(end.guid, names)
    if need.kind == "group":
        return f"{step.kind} of {who} waits for its whole group to be READY, with {whom}"
    cause = found.causes.get((step, need))
    if need.kind == "condition":
        several = _several(cause) if isinstance(cause, MetricCondition | StateCondition) else ""
        return f"{step.kind} of {who} waits for {several}, with {whom}"
    if cause is None:
        return f"{step.kind} of {who} comes after its {end.kind}"
    if isinstance(cause, Need):
        how = f"its {cause.attribute}" if cause.attribute else "which it needs"
        what = f"the end of {who}" if step.kind == "stop" else f"{step.kind} of {who}"
        return f"{what} waits for {whom}, {how}, to be {cause.state.name}"
    assert isinstance(cause, StateCondition)  # noqa: S101 - a metric has a step of its own
    return f"{step.kind} of {who} waits for {whom} to be {cause.state.name}"


def _several(condition: AnyCondition) -> str:
    wanted = f"to be {condition.state.name}" if isinstance(condition, StateCondition) else f"with {condition}"
    if len(condition.group) == 1:
        return f"one resource {wanted}"
    return f"{condition.needed} of {len(condition.group)} resources {wanted}"


def _called(guid: int, names: Mapping[int, str]) -> str:
    return f"resource {guid} ({names[guid]})" if names.get(guid) else f"resource {guid}"


_NEVER_WAITED_FOR = -1


def go_one_way(resources: Mapping[int, Resource], among: Collection[int]) -> bool:
    """Tell whether the conditions of resources surely are without a circle; false where that is not plain.

    Deploying comes before starting, and that before stopping. Where nobody waits for a later one of these than his own,
    a circle could only be among equal ones, and there is none when all go to higher guids, or all to lower ones. Those
    who do not wait themselves do not count, for no circle leads through them.
    """
    waits: dict[ResourceAction, dict[int, list[AnyCondition]]] = {action: {} for action in ResourceAction}
    stages: dict[int, int] = {}
    for guid in among:
        for action, condition in resources[guid].conditions:
            stage = stages.get(id(condition))  # many have one condition together
            if stage is None:
                stage = stages[id(condition)] = _stage(condition, resources)
            if stage > action:
                return False
            if stage == action:
                waits[action].setdefault(guid, []).append(condition)
    return all(map(_is_ordered, waits.values()))


def _stage(condition: AnyCondition, resources: Mapping[int, Resource]) -> int:
    """Return the action, as a number, that brings what a condition asks for."""
    if isinstance(condition, MetricCondition) or condition.state is ResourceState.STARTED:
        return ResourceAction.START
    if condition.state <= ResourceState.READY:
        return ResourceAction.DEPLOY
    if condition.state > ResourceState.STOPPED:
        return _NEVER_WAITED_FOR
    members = filter(None, map(resources.get, condition.group))
    holds_back = any(ResourceAction.STOP in [action for action, _ in member.conditions] for member in members)
    # Whom no condition keeps from stopping stops some time after he started.
    return ResourceAction.STOP if holds_back else ResourceAction.START


def _is_ordered(waits: Mapping[int, Collection[AnyCondition]]) -> bool:
    spans: dict[int, tuple[int, int] | None] = {}
    ways: set[str] = set()
    for guid, conditions in waits.items():
        for condition in conditions:
            if id(condition) not in spans:
                members = [member for member in condition.group if member in waits]
                spans[id(condition)] = (min(members), max(members)) if members else None
            span = spans[id(condition)]
            if span is None:
                continue
            lowest, highest = span
            if lowest <= guid <= highest:
                return False
            ways.add("up" if guid < lowest else "down")
    return len(ways) < 2


class Concerned:
    """Those whom a deployment concerns: who waits for anything of ``deploying`` and ``group``, and whom those wait for.

    What holds already, what was done already, and whom nobody has deployed yet lead no further. ``have_needs`` tells
    whether one of them waits for another by itself, and not by a condition alone.
    """

    def __init__(self, state: State, deploying: Collection[int], nature: Natures, group: int | None) -> None:
        self._state, self._nature = state, nature
        self._seen_groups: set[int] = set()
        self._seen_conditions: set[int] = set()
        self.have_needs = False
        self.guids: dict[int, None] = {}
        resources = state.resources
        held = self._first_of(deploying)
        self._deploying = frozenset(deploying) if held or group is not None else frozenset()
        if group is not None:
            held += [resources[guid] for guid in self._of_group(state.groups[group])]
        self.guids.update(dict.fromkeys(one.guid for one in held))
        while held:
            for guid in self._whom(held.pop()):
                other = resources.get(guid)
                if other is not None and guid not in self.guids and self._is_coming(other):
                    self.guids[guid] = None
                    held.append(other)

    def _first_of(self, deploying: Collection[int]) -> list[Resource]:
        chosen = [one for one in map(self._state.resources.get, deploying) if one is not None]
        if any(self._nature(rtype).needs for rtype in {one.rtype for one in chosen}):
            return [one for one in chosen if self._may_wait(one)]
        return [one for one in chosen if one.conditions]

    def _may_wait(self, resource: Resource) -> bool:
        return bool(resource.conditions) or (bool(resource.connections) and bool(self._nature(resource.rtype).needs))

    def _is_coming(self, resource: Resource) -> bool:
        is_asked = resource.group is not None or resource.guid in self._deploying
        return is_asked and resource.state < ResourceState.STOPPED

    def _whom(self, resource: Resource) -> Iterator[int]:
        for action, condition in resource.conditions:
            # Many have one condition together, and its members are looked at once.
            if id(condition) not in self._seen_conditions and is_to_come(resource, action):
                self._seen_conditions.add(id(condition))
                yield from self._of_condition(condition)
        if self._nature(resource.rtype).needs:
            self.have_needs = True
            for action in ResourceAction:
                if is_to_come(resource, action):
                    for _, other in needed(resource, VERB_OF[action], self._state.resources, self._nature):
                        yield other.guid
        if resource.group is not None and resource.group not in self._seen_groups:
            self._seen_groups.add(resource.group)
            yield from self._of_group(self._state.groups[resource.group])

    def _of_condition(self, condition: AnyCondition) -> Iterator[int]:
        for guid in condition.group:
            other = self._state.resources.get(guid)
            if other is not None and (isinstance(condition, MetricCondition) or other.state < condition.state):
                yield guid

    def _of_group(self, group: Group) -> Iterator[int]:
        if group.wait_all_ready and group.unready:
            members = filter(None, map(self._state.resources.get, group.members))
            yield from (one.guid for one in members if self._may_wait(one))


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


_MANY = 12
_T = TypeVar("_T")


def text_of(plan: Plan) -> str:
    """Return a plan as lines of text."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    resources = plan.state.resources
    conditions = sum(len(resource.conditions) for resource in resources.values())
    yield f"{_counted(len(resources), 'resource')}, {_counted(conditions, 'condition')}"
    for number, wave in enumerate(plan.waves, 1):
        parts = [
            f"{kind} {_listed(plan, [step for step in wave if step.kind == kind])}"
            for kind in ("deploy", "start", "stop")
            if any(step.kind == kind for step in wave)
        ]
        yield f"{number:4}. {'; '.join(parts)}"
    if plan.stuck:
        shown = _shown(plan.stuck)
        who = (f"{guid} {_name(plan, guid)}".rstrip() for guid in shown)
        yield f"never comes to its end: {_joined(who, left=len(plan.stuck) - len(shown))}"
    yield from map(str, plan.problems)
    if plan.is_possible:
        yield f"it can work, with {_counted(len(plan.warnings), 'warning')}" if plan.warnings else "no problems found"
    else:
        yield f"it cannot work: {_counted(len(plan.errors), 'error')}"


def _listed(plan: Plan, steps: list[Step]) -> str:
    parts = []
    for step in _shown(steps):
        waits = [
            _wait(plan, condition, group)
            for action, condition in plan.state.resources[step.guid].conditions
            if action.name.lower() == step.kind and (group := _asked(plan, condition))
        ]
        who = _name(plan, step.guid) or plan.state.resources[step.guid].rtype
        parts.append(f"{step.guid} {who}" + (f" when {' and '.join(waits)}" if waits else ""))
    return _joined(parts, left=len(steps) - len(parts))


def _asked(plan: Plan, condition: AnyCondition) -> tuple[int, ...]:
    """Return whom a condition asks for; nobody waits for those who were taken out."""
    is_asked = plan.state.resources.__contains__
    return tuple(filter(is_asked, condition.group)) if plan.facts.are_removed else condition.group


def _wait(plan: Plan, condition: AnyCondition, group: tuple[int, ...]) -> str:
    quorum = "" if condition.at_least is None else f"{condition.at_least} of "
    shown = _shown(group)
    who = _joined((f"{guid} {_name(plan, guid)}".rstrip() for guid in shown), left=len(group) - len(shown))
    return f"{quorum}{who}{':' if isinstance(condition, MetricCondition) else ''} {condition}"


def _name(plan: Plan, guid: int) -> str:
    return plan.facts.names.get(guid, "")


def _shown(those: Sequence[_T]) -> Sequence[_T]:
    """Return those that are named: all, unless so many are left that a number says it better."""
    return those if len(those) <= _MANY + 2 else those[:_MANY]


def _joined(parts: Iterable[str], *, left: int) -> str:
    return ", ".join(parts) + (f" and {left} more" if left else "")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
