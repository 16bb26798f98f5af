"""Documents of experiments in files; the ending of a file says its format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from fedmon.common.errors import InvalidInputError, NotFoundError, StorageError
from fedmon.common.files import write_whole
from fedmon.experiment.document import toml_reading, toml_writing, xml_elements, xml_reading, xml_writing
from fedmon.experiment.document.description import Description
from fedmon.experiment.document.errors import DescriptionError, DocumentTooLargeError

FORMATS = (".xml", ".toml")


class SFormats(StrEnum):
    """What an experiment can be saved as; the value is also the ending of the file."""

    XML = "xml"
    TOML = "toml"


def read(path: Path | str, *, format: str | None = None, nepi: int | None = None) -> Description:  # noqa: A002 - NEPI's
    """Return the experiment in a file; ``nepi`` says which NEPI wrote it, as `from_xml` takes it.

    The file is of the format that its name ends in, or of the one given. Raises DescriptionError, with the name of the
    file, NotFoundError, StorageError, and InvalidInputError for another format.
    """
    path = Path(path)
    if format is not None and format not in list(SFormats):
        raise InvalidInputError(f"no documents of the format {format!r:.80}; one of: {', '.join(SFormats)}")
    suffix = _format(path) if format is None else f".{SFormats(format).value}"
    try:
        with path.open("rb") as file:
            source = file.read(xml_elements.MAX_BYTES + 1)  # a device or a pipe would never end
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(source) > xml_elements.MAX_BYTES:
        raise DocumentTooLargeError(f"{path} has more than {xml_elements.MAX_BYTES} bytes")
    try:
        return toml_reading.from_toml(source) if suffix == ".toml" else xml_reading.from_xml(source, nepi=nepi)
    except DescriptionError as error:
        raise type(error)(f"{path}: {error}") from error


def write(description: Description, path: Path | str) -> Path:
    """Write an experiment to a file for its owner alone, whole or not at all, and return its path.

    Raises DescriptionError for what the format cannot hold, and StorageError.
    """
    path = Path(path)
    text = toml_writing.to_toml(description) if _format(path) == ".toml" else xml_writing.to_xml(description)
    write_whole(path, text.encode(), mode=0o600)
    return path


def _format(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInputError(f"{path} is no document of an experiment: its name must end in {' or '.join(FORMATS)}")
    return suffix
