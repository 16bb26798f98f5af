"""Attributes of the types of a federation that hold more than a word: JSON values, commands, lists of words, paths."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fedmon.common.errors import FedmonError
from fedmon.common.plan_source import parsed
from fedmon.experiment.attributes import Attribute, Flags
from fedmon.experiment.durations import seconds
from fedmon.experiment.errors import InvalidAttributeValueError


class CheckedAttribute(Attribute):
    """An attribute whose values a function checks and brings into the form that is kept; its ValueError says why not.

    What is kept are texts, numbers, truths, null, and lists and mappings of them, which documents and journals hold.
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - NEPI's name
        check: Callable[[Any], Any],
        form: str,
        *,
        flags: int | None = None,
        default: Any = None,
    ) -> None:
        self._check, self._form = check, form
        super().__init__(name, help, flags=flags, default=default)

    def checked(self, value: Any, *, resource: str = "") -> Any:
        """Return a value in the form that is kept. Raises InvalidAttributeValueError, naming ``resource``."""
        if value is None:
            return None
        try:
            return self._check(value)
        except (ValueError, TypeError, FedmonError) as error:
            raise InvalidAttributeValueError(
                self.name, value, self._form, resource=resource, reason=str(error)
            ) from error

    def takes(self) -> str:
        """Return in words which values it takes."""
        return self._form


def json_object(value: Any) -> dict[str, Any]:
    """Return a mapping of names to JSON values, from one or from its text."""
    found = _parsed(value)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"it is of type {type(found).__name__}")
    return dict(_plain(found))


def limits(value: Any) -> dict[str, Any]:
    """Return the limits of a job."""
    from fedmon.researcher.runs.inputs import checked_limits

    found = json_object(value)
    checked_limits(found)
    return found


def words(value: Any) -> list[str]:
    """Return a list of texts, from one, from its JSON text, or from one text with commas."""
    found = value
    if isinstance(value, str):
        found = _parsed(value) if value.lstrip().startswith("[") else [word.strip() for word in value.split(",")]
    if not isinstance(found, list | tuple) or not found or not all(isinstance(word, str) and word for word in found):
        raise ValueError("it is no list of texts")
    return [str(word) for word in found]


def command(value: Any) -> list[str]:
    """Return the words of a command; a single text is none, as nothing here splits it."""
    found = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    if isinstance(found, str):
        raise ValueError('no shell reads it: give the words as a list, such as ["ls", "-l"]')  # noqa: TRY004 - as below
    if not isinstance(found, list | tuple) or not found or not all(isinstance(word, str | Path) for word in found):
        raise ValueError("it is no list of texts")
    if any("\0" in str(word) for word in found) or not str(found[0]):
        raise ValueError("it has an empty first word, or a zero byte")
    return [str(word) for word in found]


def environment(value: Any) -> dict[str, str]:
    """Return variables of an environment."""
    found = json_object(value)
    for name, text in found.items():
        if not name or "=" in name or "\0" in name or not isinstance(text, str) or "\0" in text:
            raise ValueError(f"{name!r} is no variable with a text")
    return found


def path_text(value: Any) -> str:
    """Return the path of a file or folder."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("it is no path")
    return str(value)


def folder_path(value: Any) -> str:
    """Return the path of a folder, which may begin with the home of somebody."""
    found = path_text(value)
    try:
        Path(found).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return found


def inputs(value: Any) -> str | dict[str, Any]:
    """Return the path of a file, or a mapping of names to JSON values."""
    if isinstance(value, Path) or (isinstance(value, str) and not value.lstrip().startswith("{")):
        if Path(value).suffix not in (".npz", ".json"):
            raise ValueError(f"{str(value)!r} is no .npz or .json file")
        return str(value)
    return json_object(value)


def plan(value: Any) -> str:
    """Return the path of a plan, or its source where a class or an instance is given."""
    from fedmon.common.plan_source import load_source

    if not isinstance(value, str | Path):
        return load_source(value).source.decode("utf-8", "surrogateescape")
    if not str(value).strip():
        raise ValueError("it is empty")
    return str(value)


def is_source(text: str) -> bool:
    """Tell the source of a plan from the path of one."""
    return "\n" in text


def class_name(source: str) -> str:
    """Return the name of the last class of a source; "plan" where it has none."""
    try:
        names = [node.name for node in parsed(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError):
        names = []
    return names[-1] if names else "plan"


def inner_path(value: Any) -> str:
    """Return a path that does not lead out of the folder that it is in."""
    if not isinstance(value, str):
        raise ValueError(f"it is of type {type(value).__name__}")  # noqa: TRY004 - all refusals of values are these
    path = PurePosixPath(value)
    if not value or "\0" in value or path.is_absolute() or ".." in path.parts or path == PurePosixPath():
        raise ValueError("it does not name a place within the folder of the run")
    return str(path)


def file_name(value: Any) -> str:
    """Return the name of a file, without folders."""
    found = inner_path(value)
    if "/" in found:
        raise ValueError("it has parts of a path")
    return found


def duration(value: Any) -> str:
    """Return the text of a duration; a number is one of seconds."""
    text = f"{value}s" if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError(f"it is of type {type(value).__name__}")  # noqa: TRY004 - as above
    seconds(text)
    return text


def own(name: str, help: str, *, default: Any = None, **options: Any) -> Attribute:  # noqa: A002
    """Return an attribute that only the type itself sets."""
    return Attribute(name, help, flags=Flags.NoWrite, default=default, **options)


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None


def _plain(value: Any) -> Any:
    from fedmon.researcher.runs.inputs import checked_arguments

    return checked_arguments(value)
