"""Documents of experiments in files, and as TOML; a file's suffix says its format."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from msgspec.structs import replace

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.files import write_whole
from fedmon.experiment import nepi as compat
from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.document.conditions import condition_table, text_of
from fedmon.experiment.document.description import Description, ResourceDescription, even, names_of
from fedmon.experiment.document.tables import from_tables
from fedmon.experiment.errors import DescriptionError
from fedmon.experiment.states import ResourceAction, ResourceState

MAX_BYTES = 32 * 2**20
_MAX_PARTS = 200
_MANY_PARTS = re.compile(rf"""(?:[\w"'-]+[ \t]*\.[ \t]*){{{_MAX_PARTS}}}""")
PATHS = {
    "fedmon::Collector": ("storeDir",),
    "Collector": ("storeDir",),
    "fedmon::TrainingPlan": ("plan",),
    "local::Process": ("cwd",),
}
"""The attributes of types that are paths."""


class SFormats(StrEnum):
    """The formats of documents; each is also the suffix of its files."""

    XML = "xml"
    TOML = "toml"


def read(path: Path | str, *, format: str | None = None, nepi: int | None = None) -> Description:  # noqa: A002 - NEPI's
    """Return the experiment in a file, whose paths are relative to the file's folder.

    The format is the one given, or the file's suffix. ``nepi`` is that of `from_xml`. Raises DescriptionError with the
    name of the file, NotFoundError, StorageError, and InvalidInputError for an unknown format.
    """
    path = Path(path)
    kind = _format(path) if format is None else checked_format(format)
    try:
        with path.open("rb") as file:
            source = file.read(MAX_BYTES + 1)  # a device or a pipe would never end
    except FileNotFoundError as error:
        raise NotFoundError(f"file {path} not found") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        if len(source) > MAX_BYTES:
            raise DescriptionError(f"the file has more than {MAX_BYTES} bytes")
        found = from_toml(source) if kind is SFormats.TOML else from_xml(source, nepi=nepi)
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from error
    return _with_paths(found, path.absolute().parent)


def write(description: Description, path: Path | str) -> Path:
    """Write an experiment to a file for its owner alone, whole or not at all, and return its path.

    Relative paths in it become absolute. Raises DescriptionError for what the format cannot hold, and StorageError.
    """
    path = Path(path)
    write_whole(path, text_in(_format(path), _with_paths(description, Path.cwd())).encode(), mode=0o600)
    return path


def checked_format(name: object) -> SFormats:
    """Return a format by its name. Raises InvalidInputError."""
    if name not in list(SFormats):
        raise InvalidInputError(f"{name!r:.80} is not a format of documents; use one of: {', '.join(SFormats)}")
    return SFormats(str(name))


def text_in(kind: SFormats, description: Description) -> str:
    """Return an experiment as text. Raises DescriptionError for what the format cannot hold."""
    return to_toml(description) if kind is SFormats.TOML else to_xml(description)


def from_xml(source: bytes | str, *, nepi: int | None = None) -> Description:
    """Return the experiment of an XML text of fedmon or NEPI 6; ``nepi=3`` reads states as NEPI 3 counted them.

    Raises DescriptionError.
    """
    found: Description = compat("xml_files").from_xml(source, nepi=nepi)
    return found


def to_xml(description: Description) -> str:
    """Return an experiment as XML. Raises DescriptionError."""
    text: str = compat("xml_files").to_xml(description)
    return text


def from_toml(source: bytes | str) -> Description:
    """Return the experiment of a TOML text. Raises DescriptionError."""
    try:
        text = source.decode() if isinstance(source, bytes) else source
        # A key of many parts takes Python's reader time by the square of them.
        if any(line.count(".") >= _MAX_PARTS and _MANY_PARTS.search(line) for line in text.splitlines()):
            raise DescriptionError(f"the TOML has a name of more than {_MAX_PARTS} parts")
        raw = tomllib.loads(text)
    except RecursionError as error:
        raise DescriptionError("the TOML is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(f"this is not TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise DescriptionError(f"this is not UTF-8 text: {error}") from error
    return from_tables(raw)


def to_toml(description: Description) -> str:
    """Return an experiment as TOML for people, from which `from_toml` makes the same. Raises DescriptionError."""
    description = even(description)
    names = names_of(description)
    whole = tomlkit.document()
    about = {"id": description.exp_id, "run_id": description.run_id, "nthreads": description.nthreads}
    whole.append(
        "experiment", _table({**about, "local_dir": description.local_dir, "persist": description.persist or None})
    )
    if description.topology is not None:
        parts = msgspec.to_builtins(description.topology)
        lists = {name: _lines([_table(part, inline=True) for part in parts[name]]) for name in ("nodes", "edges")}
        whole.append("topology", _table({"kind": parts["kind"]} | lists))
    if description.failures is not None:
        quorums = [
            {"at_least": one.at_least, "of": [names.get(guid, guid) for guid in one.group] or None, "rtype": one.rtype}
            for one in description.failures.quorums
        ]
        quorums = [_table(one, inline=True) for one in quorums]
        whole.append("failures", _table({"policy": description.failures.policy, "quorums": quorums or None}))
    if description.resources:
        tables, later = tomlkit.aot(), {each.guid for each in description.resources}
        for resource in description.resources:
            # A connection is told by the later of both.
            tables.append(_resource(resource, [guid for guid in resource.connections if guid not in later], names))
            later.discard(resource.guid)
        whole.append("resource", tables)
    return tomlkit.dumps(whole)


def _resource(resource: ResourceDescription, connect: Sequence[int], names: Mapping[int, str]) -> Any:
    where = f"resource {resource.guid}"
    about: dict[str, Any] = {"name": resource.name or None, "guid": resource.guid, "type": resource.rtype}
    about["connect"] = _lines([names.get(guid, guid) for guid in connect])
    for action in ResourceAction:
        conditions = [_condition(one, names, where) for kind, one in resource.conditions if kind is action]
        about[action.name.lower()] = _lines(conditions)
    about["traces"] = _lines([_text(name, where) for name in resource.traces])
    sets = []
    for each in resource.sets:
        when = None if each.condition is None else _condition(each.condition, names, where)
        sets.append(_table({"attribute": each.attribute, "value": _value(each.value), "when": when}, inline=True))
    about["set"] = _lines(sets)
    about["state"] = None if resource.state is ResourceState.NEW else resource.state.name
    about["times"] = _filled({state.name: float(moment) for state, moment in resource.times})
    about["timeouts"] = _filled({verb: float(timeout_s) for verb, timeout_s in resource.timeouts.items()})
    retry = {verb: _filled(msgspec.structs.asdict(one)) for verb, one in resource.retry.items()}
    table = _table({**about, "retry": retry or None})
    if resource.attributes:
        table.append("attributes", _table({_text(n, where): _value(each) for n, each in resource.attributes.items()}))
    return table


def _condition(condition: AnyCondition, names: Mapping[int, str], where: str) -> Any:
    text = text_of(condition, names)
    if text is not None:
        return text
    return _filled({n: _text(part, where) for n, part in condition_table(condition, names).items()})


def _table(about: Mapping[str, Any], *, inline: bool = False) -> Any:
    table: Any = tomlkit.inline_table() if inline else tomlkit.table()
    for key, value in about.items():
        if value is not None:
            table.append(key, _text(value, key))
    return table


def _filled(about: Mapping[str, Any]) -> Any:
    return _table(about, inline=True) if about else None


def _lines(parts: Sequence[Any]) -> Any:
    """Return a list, on a line for each part if some are long; None if it is empty."""
    array = tomlkit.array()
    for part in parts:
        array.append(part)
    is_long = len(parts) > 1 and any(isinstance(part, str | dict) and len(part) > 8 for part in parts)
    return array.multiline(is_long) if parts else None


def _text(value: Any, where: str) -> Any:
    if isinstance(value, str) and not _has_form(value):
        raise DescriptionError(f"{where}: {value[:60]!r} has half of a character, which TOML cannot hold")
    return value


def _value(value: Any) -> Any:
    return value if _has_form(value) else _table({"json": json.dumps(value)}, inline=True)


def _has_form(value: Any) -> bool:
    """Tell whether TOML can hold a plain value as it is."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return list(value) != ["json"] and all(_has_form(key) and _has_form(each) for key, each in value.items())
    return all(map(_has_form, value)) if isinstance(value, list) else value is not None


def _format(path: Path) -> SFormats:
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in list(SFormats):
        raise InvalidInputError(f"{path} is not a document of an experiment: its name must end in .xml or .toml")
    return SFormats(suffix)


def _with_paths(description: Description, folder: Path) -> Description:
    """Return a description whose relative paths are those below a folder."""
    resources = []
    for each in description.resources:
        attributes = dict(each.attributes)
        for name in PATHS.get(each.rtype, ()):
            value = attributes.get(name)
            if isinstance(value, str) and value and "\n" not in value:  # a plan may be its source
                attributes[name] = _below(folder, value)
        resources.append(replace(each, attributes=attributes))
    local_dir = description.local_dir and _below(folder, description.local_dir)
    return replace(description, local_dir=local_dir, resources=tuple(resources))


def _below(folder: Path, path: str) -> str:
    return path if path.startswith("~") else str(folder / path)
