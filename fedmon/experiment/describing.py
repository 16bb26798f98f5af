"""What the resources of an experiment know beside its state, for its plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedmon.common.errors import ConnectionFailedError, FedmonError, NotConnectedError
from fedmon.experiment.check.problems import Facts, Problem
from fedmon.experiment.errors import FederationUnreachableError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.registry import Registry
    from fedmon.experiment.resource import ResourceManager


_NO_CONNECTION = (ConnectionFailedError, NotConnectedError, FederationUnreachableError)


@runtime_checkable
class Foreseeing(Protocol):
    """A resource that can say, before anything is done, what stands in its way."""

    def foreseen(self) -> list[Problem]:
        """Return what stands in its way as things are now."""
        ...


def facts_of(registry: Registry, state: State) -> Facts:
    """Return what the resources of an experiment know beside its state."""
    return Facts(
        rtypes=ResourceFactory.get_resource_types(),
        accepts=lambda one, other: registry.get(one).valid_connection(other),
        attributes={
            guid: {each.name: each.value for each in registry.get(guid).changed_attributes() if not each.is_masked}
            for guid in state.resources
            if guid in registry
        },
        names=registry.names,
        problems=tuple(_all_foreseen([registry.get(guid) for guid in sorted(state.resources) if guid in registry])),
        are_removed=True,
    )


def _all_foreseen(resources: Iterable[ResourceManager]) -> Iterator[Problem]:
    """Return what stands in the way of those that are to come to something; where nobody can be asked, that, once."""
    from fedmon.experiment.types.base import LinkedResource

    own: list[LinkedResource] = []
    for each in resources:
        if each.state >= ResourceState.READY:
            continue
        if isinstance(each, LinkedResource):
            yield from each.missing()
            own += [] if _lacks(each) else [each]
        else:
            yield from _foreseen(each)
    for place, asking in enumerate(own):
        try:
            yield from asking.foreseen()
        except _NO_CONNECTION as error:  # each try takes its time, and comes to the same
            guids = tuple(each.guid for each in own[place:])
            yield Problem(kind="not-asked", severity="warning", guids=guids, text=f"cannot ask the federation: {error}")
            return
        except FedmonError as error:
            yield _not_asked(asking, error)


def _lacks(resource: ResourceManager) -> bool:
    """Tell whether there is nothing yet that anybody could be asked for; the plan says that."""
    return any(resource.get(name) in (None, "") for name in type(resource)._required_attributes)  # noqa: SLF001


def _foreseen(resource: ResourceManager) -> list[Problem]:
    if not isinstance(resource, Foreseeing):
        return []
    try:
        return resource.foreseen()
    except FedmonError as error:
        return [_not_asked(resource, error)]


def _not_asked(resource: ResourceManager, error: FedmonError) -> Problem:
    text = f"{resource.name} cannot be looked at: {error}"
    return Problem(kind="not-asked", severity="warning", guids=(resource.guid,), text=text)
