"""Who can be held up by what: those that are deployed, whom they wait for, whom those wait for, and so on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fedmon.experiment.conditions import AnyCondition, MetricCondition
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.natures import Natures, needed
from fedmon.experiment.plan_waits import is_to_come
from fedmon.experiment.situation import Group, Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState


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
