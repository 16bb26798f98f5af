"""Declarations of resource types, for plans and explanations: needs, ends, required connections, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from fedmon.experiment.situation import Need, Resource

__all__ = ["Nature", "Need", "is_kind", "lasts", "nature", "needed"]


class Nature(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The declarations of a type. ``rtypes`` are its name and those of its parents.

    ``ending`` tells whether its resources reach STOPPED without a stop; "maybe" if it has code for its start.
    Before a deploy one of each of ``connections`` must be there.
    """

    rtypes: frozenset[str]
    needs: tuple[Need, ...] = ()
    ending: Literal["always", "maybe", "never", "unknown"] = "unknown"
    connections: tuple[tuple[str, ...], ...] = ()
    measures_when_ready: bool = False


def nature(rtype: str) -> Nature:
    """Return the nature of a type by name, also of one that is unknown here."""
    from fedmon.experiment.factory import ResourceFactory

    rclass = ResourceFactory.resource_types().get(rtype) or ResourceFactory.get_resource_types().get(rtype)
    if rclass is None:
        return Nature(rtypes=frozenset({rtype}))
    return Nature(
        rtypes=frozenset(vars(each)["_rtype"] for each in rclass.__mro__ if "_rtype" in vars(each)),
        needs=rclass._needs,  # noqa: SLF001 - declared by types, here and below
        ending="always" if rclass._ends_itself else "maybe" if rclass.overrides("start") else "never",  # noqa: SLF001
        connections=rclass._required_connections,  # noqa: SLF001
        measures_when_ready=rclass._measures_when_ready,  # noqa: SLF001
    )


def needed(resource: Resource, verb: str, resources: Mapping[int, Resource]) -> Iterator[tuple[Need, Resource]]:
    """Yield the resources that a verb of another waits for by its type, each with the need."""
    for need in nature(resource.rtype).needs:
        if need.verb != verb:
            continue
        if need.through and _connected(resource, need.of, resources):
            continue
        found = [resource]
        for rtype in (*need.through, need.of):
            found = [other for each in found for other in _connected(each, rtype, resources)]
        yield from ((need, other) for other in found if other.guid != resource.guid)


def lasts(resource: Resource, resources: Mapping[int, Resource]) -> bool:
    """Tell whether a resource stays STARTED until it is stopped."""
    mine = nature(resource.rtype)
    ends = [need.of for need in mine.needs if need.verb == "stop"]
    if mine.ending == "always" and ends and not any((of,) in mine.connections for of in ends):
        return next(needed(resource, "stop", resources), None) is None
    return mine.ending == "never"


def is_kind(rtype: str, of: str) -> bool:
    """Tell whether a type is another one, or derived from it."""
    return of in nature(rtype).rtypes


def _connected(resource: Resource, of: str, resources: Mapping[int, Resource]) -> list[Resource]:
    others = (resources.get(guid) for guid in sorted(resource.connections))
    return [other for other in others if other is not None and is_kind(other.rtype, of)]
