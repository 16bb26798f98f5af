"""The tables of an experiment in TOML, and those of its values that TOML has no form for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.experiment.document.condition_text import member_named
from fedmon.experiment.document.description import FailurePolicy, Policy, QuorumDescription
from fedmon.experiment.document.errors import DescriptionError, ValueFormError
from fedmon.experiment.document.values import plain


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
    """How many must not fail: ``of`` some resources, or of all of the type ``rtype``."""

    at_least: int
    of: list[str | int] = []
    rtype: str | None = None


class FailuresTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[failures]``; a quorum stands in the table itself, several in ``quorums``."""

    policy: Policy
    at_least: int | None = None
    of: list[str | int] = []
    rtype: str | None = None
    quorums: list[dict[str, Any]] = []


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
    timeouts: dict[str, float] = {}
    retry: dict[str, dict[str, Any]] = {}
    attributes: dict[str, Any] = {}
    set: list[dict[str, Any]] = []


class SetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An attribute that is set when a condition holds."""

    attribute: str
    value: Any
    when: Any = None


class ConditionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition that no text says, or that somebody wrote as a table."""

    group: list[str | int]
    state: str | None = None
    delay_s: float = 0.0
    at_least: int | None = None
    timeout_s: float | None = None
    metric: str | None = None
    comparison: str = ">"
    value: float | None = None
    samples: int = 1


def as_table(kind: type[Any], table: Mapping[str, Any], *, where: str) -> Any:
    """Return a table as what it is. Raises DescriptionError, which says what there may be in it."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "'").replace("$.", "").replace("$", where)
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise DescriptionError(f"{where}: {reason}; there is: {known}") from error


def value_of(value: Any, *, where: str) -> Any:
    """Return a value as an experiment has it; ``{json = "..."}`` is one that TOML has no form for."""
    if isinstance(value, dict) and list(value) == ["json"] and isinstance(value["json"], str):
        try:
            value = json.loads(value["json"])
        except (ValueError, RecursionError) as error:
            raise ValueFormError(f"{where}: {str(value)[:60]} is not JSON") from error
    return plain(value, where=where)


def has_form(value: Any) -> bool:
    """Tell whether TOML can hold a plain value as it is."""
    if isinstance(value, str):
        return value.isprintable() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return list(value) != ["json"] and all(has_form(key) and has_form(each) for key, each in value.items())
    return all(map(has_form, value)) if isinstance(value, list) else value is not None


_WHERE = "[failures]"


def failures_from(raw: Mapping[str, Any], names: Mapping[str, int]) -> FailurePolicy:
    """Return what failures mean; members of a quorum are names or guids. Raises DescriptionError."""
    table: FailuresTable = as_table(FailuresTable, raw, where=_WHERE)
    quorums = [as_table(QuorumTable, each, where=f"{_WHERE}: quorums") for each in table.quorums]
    if table.at_least is not None:
        quorums.insert(0, QuorumTable(at_least=table.at_least, of=table.of, rtype=table.rtype))
    elif table.of or table.rtype is not None:
        raise DescriptionError(f"{_WHERE}: of and rtype say whom a quorum is of: say with at_least how many it takes")
    made = tuple(
        QuorumDescription(
            at_least=each.at_least,
            group=tuple(member_named(member, names, where=_WHERE) for member in each.of),
            rtype=each.rtype,
        )
        for each in quorums
    )
    return FailurePolicy(policy=table.policy, quorums=made)


def failures_table(policy: FailurePolicy, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the table of a policy as plain values."""
    quorums = [_quorum(each, names) for each in policy.quorums]
    return {"policy": policy.policy, **(quorums[0] if len(quorums) == 1 else {"quorums": quorums} if quorums else {})}


def _quorum(quorum: QuorumDescription, names: Mapping[int, str]) -> dict[str, Any]:
    whom = {"of": [names.get(guid, guid) for guid in quorum.group]} if quorum.group else {"rtype": quorum.rtype}
    return {"at_least": quorum.at_least, **whom}
