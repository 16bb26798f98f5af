"""Documents of experiments in files, and as TOML; a file's suffix says its format."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import tomlkit
from msgspec.structs import replace

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.files import write_whole
from fedmon.experiment import nepi as compat
from fedmon.experiment.document.description import Description
from fedmon.experiment.document.tables import from_tables, to_tables
from fedmon.experiment.errors import DescriptionError

MAX_BYTES = 32 * 2**20
PATHS = {
    "fedmon::Collector": ("storeDir",),
    "Collector": ("storeDir",),
    "fedmon::Job": ("inputs",),
    "fedmon::TrainingPlan": ("plan",),
    "local::Process": ("cwd",),
}
"""The attributes of types that are paths; but a plan may be its source, and inputs may be JSON."""


class SFormats(StrEnum):
    """The formats of documents; each is also the suffix of its files."""

    XML = "xml"
    TOML = "toml"


def read(path: Path | str, *, format: str | None = None) -> Description:  # noqa: A002 - NEPI's
    """Return the experiment in a file, whose paths are relative to the file's folder.

    The format is the one given, or the file's suffix. Raises DescriptionError with the name of the file, NotFoundError,
    StorageError, and InvalidInputError for an unknown format.
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
        found = from_toml(source) if kind is SFormats.TOML else from_xml(source)
    except DescriptionError as error:
        raise DescriptionError(f"{path}: {error}") from error
    return _with_paths(found, path.absolute().parent)


def write(description: Description, path: Path | str) -> Path:
    """Write an experiment to a file for its owner alone, whole or not at all, and return its path.

    Relative paths in it become absolute. Raises StorageError, and DescriptionError for a value that the format cannot
    hold.
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
    """Return an experiment as text. Raises DescriptionError for a value that the format cannot hold."""
    return to_toml(description) if kind is SFormats.TOML else to_xml(description)


def from_xml(source: bytes | str) -> Description:
    """Return the experiment of an XML text of fedmon or NEPI 6. Raises DescriptionError."""
    found: Description = compat("xml_files").from_xml(source)
    return found


def to_xml(description: Description) -> str:
    """Return an experiment as XML, from which `from_xml` makes the same. Raises DescriptionError."""
    text: str = compat("xml_files").to_xml(description)
    return text


def from_toml(source: bytes | str) -> Description:
    """Return the experiment of a TOML text. Raises DescriptionError."""
    try:
        raw = tomllib.loads(source.decode() if isinstance(source, bytes) else source)
    except RecursionError as error:
        raise DescriptionError("the TOML is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(f"this is not TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise DescriptionError(f"this is not UTF-8 text: {error}") from error
    return from_tables(raw)


def to_toml(description: Description) -> str:
    """Return an experiment as TOML for people, from which `from_toml` makes the same. Raises DescriptionError."""
    tables = to_tables(description)
    whole, resources = tomlkit.document(), tomlkit.aot()
    for each in tables.pop("resource", []):
        values = each.pop("attributes", {})
        table = _table(each)
        if values:
            table.append("attributes", tomlkit.item(values))
        resources.append(table)
    for name, about in tables.items():
        whole.append(name, _table(about))
    if resources:
        whole.append("resource", resources)
    text = tomlkit.dumps(whole)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - 30) : error.end + 10]
        raise DescriptionError(f"there is half of a character in {near!r}, which TOML cannot hold") from error
    return text


def _table(about: Mapping[str, Any]) -> Any:
    """Return a table whose nested tables and lists are inline."""
    table = tomlkit.table()
    for key, value in about.items():
        table.append(key, _inline(value))
    return table


def _inline(value: Any) -> Any:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({key: _inline(each) for key, each in value.items()})
        return table
    if not isinstance(value, list | tuple):
        return value
    array = tomlkit.array()
    array.extend(map(_inline, value))
    return array.multiline(len(value) > 1 and any(isinstance(each, str | dict) and len(each) > 8 for each in value))


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
            if isinstance(value, str) and value.lstrip()[:1] not in ("", "{") and "\n" not in value:
                attributes[name] = _below(folder, value)
        resources.append(replace(each, attributes=attributes))
    local_dir = description.local_dir and _below(folder, description.local_dir)
    return replace(description, local_dir=local_dir, resources=tuple(resources))


def _below(folder: Path, path: str) -> str:
    return path if path.startswith("~") else str(folder / path)
