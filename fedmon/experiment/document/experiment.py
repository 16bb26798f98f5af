"""A controller's experiment as a description, and back."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

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
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.situation import State

if TYPE_CHECKING:
    from pathlib import Path

    from fedmon.experiment.registry import Registry
    from fedmon.experiment.resource import ResourceManager


def description_of(
    registry: Registry,
    state: State,
    run_dir: Path,
    *,
    max_running: int | None,
    persist: bool,
    topology: Topology | None,
    failures: FailurePolicy | None,
) -> Description:
    """Return an experiment as documents hold it; credentials are masked."""
    resources = [_resource(registry.get(guid), state) for guid in registry if guid in state.resources]
    return even(
        Description(
            exp_id=run_dir.parent.name,
            run_id=run_dir.name,
            nthreads=max_running,
            local_dir=str(run_dir.parent.parent),
            persist=persist,
            topology=topology,
            failures=failures,
            resources=tuple(resources),
        )
    )


def _resource(resource: ResourceManager, state: State) -> ResourceDescription:
    seen = state.resources[resource.guid]
    sets = []
    for _, want in sorted(state.wants.items()):
        if want.guid == resource.guid and want.attribute is not None:
            attribute, value = want.attribute
            value = MASK if resource.get_attribute_of_instance(attribute).is_masked else value
            condition = left_of(want.conditions[0], state.resources) if want.conditions else None
            sets.append(SetDescription(attribute=attribute, value=value, condition=condition))
    conditions = [(action, left_of(condition, state.resources)) for action, condition in seen.conditions]
    return ResourceDescription(
        guid=resource.guid,
        rtype=seen.rtype,
        name=seen.name,
        attributes={each.name: MASK if each.is_masked else each.value for each in resource.changed_attributes()},
        connections=tuple(sorted(seen.connections)),
        conditions=tuple((action, left) for action, left in conditions if left is not None),
        sets=tuple(sets),
        traces=tuple(trace.name for trace in resource.get_traces_of_instance() if trace.enabled),
        retry=seen.retry,
        timeouts=seen.timeouts,
        state=seen.state,
        times=seen.times,
    )


def left_of(condition: AnyCondition, known: Container[int]) -> AnyCondition | None:
    """Return a condition without the members that are not known; None if none is left."""
    group = tuple(guid for guid in condition.group if guid in known)
    at_least = None if condition.at_least is None else min(condition.at_least, len(group))
    return replace(condition, group=group, at_least=at_least) if group else None


def build(description: Description, registry: Registry, *, masked: Mapping[int, Mapping[str, Any]]) -> None:
    """Register the resources of a description, with the values that it masks by guid.

    Raises the errors of registering, naming the resource.
    """
    for each in description.resources:
        known = {one.name: one for one in ResourceFactory.get_resource_type(each.rtype).get_attributes()}
        values = {**each.attributes, **masked.get(each.guid, {})}
        stored = {name: value for name, value in values.items() if name not in known or is_given(known[name], value)}
        registry.register(
            each.rtype, each.guid, name=each.name, stored=stored, timeouts=each.timeouts, retry=each.retry
        )
        for trace in each.traces:
            registry.get(each.guid).enable_trace(trace)
    for each in description.resources:
        for other in each.connections:
            registry.get(each.guid).register_connection(other)
        for action, condition in each.conditions:
            registry.add_condition([each.guid], action, condition)
        for one in each.sets:
            # A masked value is in no file.
            if one.value != MASK or not registry.get(each.guid).get_attribute_of_instance(one.attribute).is_masked:
                registry.add_set([each.guid], one.attribute, one.value, one.condition)


def is_given(attribute: Attribute, value: Any) -> bool:
    """Tell whether a document's value is for a new resource: its type does not set it, and it is not masked."""
    is_of_type = attribute.has_flag(Flags.NoWrite) or attribute.has_flag(Flags.Reserved)
    return not is_of_type and not (attribute.is_masked and value == MASK)
