"""What has to happen before what: the steps of a plan, and those that can never come because they wait in a circle.

A step is the deploy, start or stop of a resource, a deployment group that gets ready, or a condition that takes some of
several resources. A step comes when as many of its needs have come as it takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.natures import Natures, Need, needed
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verdicts import has_held

Kind = Literal["deploy", "start", "stop", "group", "condition"]
DONE: dict[Kind, ResourceState] = {
    "deploy": ResourceState.READY,
    "start": ResourceState.STARTED,
    "stop": ResourceState.STOPPED,
}
"""The state in which a step was done."""


class Step(NamedTuple):
    """Something that comes once; ``guid`` is the number of the group where it is one."""

    guid: int
    kind: Kind
    action: Kind = "deploy"
    number: int = 0


class Dependencies:
    """The steps that are still to come in an experiment, and what each of them needs.

    ``nature`` tells what types wait for by themselves and how they end. One that may end by itself is taken to, unless
    ``none_may_end``. Resources that ``is_coming`` denies are deployed by somebody at some time: nothing is known to
    hold them back.

    With ``among``, only these resources are looked at, and steps that nothing can hold back are left out: enough to
    tell whether there are circles, at a part of the cost.
    """

    def __init__(
        self,
        state: State,
        *,
        is_coming: Callable[[Resource], bool],
        group_of: Callable[[Resource], int | None],
        nature: Natures,
        among: Iterable[int] | None = None,
        none_may_end: bool = False,
    ) -> None:
        self._state = state
        self._is_coming, self._group_of = is_coming, group_of
        self._nature, self._none_may_end = nature, none_may_end
        self.needs: dict[Step, list[Step]] = {}
        self.takes: dict[Step, int] = {}
        self.causes: dict[tuple[Step, Step], AnyCondition | Need] = {}
        self.waves: list[list[Step]] = []
        self._is_brief = among is not None
        self._build(state.resources.values() if among is None else map(state.resources.__getitem__, among))
        self._solve()

    @property
    def stuck(self) -> set[Step]:
        """The steps that can never come."""
        return set(self.takes)

    def circles(self) -> Iterable[list[Step]]:
        """Return circles in which steps wait for each other, each as its steps in a row, one in each knot of them."""
        stuck, seen = self.stuck, set[Step]()
        for first in sorted(stuck):
            walk: dict[Step, None] = {}
            step = first
            while step not in seen and step not in walk:
                walk[step] = None
                step = next(need for need in self.needs[step] if need in stuck)
            if step in walk:
                yield self._shortest(step, stuck)
            seen.update(walk)

    def _shortest(self, start: Step, stuck: set[Step]) -> list[Step]:
        """Return a shortest circle through a step that is on one."""
        came: dict[Step, Step] = {}
        waiting = deque([start])
        while waiting:
            step = waiting.popleft()
            for need in self.needs[step]:
                if need == start:
                    path = [step]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return path[::-1]
                if need in stuck and need not in came:
                    came[need] = step
                    waiting.append(need)
        return [start]

    # --- the steps and their needs -----------------------------------------------------------------------------------

    def _build(self, resources: Iterable[Resource]) -> None:
        for resource in resources:
            if resource.state >= ResourceState.FAILED or not self._is_coming(resource):
                continue
            for kind in ("deploy", "start", "stop"):
                if resource.state < DONE[kind] and (kind == "start" or self._has(resource, kind)):
                    self._add(resource, kind)

    def _has(self, resource: Resource, kind: Kind) -> bool:
        """Tell whether a step is worth a look: whether anything could hold it back but the one before it."""
        if not self._is_brief or self._nature(resource.rtype).needs_at(kind):
            return True
        action = ResourceAction[kind.upper()]
        return any(mine is action for mine, _ in resource.conditions)

    def _add(self, resource: Resource, kind: Literal["deploy", "start", "stop"]) -> None:
        step = Step(resource.guid, kind)
        needs = self.needs[step] = []
        if kind == "start":
            self._need(step, resource.guid, ResourceState.READY)
            self._need_group(step, resource)
        elif kind == "stop":
            self._need(step, resource.guid, ResourceState.STARTED)
        else:
            self._add_to_group(resource, step)
        action = ResourceAction[kind.upper()]
        asked = [condition for mine, condition in resource.conditions if mine is action]
        by_itself = list(needed(resource, kind, self._state.resources, self._nature))
        if kind == "stop":
            ending = self._nature(resource.rtype).ending
            is_free = ending == "always" and not self._nature(resource.rtype).needs_at("stop")
            if is_free or (ending == "maybe" and not self._none_may_end):
                asked = []
            elif by_itself and asked:  # one of them is enough, and nobody knows which comes first
                asked, by_itself = [], []
        for condition in asked:
            self._need_condition(step, condition)
        for why, other in by_itself:
            need = self._need(step, other.guid, why.state)
            if need is not None:
                self.causes.setdefault((step, need), why)
        self.takes[step] = len(needs)

    def _need(self, step: Step, guid: int, wanted: ResourceState) -> Step | None:
        """Have a step need a state of a resource, where that is still to come."""
        other = self._state.resources.get(guid)
        if other is None or other.state >= wanted or wanted > ResourceState.STOPPED or not self._is_coming(other):
            return None
        kind: Kind = "start"
        if wanted <= ResourceState.READY:
            kind = "deploy"
            if not self._has(other, "deploy"):
                return None
        elif wanted is ResourceState.STOPPED and self._has(other, "stop"):
            kind = "stop"
        elif other.state >= ResourceState.STARTED:
            return None
        need = Step(guid, kind)
        self.needs[step].append(need)
        return need

    def _is_left_out(self, guid: int, wanted: ResourceState) -> bool:
        """Tell whether a resource comes to a state by a step that was left out, for nothing can hold that back."""
        other = self._state.resources.get(guid)
        if not self._is_brief or other is None or wanted > ResourceState.STOPPED:
            return False
        return other.state < wanted and self._is_coming(other)

    def _need_group(self, step: Step, resource: Resource) -> None:
        number = self._group_of(resource)
        if number is not None:
            group = Step(number, "group")
            self.needs.setdefault(group, [])
            self.takes.setdefault(group, 0)
            self.needs[step].append(group)

    def _add_to_group(self, resource: Resource, deploy: Step) -> None:
        number = self._group_of(resource)
        if number is not None:
            group = Step(number, "group")
            self.needs.setdefault(group, []).append(deploy)
            self.takes[group] = len(self.needs[group])

    def _need_condition(self, step: Step, condition: AnyCondition) -> None:
        if condition.at_least is None and not isinstance(condition, MetricCondition):
            for guid in condition.group:
                need = self._need(step, guid, condition.state)
                if need is not None:
                    self.causes.setdefault((step, need), condition)
            return
        some = Step(step.guid, "condition", step.kind, condition.number)
        self.needs[some] = []
        left_out = 0
        for guid in condition.group:
            need = self._need(some, guid, self._wanted(condition, guid))
            if need is not None:
                self.causes.setdefault((some, need), condition)
            else:
                left_out += self._is_left_out(guid, self._wanted(condition, guid))
        missing = condition.needed - self._there(condition) - left_out
        if 0 < missing <= len(self.needs[some]):
            self.takes[some] = missing
            self.needs[step].append(some)
            self.causes[step, some] = condition
        else:
            # Nothing of it is still to come in a known order: it holds, or what it needs comes from elsewhere.
            del self.needs[some]

    def _wanted(self, condition: AnyCondition, guid: int) -> ResourceState:
        if not isinstance(condition, MetricCondition):
            return condition.state
        other = self._state.resources.get(guid)
        is_early = other is not None and self._nature(other.rtype).measures_when_ready
        return ResourceState.READY if is_early else ResourceState.STARTED

    def _there(self, condition: AnyCondition) -> int:
        """Return how many of a group need no step any more."""
        there = 0
        for guid in condition.group:
            other = self._state.resources.get(guid)
            if other is None:
                continue
            if isinstance(condition, MetricCondition):
                is_there = has_held(condition, other) or (
                    self._wanted(condition, guid) <= other.state < ResourceState.FAILED
                )
            else:
                is_lost = other.state is ResourceState.FAILED and condition.state is not ResourceState.FAILED
                is_there = other.state >= condition.state and not is_lost
            there += is_there or not self._is_coming(other)
        return there

    def _solve(self) -> None:
        """Let steps come, wave after wave; what is left in ``takes`` never comes."""
        waiters: dict[Step, list[Step]] = {}
        for step, needs in self.needs.items():
            for need in needs:
                waiters.setdefault(need, []).append(step)
        wave = [step for step, count in self.takes.items() if not count]
        while wave:
            self.waves.append(wave)
            following = []
            for step in wave:
                del self.takes[step]
            for step in wave:
                for waiter in waiters.get(step, ()):
                    if waiter in self.takes:
                        self.takes[waiter] -= 1
                        if self.takes[waiter] == 0:
                            following.append(waiter)
            wave = following
