"""What resources still wait for: the conditions of all that was not done yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.plan_facts import called
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState

_DONE = {
    ResourceAction.DEPLOY: ResourceState.READY,
    ResourceAction.START: ResourceState.STARTED,
    ResourceAction.STOP: ResourceState.STOPPED,
}


class PlannedWait(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One condition of something that is still to be done. ``name`` is that of its want, ``what`` it in words."""

    guid: int
    name: str
    what: str
    condition: AnyCondition


def is_to_come(resource: Resource, action: ResourceAction) -> bool:
    """Tell whether an action of a resource was not done yet."""
    return resource.state < _DONE[action]


def planned_waits(state: State, names: Mapping[int, str], guids: Iterable[int] | None = None) -> Iterator[PlannedWait]:
    """Return what all resources, or some, wait for still; of all, also the attributes that are to be set."""
    chosen = state.resources.values() if guids is None else filter(None, map(state.resources.get, guids))
    for resource in chosen:
        for action, condition in resource.conditions:
            if is_to_come(resource, action):
                name = VERB_OF[action]
                what = f"{name} of {called(resource.guid, names, state)}"
                yield PlannedWait(guid=resource.guid, name=name, what=what, condition=condition)
    for want in state.wants.values() if guids is None else ():
        for condition in want.conditions if want.attribute is not None else ():
            what = f"setting {want.attribute[0] if want.attribute else ''} of {called(want.guid, names, state)}"
            yield PlannedWait(guid=want.guid, name=want.name, what=what, condition=condition)
