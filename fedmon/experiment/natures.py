"""What types say of themselves that plans and explanations go by: what they need, how they end, what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from fedmon.experiment.situation import Need, Resource
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.resource import ResourceManager

__all__ = ["Nature", "Natures", "Need", "is_kind", "lasts", "nature_of", "natures", "needed"]

_BEFORE_READY = frozenset({ResourceState.DISCOVERED, ResourceState.RESERVED, ResourceState.PROVISIONED})


class Nature(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of a type. ``rtypes`` are its name and those of the types that it derives from.

    ``ending``: whether its resources come to STOPPED without being told to; "maybe" where it has code of its own for
    its start. ``skips`` are the states that its deploy passes without stopping in them. Of ``attributes`` each has to
    be set, of each of ``connections`` one to be there, before it is deployed. ``measured_by`` are the types that tell
    its metrics, null where it may do so itself.
    """

    rtypes: frozenset[str]
    needs: tuple[Need, ...] = ()
    ending: Literal["always", "maybe", "never", "unknown"] = "unknown"
    skips: frozenset[ResourceState] = frozenset()
    attributes: tuple[str, ...] = ()
    connections: tuple[tuple[str, ...], ...] = ()
    measured_by: tuple[str, ...] | None = None
    measures_when_ready: bool = False

    def needs_at(self, verb: str) -> bool:
        """Tell whether a verb of it waits for anything by itself."""
        return any(need.verb == verb for need in self.needs)


Natures = Callable[[str], Nature]


def natures() -> Natures:
    """Return what tells the nature of types by their names, as they are now; what it found once it does not look up."""
    found: dict[str, Nature] = {}

    def nature(rtype: str) -> Nature:
        known = found.get(rtype)
        if known is None:
            rclass = _class_of(rtype)
            known = found[rtype] = Nature(rtypes=frozenset({rtype})) if rclass is None else nature_of(rclass)
        return known

    return nature


def nature_of(rclass: type[ResourceManager]) -> Nature:
    """Return what a type says of itself."""
    asks = _is_said_last(rclass, "_required_attributes", "do_deploy", "deploy")
    asks_connections = _is_said_last(rclass, "_required_connections", "do_deploy", "deploy")
    skips: frozenset[ResourceState] = frozenset()
    if rclass._passes is not None:  # noqa: SLF001 - what types say to us, here and below
        is_known = _is_said_last(rclass, "_passes", "do_deploy", "deploy")
        skips = _BEFORE_READY.difference(rclass._passes) if is_known else skips  # noqa: SLF001
    elif not rclass.overrides("deploy"):
        skips = _BEFORE_READY
    return Nature(
        rtypes=frozenset(vars(each)["_rtype"] for each in rclass.__mro__ if "_rtype" in vars(each)),
        needs=rclass._needs,  # noqa: SLF001
        ending="always" if rclass._ends_itself else "maybe" if rclass.overrides("start") else "never",  # noqa: SLF001
        skips=skips,
        attributes=tuple(each for each in rclass._required_attributes if _is_empty(rclass, each)) if asks else (),  # noqa: SLF001
        connections=rclass._required_connections if asks_connections else (),  # noqa: SLF001
        measured_by=rclass._measured_by,  # noqa: SLF001
        measures_when_ready=rclass._measures_when_ready,  # noqa: SLF001
    )


def needed(
    resource: Resource, verb: str, resources: Mapping[int, Resource], nature: Natures
) -> Iterator[tuple[Need, Resource]]:
    """Return whom a verb of a resource waits for by itself, each with the need that he is to meet."""
    for need in nature(resource.rtype).needs:
        if need.verb != verb:
            continue
        if need.attribute:
            named = resources.get(resource.attributes.get(need.attribute, -1))
            found = [] if named is None else [named]
        elif need.through and _connected(resource, need.of, resources, nature):
            continue
        else:
            found = [resource]
            for rtype in (*need.through, need.of):
                found = [other for each in found for other in _connected(each, rtype, resources, nature)]
        yield from ((need, other) for other in found if other.guid != resource.guid)


def lasts(resource: Resource, resources: Mapping[int, Resource], nature: Natures) -> bool:
    """Tell whether a resource is known to stay STARTED until it is told to stop: nothing in it brings its end."""
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


def _class_of(rtype: str) -> type[ResourceManager] | None:
    from fedmon.experiment.factory import ResourceFactory

    found = ResourceFactory.resource_types().get(rtype)
    return ResourceFactory.get_resource_types().get(rtype) if found is None else found


def _is_said_last(rclass: type[ResourceManager], name: str, *hooks: str) -> bool:
    """Tell whether a class says something below which no class has hooks of its own, which may make it untrue."""
    for each in rclass.__mro__:
        if name in vars(each):
            return True
        if any(hook in vars(each) for hook in hooks):
            return False
    return False


def _is_empty(rclass: type[ResourceManager], name: str) -> bool:
    """Tell whether a resource begins without a value of an attribute."""
    found = rclass._attributes.get(name)  # noqa: SLF001 - as above
    return found is not None and found.value in (None, "")
