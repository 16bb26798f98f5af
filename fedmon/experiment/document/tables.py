"""The tables of a document, checked and turned into a description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.conditions import (
    FORMS,
    ConditionTable,
    condition_from,
    condition_of,
    member_named,
    state_named,
)
from fedmon.experiment.document.description import (
    Description,
    FailurePolicy,
    Policy,
    QuorumDescription,
    ResourceDescription,
    SetDescription,
    Topology,
    even,
)
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.states import ResourceAction


class WholeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    experiment: dict[str, Any]
    topology: dict[str, Any] | None = None
    failures: dict[str, Any] | None = None
    resource: list[dict[str, Any]] = []


class ExperimentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[experiment]``."""

    exp_id: str = msgspec.field(name="id")
    run_id: str | None = None
    nthreads: int | None = None
    local_dir: str | None = None
    persist: bool = False


class QuorumTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A quorum of the resources ``of``, or of all of the type ``rtype``."""

    at_least: int
    of: list[str | int] = []
    rtype: str | None = None


class FailuresTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[failures]``; one quorum stands in the table itself, more in ``quorums``."""

    policy: Policy
    at_least: int | None = None
    of: list[str | int] = []
    rtype: str | None = None
    quorums: list[QuorumTable] = []


class SetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attribute that is set when a condition holds."""

    attribute: str
    value: Any
    when: Any = None


class ResourceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[resource]]``; ``deploy``, ``start`` and ``stop`` are conditions, as text or as tables."""

    type: str
    name: str = ""
    guid: int | None = None
    connect: list[str | int] = []
    deploy: list[Any] = []
    start: list[Any] = []
    stop: list[Any] = []
    traces: list[str] = []
    state: str = "NEW"
    times: dict[str, float] = {}
    timeouts: dict[Verb, float] = {}
    retry: dict[Verb, Retry] = {}
    attributes: dict[str, Any] = {}
    set: list[SetTable] = []


def from_tables(raw: Mapping[str, Any], *, strict: bool = True) -> Description:
    """Return the experiment of nested tables; without ``strict``, numbers may be texts. Raises DescriptionError."""
    return _Reader(strict=strict).description(raw)


class _Reader:
    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._names: dict[str, int] = {}

    def description(self, raw: Mapping[str, Any]) -> Description:
        whole = self._table(WholeTable, raw, "the experiment")
        about = self._table(ExperimentTable, whole.experiment, "[experiment]")
        tables: list[tuple[int, ResourceTable]] = []
        last = 0
        for index, each in enumerate(whole.resource, 1):
            table = self._table(ResourceTable, each, f"resource {each.get('name') or each.get('guid') or index}")
            guid = last + 1 if table.guid is None else table.guid  # as a controller counts
            last = max(last, guid)
            if table.name in self._names:
                raise DescriptionError(f"two resources have the name {table.name!r}; each needs its own")
            self._names.update({table.name: guid} if table.name else {})
            tables.append((guid, table))
        return even(
            Description(
                **msgspec.structs.asdict(about),
                topology=None if whole.topology is None else self._table(Topology, whole.topology, "[topology]"),
                failures=None if whole.failures is None else self._failures(whole.failures),
                resources=tuple(self._resource(guid, table) for guid, table in tables),
            )
        )

    def _table(self, kind: type[Any], raw: Mapping[str, Any], where: str) -> Any:
        try:
            return msgspec.convert(raw, kind, strict=self._strict)
        except msgspec.ValidationError as error:
            reason = str(error).replace("`", "'").replace("$.", "").replace("$", where)
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
            raise DescriptionError(f"{where}: {reason}; there is: {known}") from error

    def _resource(self, guid: int, table: ResourceTable) -> ResourceDescription:
        where = f"resource {table.name or guid}"
        return ResourceDescription(
            guid=guid,
            rtype=table.type,
            name=table.name,
            attributes={name: _value(value, f"{where}: {name}") for name, value in table.attributes.items()},
            connections=tuple(member_named(other, self._names, where) for other in table.connect),
            conditions=tuple(self._conditions(table, where)),
            sets=tuple(self._set(each, where) for each in table.set),
            traces=tuple(table.traces),
            retry=table.retry,
            timeouts=table.timeouts,
            state=state_named(table.state, where),
            times=tuple((state_named(name, where), moment) for name, moment in table.times.items()),
        )

    def _conditions(self, table: ResourceTable, where: str) -> Iterator[tuple[ResourceAction, AnyCondition]]:
        for action in ResourceAction:
            name = action.name.lower()
            for number, each in enumerate(getattr(table, name), 1):
                yield action, self._condition(each, number, f"{where}: {name} condition {number}")

    def _condition(self, raw: object, number: int, where: str) -> AnyCondition:
        if isinstance(raw, str):
            return condition_from(raw, self._names, number=number, where=where)
        if not isinstance(raw, dict):
            raise DescriptionError(f"{where}: {raw!r:.60} is neither text nor a table; write it like {FORMS}")
        table: ConditionTable = self._table(ConditionTable, raw, where)
        return condition_of(table, self._names, number=number, where=where)

    def _set(self, table: SetTable, where: str) -> SetDescription:
        where = f"{where}: set {table.attribute}"
        condition = None if table.when is None else self._condition(table.when, 1, where)
        return SetDescription(attribute=table.attribute, value=_value(table.value, where), condition=condition)

    def _failures(self, raw: Mapping[str, Any]) -> FailurePolicy:
        where = "[failures]"
        table: FailuresTable = self._table(FailuresTable, raw, where)
        quorums = list(table.quorums)
        if table.at_least is not None:
            quorums.insert(0, QuorumTable(at_least=table.at_least, of=table.of, rtype=table.rtype))
        elif table.of or table.rtype is not None:
            raise DescriptionError(f"{where}: of and rtype name a quorum: say with at_least how many it takes")
        made = []
        for each in quorums:
            group = tuple(member_named(member, self._names, where) for member in each.of)
            made.append(QuorumDescription(at_least=each.at_least, group=group, rtype=each.rtype))
        return FailurePolicy(policy=table.policy, quorums=tuple(made))


def _value(value: Any, where: str) -> Any:
    """Return a value; ``{json = "..."}`` is one that TOML has no form for."""
    if isinstance(value, dict) and list(value) == ["json"] and isinstance(value["json"], str):
        try:
            return json.loads(value["json"])
        except (ValueError, RecursionError) as error:
            raise DescriptionError(f"{where}: {value['json'][:60]} is not JSON") from error
    return value
