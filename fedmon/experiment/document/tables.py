"""The nested tables of a document, checked and turned into a description, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from fedmon.experiment.attributes import is_json_text
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.conditions import (
    ConditionTable,
    condition_from,
    condition_of,
    condition_table,
    member_named,
    text_of,
)
from fedmon.experiment.document.description import (
    Description,
    FailurePolicy,
    ResourceDescription,
    SetDescription,
    Topology,
    even,
)
from fedmon.experiment.errors import DescriptionError, placed
from fedmon.experiment.events import VERB_OF
from fedmon.experiment.states import ResourceState

_QUORUM = ("at_least", "of", "rtype")
"""The keys of a quorum, which may stand in ``[failures]`` itself."""


class WholeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    experiment: dict[str, Any]
    topology: dict[str, Any] | None = None
    failures: dict[str, Any] | None = None
    resource: list[dict[str, Any]] = []


def from_tables(raw: Mapping[str, Any], *, strict: bool = True) -> Description:
    """Return the experiment of nested tables; without ``strict``, numbers may be texts. Raises DescriptionError."""
    return _Reader(strict=strict).description(raw)


class _Reader:
    """Puts guids for names and conditions for texts, and has msgspec check the rest."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._names: dict[str, int] = {}

    def description(self, raw: Mapping[str, Any]) -> Description:
        whole: WholeTable = self._checked(WholeTable, raw, "the experiment")
        # It is nthreads in files of NEPI, and in earlier ones.
        named = {"max_running" if key == "nthreads" else key: value for key, value in whole.experiment.items()}
        about: Description = self._checked(Description, named, "[experiment]")
        guids: list[int] = []
        last = 0
        for number, table in enumerate(whole.resource, 1):
            where = f"resource {table.get('name') or table.get('guid') or number}"
            # Without a guid it gets the next one, as in a controller.
            guid = self._checked(int, table.get("guid", last + 1), f"{where}: guid")
            self._names[self._checked(str, table.get("name", ""), f"{where}: name")] = guid
            guids.append(guid)
            last = max(last, guid)
        self._names.pop("", None)
        topology = whole.topology
        return even(
            replace(
                about,
                topology=None if topology is None else self._checked(Topology, topology, "[topology]"),
                failures=None if whole.failures is None else self._failures(whole.failures),
                resources=tuple(map(self._resource, guids, whole.resource)),
            )
        )

    def _checked(self, kind: Any, raw: object, where: str, *keys: str) -> Any:
        """Return a value as one of a kind; ``keys`` follow those of its table in errors."""
        try:
            return msgspec.convert(raw, kind, strict=self._strict)
        except msgspec.ValidationError as error:
            reason = str(error).replace("`array`", "a list").replace("`object`", "a table")
            reason = reason.replace("`", "'").replace("$.", "").replace("$", where)
            reason = re.sub("Object (contains unknown|missing required) field", r"\1 key", reason)
            is_table = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            known = [field.encode_name for field in msgspec.structs.fields(kind)] if is_table else []
            reason += f"; known are: {', '.join([*known, *keys])}" if known else ""
            raise DescriptionError(f"{where}: {reason}") from error

    def _resource(self, guid: int, raw: Mapping[str, Any]) -> ResourceDescription:
        # State and times tell of the run that was saved.
        table = {key: value for key, value in raw.items() if key not in ("state", "times")} | {"guid": guid}
        where = f"resource {raw.get('name') or guid}"
        conditions = [
            (action, self._condition(each, number, f"{where}: {name} condition {number}"))
            for action, name in VERB_OF.items()
            for number, each in enumerate(self._checked(list[Any], table.pop(name, []), f"{where}: {name}"), 1)
        ]
        sets = self._checked(list[dict[str, Any]], table.get("set", []), f"{where}: set")
        values = self._checked(dict[str, Any], table.get("attributes", {}), f"{where}: attributes")
        table |= {
            "connect": self._members(table.get("connect", []), f"{where}: connect"),
            "set": [self._set(each, where) for each in sets],
            "attributes": {name: _value(value, f"{where}: {name}") for name, value in values.items()},
        }
        found: ResourceDescription = self._checked(ResourceDescription, table, where, "which holds the rest")
        return replace(found, conditions=tuple(conditions))

    def _members(self, raw: object, where: str) -> list[int]:
        members = self._checked(list[str | int], raw, where)
        with placed(where):
            return [member_named(each, self._names) for each in members]

    def _condition(self, raw: object, number: int, where: str) -> AnyCondition:
        table: Any = raw if isinstance(raw, str) else self._checked(ConditionTable, raw, where)
        with placed(where):
            return (condition_from if isinstance(raw, str) else condition_of)(table, self._names, number=number)

    def _set(self, raw: Mapping[str, Any], where: str) -> SetDescription:
        where, table = f"{where}: set {raw.get('attribute', '')}", dict(raw)
        if table.get("when") is not None:
            table["when"] = self._condition(table["when"], 1, where)
        if "value" in table:
            table["value"] = _value(table["value"], where)
        found: SetDescription = self._checked(SetDescription, table, where)
        return found

    def _failures(self, raw: Mapping[str, Any]) -> FailurePolicy:
        where, table = "[failures]", dict(raw)
        own = {key: table.pop(key) for key in _QUORUM if key in table}
        quorums = self._checked(list[dict[str, Any]], table.get("quorums", []), where)
        table["quorums"] = [
            {**each, "of": self._members(each.get("of", []), where)} for each in ([own] if own else []) + quorums
        ]
        found: FailurePolicy = self._checked(FailurePolicy, table, where, *_QUORUM)
        return found


def _value(value: Any, where: str) -> Any:
    if is_json_text(value):
        try:
            return json.loads(value["json"])
        except (ValueError, RecursionError) as error:
            raise DescriptionError(f"{where}: {value['json'][:60]} is not JSON") from error
    return value


# --- and back ---------------------------------------------------------------------------------------------------------


def to_tables(description: Description) -> dict[str, Any]:
    """Return an experiment as nested tables, from which `from_tables` makes the same. Raises DescriptionError."""
    names = {each.guid: each.name for each in description.resources if each.name}
    later = {each.guid for each in description.resources}
    about = replace(description, topology=None, failures=None, resources=())
    tables: dict[str, Any] = {"experiment": msgspec.to_builtins(about)}
    if description.topology is not None:
        tables["topology"] = msgspec.to_builtins(description.topology)
    if description.failures is not None:
        tables["failures"] = msgspec.to_builtins(description.failures)
        for quorum in tables["failures"].get("quorums", ()):
            quorum.update({"of": [names.get(guid, guid) for guid in quorum["of"]]} if "of" in quorum else {})
    for each in description.resources:
        # The later of two resources holds their connection.
        connect = tuple(guid for guid in each.connections if guid not in later)
        tables.setdefault("resource", []).append(_resource_table(each, connect, names))
        later.discard(each.guid)
    return tables


def _resource_table(each: ResourceDescription, connect: tuple[int, ...], names: Mapping[int, str]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": each.name,
        "guid": each.guid,
        "type": each.rtype,
        "connect": [names.get(guid, guid) for guid in connect],
    }
    for action, name in VERB_OF.items():
        table[name] = [_condition(one, names) for mine, one in each.conditions if mine is action]
    table |= {
        "traces": list(each.traces),
        "set": [
            {"attribute": one.attribute, "value": _form(one.value)}
            | ({} if one.condition is None else {"when": _condition(one.condition, names)})
            for one in each.sets
        ],
        "state": "" if each.state is ResourceState.NEW else each.state.name,
        "times": {state.name: float(moment) for state, moment in each.times},
        "timeouts": {verb: float(timeout_s) for verb, timeout_s in each.timeouts.items()},
        "retry": msgspec.to_builtins(each.retry),
        "attributes": {name: _form(value) for name, value in each.attributes.items()},
    }
    return {key: value for key, value in table.items() if value or key == "guid"}


def _condition(condition: AnyCondition, names: Mapping[int, str]) -> str | dict[str, Any]:
    return text_of(condition, names) or condition_table(condition, names)


def _form(value: Any) -> Any:
    return value if _has_form(value) else {"json": json.dumps(value)}


def _has_form(value: Any) -> bool:
    """Tell whether TOML can hold a plain value as it is."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return not is_json_text(value) and all(_has_form(key) and _has_form(each) for key, each in value.items())
    return all(map(_has_form, value)) if isinstance(value, list) else value is not None
