"""The tables of an experiment in TOML, and those of its values that TOML has no form for."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from fedmon.researcher.experiment.document.errors import ValueFormError
from fedmon.researcher.experiment.document.values import plain


class WholeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    experiment: dict[str, Any]
    topology: dict[str, Any] | None = None
    resource: list[dict[str, Any]] = []


class ExperimentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[experiment]``."""

    exp_id: str = msgspec.field(name="id")
    run_id: str | None = None
    nthreads: int | None = None
    local_dir: str | None = None
    persist: bool = False


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
