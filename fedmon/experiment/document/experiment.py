"""A controller's experiment as a description, and back."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fedmon.experiment.attributes import MASK, Flags
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.description import Description, ResourceDescription, SetDescription
from fedmon.experiment.errors import ExperimentError, UnknownGuidError
from fedmon.experiment.situation import State

if TYPE_CHECKING:
    from fedmon.experiment.registry import Registry
    from fedmon.experiment.resource import ResourceManager

Refusal = tuple[tuple[int, ...], ExperimentError]
"""The error of a part of a description, and the resources concerned."""


def resources_of(registry: Registry, state: State) -> tuple[ResourceDescription, ...]:
    """Return the resources of an experiment as documents hold them; credentials are masked."""
    return tuple(_resource(registry.get(guid), state) for guid in registry if guid in state.resources)


def _resource(resource: ResourceManager, state: State) -> ResourceDescription:
    seen = state.resources[resource.guid]
    sets = []
    for name in seen.sets:
        want = state.wants.get((resource.guid, name))
        if want is not None and want.attribute is not None:
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


def refusals(
    description: Description,
    registry: Registry,
    *,
    masked: Mapping[int, Mapping[str, Any]],
    is_strict: bool = False,
) -> Iterator[Refusal]:
    """Register the resources of a description without their wrong parts; yield the error of each part.

    With ``is_strict`` a resource that has a wrong value is not registered. ``masked`` are values by guid, which no
    document holds.
    """
    for each in description.resources:
        values, wrong = {**each.attributes, **masked.get(each.guid, {})}, list[Refusal]()
        fill = partial(_fill, values=values, wrong=None if is_strict else wrong)
        options: dict[str, Any] = {"name": each.name, "timeouts": each.timeouts, "retry": each.retry, "prepare": fill}
        wrong += _refused((each.guid,), registry.register, each.rtype, each.guid, **options)
        yield from wrong
    known = {each.guid for each in description.resources}
    for each in description.resources:
        if each.guid in registry:
            yield from _of_relations(each, registry, known)


def _of_relations(each: ResourceDescription, registry: Registry, known: Container[int]) -> Iterator[Refusal]:
    """Add traces, connections, conditions and settings to a registered resource."""
    resource, mine = registry.get(each.guid), (each.guid,)
    for trace in each.traces:
        yield from _refused(mine, resource.enable_trace, trace)
    conditions = [*(one for _, one in each.conditions), *(one.condition for one in each.sets if one.condition)]
    awaited = [guid for condition in conditions for guid in condition.group]
    for other in dict.fromkeys([*each.connections, *awaited]):
        if other not in known:
            text = f"{resource.name} is connected to or waits for resource {other}, which does not exist"
            yield (each.guid, other), UnknownGuidError(text)
    for other in each.connections:
        if other in registry and each.guid <= other:  # the other one lists it, too
            yield from _refused((each.guid, other), resource.register_connection, other)
    for action, condition in each.conditions:
        if (left := left_of(condition, registry)) is not None:
            yield from _refused(mine, registry.add_condition, mine, action, left)
    for one in each.sets:
        yield from _refused(mine, _add_set, registry, resource, one)


def _fill(resource: ResourceManager, *, values: Mapping[str, Any], wrong: list[Refusal] | None) -> None:
    """Give a new resource the values of a document; note the wrong ones, or raise if ``wrong`` is None."""
    for name, value in values.items():
        if wrong is None:
            _give(resource, name, value)
        else:
            wrong += _refused((resource.guid,), _give, resource, name, value)


def _give(resource: ResourceManager, name: str, value: Any) -> None:
    """Give a new resource a value of a document, unless its type sets it, or it is masked."""
    attribute = resource.get_attribute_of_instance(name)
    is_of_type = attribute.has_flag(Flags.NoWrite) or attribute.has_flag(Flags.Reserved)
    if not is_of_type and not (attribute.is_masked and value == MASK):
        resource.take_stored({name: value})


def _add_set(registry: Registry, resource: ResourceManager, one: SetDescription) -> None:
    # A masked value is in no file.
    if one.value != MASK or not resource.get_attribute_of_instance(one.attribute).is_masked:
        condition = one.condition and left_of(one.condition, registry)
        registry.add_set([resource.guid], one.attribute, one.value, condition)


def _refused(guids: tuple[int, ...], part: Callable[..., object], *args: Any, **options: Any) -> list[Refusal]:
    try:
        part(*args, **options)
    except ExperimentError as error:
        return [(guids, error)]
    return []
