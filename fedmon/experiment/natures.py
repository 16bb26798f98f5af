"""Declarations of resource types, for plans and explanations: needs, ends, required parts, metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from fedmon.experiment.situation import Need, Resource

if TYPE_CHECKING:
    from fedmon.experiment.resource import ResourceManager

__all__ = ["Nature", "Natures", "Need", "is_kind", "lasts", "natures", "needed"]


class Nature(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The declarations of a type. ``rtypes`` are its name and those of its parents.

    ``ending`` tells whether its resources reach STOPPED without a stop; "maybe" if it has code for its start.
    Before a deploy all of ``attributes`` must be set, and one of each of ``connections`` must be there.
    """

    rtypes: frozenset[str]
    needs: tuple[Need, ...] = ()
    ending: Literal["always", "maybe", "never", "unknown"] = "unknown"
    attributes: tuple[str, ...] = ()
    connections: tuple[tuple[str, ...], ...] = ()
    measures_when_ready: bool = False


Natures = Callable[[str], Nature]


def natures() -> Natures:
    """Return a function that returns the nature of a type by name; it looks each up once."""
    return functools.cache(_nature_of)


def _nature_of(rtype: str) -> Nature:
    from fedmon.experiment.factory import ResourceFactory

    rclass = ResourceFactory.resource_types().get(rtype) or ResourceFactory.get_resource_types().get(rtype)
    if rclass is None:
        return Nature(rtypes=frozenset({rtype}))
    return Nature(
        rtypes=frozenset(vars(each)["_rtype"] for each in rclass.__mro__ if "_rtype" in vars(each)),
        needs=rclass._needs,  # noqa: SLF001 - declared by types, here and below
        ending="always" if rclass._ends_itself else "maybe" if rclass.overrides("start") else "never",  # noqa: SLF001
        attributes=tuple(each for each in rclass._required_attributes if _is_empty(rclass, each)),  # noqa: SLF001
        connections=rclass._required_connections,  # noqa: SLF001
        measures_when_ready=rclass._measures_when_ready,  # noqa: SLF001
    )


def needed(
    resource: Resource, verb: str, resources: Mapping[int, Resource], nature: Natures
) -> Iterator[tuple[Need, Resource]]:
    """Yield the resources that a verb of another waits for by its type, each with the need."""
    for need in nature(resource.rtype).needs:
        if need.verb != verb:
            continue
        if need.through and _connected(resource, need.of, resources, nature):
            continue
        found = [resource]
        for rtype in (*need.through, need.of):
            found = [other for each in found for other in _connected(each, rtype, resources, nature)]
        yield from ((need, other) for other in found if other.guid != resource.guid)


def lasts(resource: Resource, resources: Mapping[int, Resource], nature: Natures) -> bool:
    """Tell whether a resource stays STARTED until it is stopped."""
    mine = nature(resource.rtype)
    ends = [need.of for need in mine.needs if need.verb == "stop"]
    if mine.ending == "always" and ends and not any((of,) in mine.connections for of in ends):
        return next(needed(resource, "stop", resources, nature), None) is None
    return mine.ending == "never"


def is_kind(rtype: str, of: str, nature: Natures) -> bool:
    """Tell whether a type is another one, or derived from it."""
    return of in nature(rtype).rtypes


def _connected(resource: Resource, of: str, resources: Mapping[int, Resource], nature: Natures) -> list[Resource]:
    others = (resources.get(guid) for guid in sorted(resource.connections))
    return [other for other in others if other is not None and is_kind(other.rtype, of, nature)]


def _is_empty(rclass: type[ResourceManager], name: str) -> bool:
    found = rclass._attributes.get(name)  # noqa: SLF001
    return found is not None and found.value in (None, "")
