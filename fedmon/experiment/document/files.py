"""Documents of experiments in files, and as TOML; a file's suffix says its format."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

import tomlkit
from msgspec.structs import replace

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.files import at_home, write_whole
from fedmon.experiment import nepi
from fedmon.experiment.document.description import Description
from fedmon.experiment.document.tables import from_tables, to_tables
from fedmon.experiment.errors import DescriptionError, placed
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.resource import ResourceManager

MAX_BYTES = 32 * 2**20


class SFormats(StrEnum):
    """The formats of documents; each is also the suffix of its files."""

    XML = "xml"
    TOML = "toml"


def read(path: Path | str, *, format: str | None = None) -> Description:  # noqa: A002 - NEPI's
    """Return the experiment in a file, whose paths are relative to the file's folder.

    The format is the one given, or the file's suffix. Raises DescriptionError with the name of the file, NotFoundError,
    StorageError, and InvalidInputError for an unknown format.
    """
    path = at_home(path)
    kind = _format(path) if format is None else checked_format(format)
    try:
        with path.open("rb") as file:
            source = file.read(MAX_BYTES + 1)  # a device or a pipe would never end
    except FileNotFoundError as error:
        raise NotFoundError(f"file {path} not found") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    with placed(str(path)):
        if len(source) > MAX_BYTES:
            raise DescriptionError(f"the file has more than {MAX_BYTES} bytes")
        found: Description = from_toml(source) if kind is SFormats.TOML else nepi("xml_files").from_xml(source)
    return _with_paths(found, path.absolute().parent)


def write(description: Description, path: Path | str) -> Path:
    """Write an experiment to a file for its owner alone, whole or not at all, and return its path.

    Raises StorageError, and DescriptionError for a value that the format cannot hold.
    """
    path = Path(path)
    write_whole(path, text_in(_format(path), description).encode(), mode=0o600)
    return path


def checked_format(name: object) -> SFormats:
    """Return a format by its name. Raises InvalidInputError."""
    if name not in list(SFormats):
        raise InvalidInputError(f"{name!r:.80} is not a format of documents; use one of: {', '.join(SFormats)}")
    return SFormats(str(name))


def text_in(kind: SFormats, description: Description) -> str:
    """Return an experiment as text. Raises DescriptionError for a value that the format cannot hold."""
    text: str = to_toml(description) if kind is SFormats.TOML else nepi("xml_files").to_xml(description)
    return text


def from_toml(source: bytes | str) -> Description:
    """Return the experiment of a TOML text. Raises DescriptionError."""
    try:
        raw = tomllib.loads(source.decode() if isinstance(source, bytes) else source)
    except RecursionError as error:
        raise DescriptionError("the TOML is nested too deeply") from error
    except ValueError as error:
        raise DescriptionError(f"this is not TOML: {error}") from error
    return from_tables(raw)


def to_toml(description: Description) -> str:
    """Return an experiment as TOML for people, from which `from_toml` makes the same. Raises DescriptionError."""
    text = tomlkit.dumps(to_tables(description))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - 30) : error.end + 10]
        raise DescriptionError(f"there is half of a character in {near!r}, which TOML cannot hold") from error
    return text


def _format(path: Path) -> SFormats:
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in list(SFormats):
        raise InvalidInputError(f"{path} is not a document of an experiment: its name must end in .xml or .toml")
    return SFormats(suffix)


def _with_paths(description: Description, folder: Path) -> Description:
    """Return a description whose relative paths are those below a folder."""
    types, resources = ResourceFactory.get_resource_types(), []
    for each in description.resources:
        rclass, attributes = types.get(each.rtype, ResourceManager), dict(each.attributes)
        for name in filter(rclass.has_attribute, each.attributes):
            if rclass.get_attribute(name).is_path:
                attributes[name] = _below(folder, attributes[name])
        resources.append(replace(each, attributes=attributes))
    return replace(description, local_dir=_below(folder, description.local_dir), resources=tuple(resources))


def _below(folder: Path, value: Any) -> Any:
    is_relative = isinstance(value, str) and value.lstrip()[:1] not in ("", "{", "~") and "\n" not in value
    return str(folder / value) if is_relative else value
