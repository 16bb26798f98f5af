"""Attributes that hold more than one word: JSON values, commands, lists of texts, paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from fedmon.common.files import at_home
from fedmon.experiment.attributes import Attribute, Flags, Types
from fedmon.experiment.durations import seconds


class CheckedAttribute(Attribute):
    """An attribute whose values a function checks and brings into the form that is kept; its error says why not.

    Kept are texts, numbers, booleans, None, and lists and mappings of them, which documents and journals can hold.
    ``is_path``: a text is a path, if it is neither JSON nor the source of a plan.
    """

    def __init__(
        self,
        name: str,
        text: str,
        check: Callable[[Any], Any],
        form: str,
        *,
        flags: int | None = None,
        default: Any = None,
        is_path: bool = False,
    ) -> None:
        self._check, self._form, self.is_path = check, form, is_path
        super().__init__(name, text, flags=flags, default=default)

    def takes(self) -> str:
        """Return in words which values it takes."""
        return self._form

    def _fitting(self, value: Any) -> Any:
        return None if value is None else self._check(value)


def own(name: str, text: str, *, default: Any = None, **options: Any) -> Attribute:
    """Return an attribute that only the type itself sets."""
    return Attribute(name, text, flags=Flags.NoWrite, default=default, **options)


def at_least(text: str) -> Attribute:
    """Return the attribute ``atLeast``: how many suffice."""
    return Attribute("atLeast", text, Types.Integer, Flags.Design, range=(1, 100_000))


def json_object(value: Any) -> dict[str, Any]:
    """Return a mapping of names to JSON values, given as one or as JSON."""
    from fedmon.researcher.runs.start import checked_arguments

    return checked_arguments(_parsed(value))


def words(value: Any) -> list[str]:
    """Return a list of texts, given as one, as JSON, or as one text with commas."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [word.strip() for word in value.split(",")]
    found = _texts(value)
    if "" in found:
        raise ValueError(f"word {found.index('') + 1} is empty")
    return found


def command(value: Any) -> list[str]:
    """Return the words of a command; one text is refused, because no shell splits it."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        raise TypeError("no shell reads it")
    found = _texts(value)
    if not found[0] or any("\0" in word for word in found):
        raise ValueError("its first word is empty" if not found[0] else "a word holds a zero byte")
    return found


def environment(value: Any) -> dict[str, str]:
    """Return variables of an environment."""
    found = json_object(value)
    for name, text in found.items():
        if not name or "=" in name or "\0" in name or not isinstance(text, str) or "\0" in text:
            raise ValueError(f"{name!r} is not the name of a variable, or its value is not a text")
    return found


def path_text(value: Any) -> str:
    """Return the absolute path of a file or folder, which may begin with ``~`` or ``~user``."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("it is not a path")
    return str(at_home(value).absolute())


def inputs(value: Any) -> str | dict[str, Any]:
    """Return the path of a file, or a mapping of names to JSON values."""
    if isinstance(value, Path) or (isinstance(value, str) and not value.lstrip().startswith("{")):
        if Path(value).suffix not in (".npz", ".json"):
            raise ValueError(f"{str(value)!r} does not end in .npz or .json")
        return path_text(value)
    return json_object(value)


def inner_path(value: Any) -> str:
    """Return a relative path that stays within its folder."""
    path = PurePosixPath(value)
    if "\0" in str(path) or path.is_absolute() or ".." in path.parts or path == PurePosixPath():
        raise ValueError("it leads out of the folder of the run")
    return str(path)


def file_name(value: Any) -> str:
    """Return the name of a file, without folders."""
    found = inner_path(value)
    if "/" in found:
        raise ValueError("it has parts of a path")
    return found


def duration(value: Any) -> str:
    """Return the text of a duration; a number means seconds."""
    text = f"{value}s" if isinstance(value, int | float) and not isinstance(value, bool) else value
    seconds(text)
    return str(text)


def _texts(value: Any) -> list[str]:
    found = _parsed(value)
    if not isinstance(found, list | tuple):
        raise TypeError(f"it is of type {type(found).__name__}")
    if not found:
        raise ValueError("it is empty")
    for number, word in enumerate(found, start=1):
        if not isinstance(word, str | Path):
            raise TypeError(f"word {number} is {word!r:.40}, of type {type(word).__name__}")
    return [str(word) for word in found]


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
