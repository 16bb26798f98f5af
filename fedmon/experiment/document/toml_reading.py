"""An experiment out of TOML as a person writes it: resources by name, conditions as text."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

import msgspec

from fedmon.experiment.conditions import (
    COMPARE,
    AnyCondition,
    Comparison,
    Metric,
    MetricCondition,
    StateCondition,
)
from fedmon.experiment.document.condition_text import (
    FORMS,
    checked_condition,
    condition_from,
    member_named,
    state_named,
)
from fedmon.experiment.document.description import (
    Description,
    ResourceDescription,
    SetDescription,
    Topology,
    checked_name,
    even,
)
from fedmon.experiment.document.errors import (
    ConditionTextError,
    DescriptionError,
    DocumentTooLargeError,
    DuplicateResourceError,
    MalformedDocumentError,
)
from fedmon.experiment.document.toml_tables import (
    ConditionTable,
    ExperimentTable,
    ResourceTable,
    SetTable,
    WholeTable,
    as_table,
    failures_from,
    value_of,
)
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.states import ResourceAction, ResourceState

MAX_BYTES = 32 * 2**20
_MAX_PARTS = 200
_MANY_PARTS = re.compile(rf"""(?:[\w"'-]+[ \t]*\.[ \t]*){{{_MAX_PARTS}}}""")


def from_toml(source: bytes | str) -> Description:
    """Return the experiment of a TOML text. Raises DescriptionError, of which a subclass says what is wrong."""
    if len(source) > MAX_BYTES:
        raise DocumentTooLargeError(f"the TOML has more than {MAX_BYTES} bytes")
    try:
        text = source.decode() if isinstance(source, bytes) else source
        # A key of many parts takes Python's reader time by the square of them.
        if any(line.count(".") >= _MAX_PARTS and _MANY_PARTS.search(line) for line in text.splitlines()):
            raise DocumentTooLargeError(f"the TOML has a name of more than {_MAX_PARTS} parts")
        raw = tomllib.loads(text)
    except RecursionError as error:
        raise DocumentTooLargeError("the TOML is nested deeper than any experiment") from error
    except DocumentTooLargeError:
        raise
    except ValueError as error:
        raise MalformedDocumentError(f"this is not TOML: {error}") from error
    whole = as_table(WholeTable, raw, where="the experiment")
    tables = list(_with_guids(whole.resource))
    names = {table.name: guid for guid, table in tables if table.name}
    return even(
        Description(
            **msgspec.structs.asdict(as_table(ExperimentTable, whole.experiment, where="[experiment]")),
            topology=None if whole.topology is None else as_table(Topology, whole.topology, where="[topology]"),
            failures=None if whole.failures is None else failures_from(whole.failures, names),
            resources=tuple(_resource(guid, table, names) for guid, table in tables),
        )
    )


def _with_guids(resources: list[dict[str, Any]]) -> Iterator[tuple[int, ResourceTable]]:
    """Give those a guid that have none, as a controller does: one more than the greatest so far."""
    last = 0
    seen = set()
    for index, raw in enumerate(resources, 1):
        table = as_table(ResourceTable, raw, where=f"resource {raw.get('name', index)}")
        guid = last + 1 if table.guid is None else table.guid
        last = max(last, guid)
        if table.name:
            checked_name(table.name)
            if table.name in seen:
                raise DuplicateResourceError(f"two resources have the name {table.name!r}; each needs one of its own")
            seen.add(table.name)
        yield guid, table


def _resource(guid: int, table: ResourceTable, names: Mapping[str, int]) -> ResourceDescription:
    where = f"resource {table.name or guid}"
    return ResourceDescription(
        guid=guid,
        rtype=table.type,
        name=table.name,
        attributes={name: value_of(value, where=f"{where}: {name}") for name, value in table.attributes.items()},
        connections=tuple(member_named(other, names, where=where) for other in table.connect),
        conditions=tuple(_conditions(table, names, where)),
        sets=tuple(_set(as_table(SetTable, each, where=where), names, where) for each in table.set),
        traces=tuple(table.traces),
        retry={_verb(verb, where): as_table(Retry, each, where=where) for verb, each in table.retry.items()},
        timeouts={_verb(verb, where): float(timeout_s) for verb, timeout_s in table.timeouts.items()},
        state=state_named(table.state, where=where),
        times=tuple((state_named(name, where=where), float(moment)) for name, moment in table.times.items()),
    )


def _conditions(
    table: ResourceTable, names: Mapping[str, int], where: str
) -> Iterator[tuple[ResourceAction, AnyCondition]]:
    for action in ResourceAction:
        name = action.name.lower()
        for number, each in enumerate(getattr(table, name), 1):
            place = f"{where}: {name} condition {number}"
            yield action, _condition(each, names, number=number, where=place)


def _condition(each: object, names: Mapping[str, int], *, number: int, where: str) -> AnyCondition:
    if isinstance(each, str):
        return condition_from(each, names, number=number, where=where)
    if not isinstance(each, dict):
        raise ConditionTextError(
            f"{where}: the condition {str(each)[:60]!r} is no text and no table; write it as {FORMS}"
        )
    table: ConditionTable = as_table(ConditionTable, each, where=where)
    group = tuple(member_named(member, names, where=where) for member in table.group)
    given = {"number": number, "group": group, "at_least": table.at_least, "timeout_s": table.timeout_s}
    if table.state is not None and table.metric is None:
        state: ResourceState = state_named(table.state, where=where)
        made = StateCondition(**given, state=state, delay_s=table.delay_s)  # type: ignore[arg-type] # by their names
        return checked_condition(made, where=where)
    if table.metric is None or table.state is not None or table.value is None or table.comparison not in COMPARE:
        raise ConditionTextError(
            f"{where}: a condition needs either a state or a metric, and with a metric a value and a comparison, one "
            f"of {' '.join(COMPARE)}"
        )
    metric = Metric(
        name=table.metric,
        comparison=cast("Comparison", table.comparison),
        value=float(table.value),
        samples=table.samples,
    )
    told = MetricCondition(**given, metric=metric)  # type: ignore[arg-type] # by their names
    return checked_condition(told, where=where)


def _set(table: SetTable, names: Mapping[str, int], where: str) -> SetDescription:
    where = f"{where}: set {table.attribute}"
    condition = None if table.when is None else _condition(table.when, names, number=1, where=where)
    return SetDescription(attribute=table.attribute, value=value_of(table.value, where=where), condition=condition)


def _verb(name: str, where: str) -> Verb:
    if name not in get_args(Verb):
        raise DescriptionError(f"{where}: no verb {name[:60]!r}; one of: {', '.join(get_args(Verb))}")
    return cast("Verb", name)
