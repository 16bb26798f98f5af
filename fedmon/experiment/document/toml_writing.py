"""An experiment as TOML that a person reads and changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import tomlkit

from fedmon.experiment.conditions import AnyCondition, StateCondition
from fedmon.experiment.document.condition_text import text_of
from fedmon.experiment.document.description import (
    Description,
    ResourceDescription,
    SetDescription,
    Topology,
    even,
)
from fedmon.experiment.document.errors import ValueFormError
from fedmon.experiment.document.toml_tables import failures_table, has_form
from fedmon.experiment.states import ResourceAction, ResourceState


def to_toml(description: Description) -> str:
    """Return an experiment as TOML, from which `from_toml` makes the same description. Raises DescriptionError."""
    description = even(description)
    whole = tomlkit.document()
    about = {
        "id": description.exp_id,
        "run_id": description.run_id,
        "nthreads": description.nthreads,
        "local_dir": description.local_dir,
        "persist": description.persist or None,
    }
    whole.append("experiment", _table(about))
    if description.topology is not None:
        whole.append("topology", _topology(description.topology))
    if description.failures is not None:
        names = {guid: name for name, guid in description.names.items()}
        whole.append("failures", _table(failures_table(description.failures, names)))
    if description.resources:
        writer = _Writer(description)
        resources = tomlkit.aot()
        for resource in description.resources:
            resources.append(writer.table(resource))
        whole.append("resource", resources)
    return tomlkit.dumps(whole)


def _table(given: Mapping[str, Any], *, inline: bool = False) -> Any:
    table: Any = tomlkit.inline_table() if inline else tomlkit.table()
    for key, value in given.items():
        if value is not None:
            table.append(key, value if not isinstance(value, str) else _text(value, key))
    return table


def _text(text: str, where: str) -> str:
    if not has_form(text):
        raise ValueFormError(f"{where}: {text[:60]!r} has half of a character, which TOML cannot hold")
    return text


def _lines(parts: Sequence[Any]) -> Any:
    """Return a list, with a line for each part where there are several of them and one is long."""
    array = tomlkit.array()
    for part in parts:
        array.append(part)
    return array.multiline(len(parts) > 1 and any(isinstance(part, (str, dict)) and len(part) > 8 for part in parts))


class _Writer:
    def __init__(self, description: Description) -> None:
        self._names = {guid: name for name, guid in description.names.items()}
        self._guids = {resource.guid for resource in description.resources}
        self._told: set[int] = set()

    def table(self, resource: ResourceDescription) -> Any:
        """Return the table of a resource; a connection is told once, by the later of both."""
        where = f"resource {resource.guid}"
        connect = [guid for guid in resource.connections if guid in self._told or guid not in self._guids]
        self._told.add(resource.guid)
        given: dict[str, Any] = {"name": resource.name or None, "guid": resource.guid, "type": resource.rtype}
        if connect:
            given["connect"] = _lines([self._names.get(guid, guid) for guid in connect])
        for action in ResourceAction:
            conditions = [self._condition(each, where) for kind, each in resource.conditions if kind is action]
            given[action.name.lower()] = _lines(conditions) if conditions else None
        given["traces"] = _lines([_text(name, where) for name in resource.traces]) if resource.traces else None
        given["set"] = _lines([self._set(each, where) for each in resource.sets]) if resource.sets else None
        table = _table({**given, **_life(resource)})
        if resource.attributes:
            values = {_text(name, where): _value(value) for name, value in resource.attributes.items()}
            table.append("attributes", _table(values))
        return table

    def _condition(self, condition: AnyCondition, where: str) -> Any:
        text = text_of(condition, self._names)
        if text is not None:
            return text
        given: dict[str, Any] = {"group": [self._names.get(guid, guid) for guid in condition.group]}
        if isinstance(condition, StateCondition):
            given |= {"state": condition.state.name, "delay_s": float(condition.delay_s) or None}
        else:
            metric = condition.metric
            given |= {"metric": _text(metric.name, where), "comparison": metric.comparison, "value": metric.value}
            given["samples"] = metric.samples
        return _table({**given, "at_least": condition.at_least, "timeout_s": condition.timeout_s}, inline=True)

    def _set(self, each: SetDescription, where: str) -> Any:
        given = {"attribute": _text(each.attribute, where), "value": _value(each.value)}
        if each.condition is not None:
            given["when"] = self._condition(each.condition, where)
        return _table(given, inline=True)


def _life(resource: ResourceDescription) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if resource.state is not ResourceState.NEW:
        given["state"] = resource.state.name
    if resource.times:
        given["times"] = _table({state.name: float(moment) for state, moment in resource.times}, inline=True)
    if resource.timeouts:
        given["timeouts"] = _table({verb: float(one) for verb, one in resource.timeouts.items()}, inline=True)
    for verb, retry in resource.retry.items():
        given.setdefault("retry", {})[verb] = _table(msgspec.structs.asdict(retry), inline=True)
    return given


def _value(value: Any) -> Any:
    return value if has_form(value) else _table({"json": json.dumps(value)}, inline=True)


def _topology(topology: Topology) -> Any:
    told = msgspec.to_builtins(topology)
    for part in (*told["nodes"], *told["edges"]):
        for name in [name for name, value in part.items() if value in (None, (), [], {}, False) and "nid" not in name]:
            del part[name]
    table = _table({"kind": topology.kind})
    for name in ("nodes", "edges"):
        if told[name]:
            table.append(name, _lines([_table(part, inline=True) for part in told[name]]).multiline(multiline=True))
    return table
