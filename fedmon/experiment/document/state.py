"""A description as a state that can be planned and drawn without a controller, and what it tells beside it."""

from __future__ import annotations

import itertools
from typing import Any

from immutables import Map

from fedmon.experiment.document.description import Description, ResourceDescription
from fedmon.experiment.situation import Resource, State, Want


def as_state(description: Description) -> State:
    """Return an experiment as it would be right after everything in it was registered."""
    numbers = itertools.count(1)
    resources = {each.guid: _resource(each) for each in description.resources}
    wants = {}
    for each in description.resources:
        for one in each.sets:
            key = (each.guid, f"set:{next(numbers)}")
            conditions = () if one.condition is None else (one.condition,)
            wants[key] = Want(key=key, since=0.0, conditions=conditions, attribute=(one.attribute, one.value))
    return State(resources=Map(resources), wants=Map(wants), numbers=next(numbers) - 1)


def attributes_of(description: Description) -> dict[int, dict[str, Any]]:
    """Return the attributes of each resource by its guid."""
    return {each.guid: each.attributes for each in description.resources}


def names_of(description: Description) -> dict[int, str]:
    """Return the names of those resources that have one by their guids."""
    return {guid: name for name, guid in description.names.items()}


def _resource(each: ResourceDescription) -> Resource:
    critical = each.attributes.get("critical", True)
    return Resource(
        guid=each.guid,
        rtype=each.rtype,
        critical=critical is not False,
        conditions=each.conditions,
        connections=frozenset(each.connections),
        attributes=Map(each.attributes),
        sets=("set",) if each.sets else (),
        timeouts=each.timeouts,
        retry=each.retry,
    )
