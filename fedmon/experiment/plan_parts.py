"""What resources lack without which their type can do nothing: attributes, and connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedmon.experiment.natures import Nature, Natures, is_kind
from fedmon.experiment.plan_facts import called
from fedmon.experiment.plan_problems import Problem, Severity
from fedmon.experiment.situation import Resource, State
from fedmon.experiment.states import ResourceAction, ResourceState


def missing_parts(
    resource: Resource, state: State, nature: Natures, attributes: Mapping[str, Any], names: Mapping[int, str]
) -> Iterator[Problem]:
    """Say what a resource that was not deployed lacks; what its deploy waits for may still bring it, so that warns."""
    mine = nature(resource.rtype)
    if resource.state >= ResourceState.READY or not (mine.attributes or mine.connections):
        return
    is_held = any(action is ResourceAction.DEPLOY for action, _ in resource.conditions)
    severity: Severity = "warning" if is_held else "error"
    who = called(resource.guid, names, state)
    for name in mine.attributes:
        if attributes.get(name) in (None, "") and resource.attributes.get(name) in (None, ""):
            yield _without(resource, name, who, severity, mine)
    for rtypes in mine.connections:
        others = filter(None, map(state.resources.get, resource.connections))
        if not any(is_kind(other.rtype, rtype, nature) for other in others for rtype in rtypes):
            text = f"{who} has no {' or '.join(rtypes)}: connect it to one"
            yield Problem(kind="missing-part", severity=severity, guids=(resource.guid,), text=text)


def _without(resource: Resource, name: str, who: str, severity: Severity, mine: Nature) -> Problem:
    if name == "traceName" and any(rtype.rpartition("::")[2] == "Collector" for rtype in mine.rtypes):
        text = f"{who} has no traceName, so there is nothing that it could collect"
        return Problem(kind="collector-without-trace", severity=severity, guids=(resource.guid,), text=text)
    text = f"{who} has no {name}: set that attribute"
    return Problem(kind="missing-part", severity=severity, guids=(resource.guid,), text=text)
