"""A controller's experiment as a description, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec.structs import replace

from fedmon.common.errors import ConnectionFailedError, FedmonError, NotConnectedError
from fedmon.experiment.attributes import MASK, Attribute, Flags
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.description import (
    Description,
    FailurePolicy,
    ResourceDescription,
    SetDescription,
    Topology,
    even,
)
from fedmon.experiment.errors import FederationUnreachableError
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.plan_problems import Facts, Problem
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.resource import ResourceManager


_NO_CONNECTION = (ConnectionFailedError, NotConnectedError, FederationUnreachableError)


@runtime_checkable
class Foreseeing(Protocol):
    """A resource that can say, before anything is done, what stands in its way."""

    def foreseen(self) -> list[Problem]:
        """Return what stands in its way as things are now."""
        ...


def description_of(
    ec: ExperimentController, *, topology: Topology | None, failures: FailurePolicy | None = None
) -> Description:
    """Return an experiment as documents keep it; credentials are masked."""
    folder, state = ec.folder, ec.snapshot
    return even(
        Description(
            exp_id=folder.exp_id,
            run_id=folder.run_id,
            nthreads=ec.max_running,
            local_dir=str(folder.local_dir),
            persist=ec.persist,
            topology=topology,
            failures=failures,
            resources=tuple(
                _resource(ec, state, ec.get_resource(guid)) for guid in ec.resources if guid in state.resources
            ),
        )
    )


def _resource(ec: ExperimentController, state: State, resource: ResourceManager) -> ResourceDescription:
    guid = resource.guid
    seen = state.resources[guid]
    wanted = [
        (want.attribute, want.conditions)
        for _, want in sorted(state.wants.items())
        if want.guid == guid and want.attribute is not None
    ]
    return ResourceDescription(
        guid=guid,
        rtype=seen.rtype,
        name=ec.names.get(guid, ""),
        attributes={each.name: MASK if each.is_masked else each.value for each in resource.changed_attributes()},
        connections=tuple(sorted(seen.connections)),
        conditions=tuple(
            (action, left) for action, condition in seen.conditions if (left := _left_of(condition, state)) is not None
        ),
        sets=tuple(
            SetDescription(
                attribute=name,
                value=MASK if resource.get_attribute_of_instance(name).is_masked else value,
                condition=None if not conditions else _left_of(conditions[0], state),
            )
            for (name, value), conditions in wanted
        ),
        traces=tuple(resource.enabled_traces()),
        retry=seen.retry,
        timeouts=seen.timeouts,
        state=seen.state,
        times=seen.times,
    )


def _left_of(condition: AnyCondition, state: State) -> AnyCondition | None:
    """Return a condition without the members that were taken out, for whom nobody waits; null without any left."""
    group = tuple(guid for guid in condition.group if guid in state.resources)
    at_least = None if condition.at_least is None else min(condition.at_least, len(group))
    return replace(condition, group=group, at_least=at_least) if group else None


def build(
    description: Description, ec: ExperimentController, *, masked: Mapping[int, Mapping[str, Any]] | None = None
) -> None:
    """Register what a description tells of, with the values that it masks, by guid.

    Raises what registering does, naming the resource.
    """
    for each in description.resources:
        stored = _settable(each.rtype, {**each.attributes, **(masked or {}).get(each.guid, {})})
        ec.register_stored(
            each.rtype, each.guid, name=each.name, stored=stored, timeouts=each.timeouts, retry=each.retry
        )
        for trace in each.traces:
            ec.get_resource(each.guid).enable_trace(trace)
    for each in description.resources:
        for other in each.connections:
            ec.register_connection(each.guid, other)
        for action, condition in each.conditions:
            ec.add_condition([each.guid], action, condition)
        for one in each.sets:
            if one.value == MASK and ec.get_resource(each.guid).get_attribute_of_instance(one.attribute).is_masked:
                continue  # its value is in no file
            ec.add_set([each.guid], one.attribute, one.value, one.condition)


def _settable(rtype: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that may be given to a new resource: none that it sets by itself, and no masked ones."""
    known = {each.name: each for each in ResourceFactory.get_resource_type(rtype).get_attributes()}
    return {name: value for name, value in attributes.items() if name not in known or is_given(known[name], value)}


def is_given(attribute: Attribute, value: Any) -> bool:
    """Tell whether a value of a document is for a new resource: the type does not set it by itself, and it is there."""
    is_of_type = attribute.has_flag(Flags.NoWrite) or attribute.has_flag(Flags.Reserved)
    return not is_of_type and not (attribute.is_masked and value == MASK)


def facts_of(ec: ExperimentController, state: State) -> Facts:
    """Return what the resources of an experiment know beside its state."""
    return Facts(
        rtypes=ResourceFactory.get_resource_types(),
        accepts=lambda one, other: ec.get_resource(one).valid_connection(other),
        attributes={
            guid: {each.name: each.value for each in ec.get_resource(guid).changed_attributes() if not each.is_masked}
            for guid in state.resources
            if guid in ec
        },
        names=ec.names,
        problems=tuple(_all_foreseen([ec.get_resource(guid) for guid in sorted(state.resources) if guid in ec])),
        are_removed=True,
    )


def _all_foreseen(resources: Iterable[ResourceManager]) -> Iterator[Problem]:
    """Return what stands in the way of those that are to come to something; where nobody can be asked, that, once."""
    from fedmon.experiment.types.linked import LinkedResource

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
