"""Attributes and traces of resources: types, ranges and flags of values, their form in files, and reading traces."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import operator
import os
import stat
from collections.abc import Callable, Iterable
from enum import IntFlag, StrEnum
from pathlib import Path
from typing import Any, Self

import msgspec

from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeError,
    InvalidAttributeValueError,
    TraceNotReadableError,
)
from fedmon.experiment.states import ResourceState

MASK = "********"
"""Files and logs show this in place of a credential."""
_MAX_DEPTH = 32


class Types(StrEnum):
    """The types of attributes."""

    String = "STRING"
    Bool = "BOOL"
    Enumerate = "ENUMERATE"
    Double = "DOUBLE"
    Integer = "INTEGER"


class Flags(IntFlag):
    """Access to an attribute; hooks of its resource always have full access."""

    NoRead = 1
    NoWrite = 2
    Design = 4  # fixed once the deployment was asked for
    Construct = 8  # fixed once READY
    Credential = 16 | 4
    Filter = 32 | 4
    Reserved = 64  # only the resource type sets it
    Global = 128  # its value holds for the whole type


def plain(value: Any, *, depth: int = 0) -> Any:
    """Return a value as files hold it: tuples become lists, members of an Enum their values.

    Raises ValueError with the reason if no file can hold it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > _MAX_DEPTH:
        raise ValueError(f"the value is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, enum.Enum):
        return plain(value.value, depth=depth + 1)
    if isinstance(value, (list, tuple)):
        return [plain(each, depth=depth + 1) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): plain(each, depth=depth + 1) for key, each in value.items()}
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise ValueError(
        f"a {type(value).__name__} cannot be kept in a document; use text, numbers, true, false, or lists and tables "
        "of them"
    )


def _noted(value: Any) -> Any:
    """Return a value as journals hold it: as JSON text if JSON readers would change it, such as infinity."""
    value = plain(value)
    try:
        is_kept = bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except ValueError:  # half a character
        is_kept = False
    return value if is_kept and not is_json_text(value) else {"json": json.dumps(value)}


def is_json_text(note: Any) -> bool:
    """Tell whether a value is JSON text in place of one that a file has no form for."""
    return isinstance(note, dict) and list(note) == ["json"] and isinstance(note["json"], str)


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same in a file."""
    try:
        one, other = plain(one), plain(other)
    except ValueError:  # no file can hold one of them
        return False
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)  # True equals 1


def typed(kind: Types, value: Any) -> Any:
    """Return a value in the form of a type. Raises ValueError with the reason."""
    is_number = not isinstance(value, (bool, str, bytes))
    try:
        match kind:
            case Types.String if isinstance(value, str):
                value.encode()
                return value
            case Types.Bool if isinstance(value, bool):
                return value
            case Types.Integer if is_number:
                return operator.index(value)
            case Types.Double if is_number:
                number = float(value)
                if not math.isfinite(number):
                    raise ValueError("not a finite number")
                return number
            case Types.Enumerate:
                return value
    except (TypeError, OverflowError):
        pass
    raise ValueError(f"it is of type {type(value).__name__}")


class Attribute:
    """A named value of a resource, its type and its access.

    ``range`` holds the smallest and the largest allowed number. ``set_hook(old, new)`` returns the value to store.
    None is always allowed. Raises InvalidAttributeError for an invalid definition.
    """

    name = help = ""
    type = Types.String
    flags = Flags(0)
    default: Any = None
    allowed: tuple[Any, ...] | None = None
    range: tuple[float, float] | None = None
    is_path = False  # in documents relative to the file
    _hidden_in = ""  # the resource of a copy that may not be read

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - these are NEPI's names
        type: Types = Types.String,  # noqa: A002
        flags: int | None = None,
        default: Any = None,
        allowed: Iterable[Any] | None = None,
        range: tuple[float, float] | None = None,  # noqa: A002
        set_hook: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.name, self.help, self._set_hook = name, help, set_hook
        try:
            self.type = Types(type)
            self.flags = Flags(flags or 0)
            self.allowed = None if allowed is None else tuple(allowed)
            if range is not None:
                low, high = sorted(range)  # NEPI documents (max, min), and its code takes (min, max)
                self.range = low, high
            self._check_definition()
            self.default = self._value = self._fitting(default)
        except (ValueError, TypeError) as error:
            raise InvalidAttributeError(f"attribute {name!r}: {error}") from error

    def _check_definition(self) -> None:
        if not self.name:
            raise ValueError("it needs a name")
        if self.type is Types.Enumerate and not self.allowed:
            raise ValueError("an Enumerate needs allowed=...")
        if self.range is not None and (
            self.type not in (Types.Integer, Types.Double) or any(map(math.isnan, self.range))
        ):
            raise ValueError("a range is of two numbers, for an Integer or a Double")

    @property
    def has_changed(self) -> bool:
        """Whether the value differs from the default."""
        return bool(self._value != self.default)

    @property
    def is_secret(self) -> bool:
        """Whether files and logs mask the value."""
        return self.has_flag(Flags.Credential)

    @property
    def is_masked(self) -> bool:
        """Whether documents mask the value, which anyone may read."""
        return self.is_secret or self.has_flag(Flags.NoRead)

    @property
    def value(self) -> Any:
        """The value. Setting one that does not fit raises InvalidAttributeValueError, a ValueError.

        Raises AttributeAccessError if it may not be read.
        """
        if self._hidden_in:
            raise AttributeAccessError(self.name, self._hidden_in, "NoRead", "cannot be read")
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = self.accepted(value)

    def has_flag(self, flag: int) -> bool:
        """Tell whether it has a flag; Credential and Filter only count with all of their bits."""
        wanted = int(flag)  # plain numbers are ten times as fast, and each new resource asks this
        return int(self.flags) & wanted == wanted

    def is_valid_value(self, value: Any) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether a value of the right type is valid; for subclasses."""
        return True

    def check_writable(self, resource: str, state: ResourceState, *, is_deployed: bool) -> None:
        """Raise AttributeAccessError if a flag forbids setting it in this state, or after a deploy was asked for."""
        if self.has_flag(Flags.NoWrite):
            flag, reason = "NoWrite", "cannot be set"
        elif self.has_flag(Flags.Reserved):
            flag, reason = "Reserved", "is for its resource type alone"
        elif self.has_flag(Flags.Design) and (is_deployed or state >= ResourceState.READY):
            flag, reason = "Design", f"cannot be set once it was asked to deploy; it is {state.name}"
        elif self.has_flag(Flags.Construct) and state >= ResourceState.READY:
            flag, reason = "Construct", f"is used while it is deployed and cannot be set later; it is {state.name}"
        else:
            return
        raise AttributeAccessError(self.name, resource, flag, reason)

    def accepted(self, value: Any, *, resource: str = "") -> Any:
        """Return the value to store, after the set hook. Raises InvalidAttributeValueError, naming ``resource``."""
        value = self.checked(value, resource=resource)
        if self._set_hook is None:
            return value
        try:
            return self._set_hook(self._value, value)
        except Exception as error:
            raise self._refused(value, resource, f"its set hook says {type(error).__name__}: {error}") from error

    def checked(self, value: Any, *, resource: str = "") -> Any:
        """Return a value in the form of its type. Raises InvalidAttributeValueError, naming ``resource``."""
        try:
            value = self._fitting(value)
            is_valid = value is None or self.is_valid_value(value)
        except Exception as error:
            raise self._refused(value, resource, str(error) or type(error).__name__) from error
        if not is_valid:
            raise self._refused(value, resource, "not valid")
        return value

    def stored(self, value: Any, *, resource: str = "") -> Any:
        """Return a stored value read from a file, without the set hook. Raises InvalidAttributeValueError."""
        if self._set_hook is None:
            return self.checked(value, resource=resource)
        return next((each for each in self.allowed or () if _is_same(each, value)), value)

    def as_noted(self, value: Any, *, resource: str = "") -> Any:
        """Return a value as journals hold it; credentials are masked. Raises InvalidAttributeValueError."""
        return MASK if self.is_secret else self._written(_noted, value, resource)

    def as_plain(self, value: Any, *, resource: str = "") -> Any:
        """Return a checked value as files hold it until it is set. Raises InvalidAttributeValueError."""
        return self._written(plain, self.checked(value, resource=resource), resource)

    def from_note(self, note: Any) -> Any:
        """Return the value of `as_noted`."""
        return json.loads(note["json"]) if is_json_text(note) else note

    def shown(self, resource: str) -> Self:
        """Return a copy for callers; if they may not read the value, reading it is an error."""
        return self._copied(_hidden_in=resource if self.has_flag(Flags.NoRead) else "")

    def listed(self) -> Self:
        """Return a copy for callers; its value is None if they may not read it."""
        return self.with_value(None if self.has_flag(Flags.NoRead) else self._value)

    def with_value(self, value: Any) -> Self:
        """Return a copy with a value that `accepted` has returned."""
        return self._copied(_value=value)

    def _copied(self, **changes: Any) -> Self:
        made = object.__new__(type(self))  # twice as fast as copy.copy, for each new resource
        vars(made).update(vars(self) | changes)
        return made

    def takes(self) -> str:
        """Return in words which values it takes."""
        parts = {Types.String: "a text", Types.Bool: "True or False", Types.Integer: "a whole number"}
        text = parts.get(self.type, "a number" if self.type is Types.Double else "")
        if self.range is not None:
            text += f" from {self.range[0]:g} to {self.range[1]:g}"
        if self.allowed is not None:
            text += f"{', ' if text else ''}one of {', '.join(map(repr, self.allowed))}"
        return text

    def __repr__(self) -> str:
        return f"Attribute({self.name!r}, value={MASK if self.is_masked else self._value!r})"

    def _refused(self, value: Any, resource: str, reason: str) -> InvalidAttributeValueError:
        shown = MASK if self.is_secret else value
        return InvalidAttributeValueError(self.name, shown, self.takes(), resource=resource, reason=reason)

    def _written(self, form: Callable[[Any], Any], value: Any, resource: str) -> Any:
        try:
            return form(value)
        except ValueError as error:
            raise self._refused(value, resource, str(error)) from error

    def _fitting(self, value: Any) -> Any:
        """Return a value as type, list and range allow it. Raises ValueError with the reason."""
        if value is None:
            return None
        value = typed(self.type, value)
        if self.allowed is not None:
            same = [each for each in self.allowed if _is_same(each, value)]
            if not same:
                raise ValueError("not among the allowed values")
            value = same[0]
        if self.range is not None and not self.range[0] <= value <= self.range[1]:
            raise ValueError("out of range")
        return value


# --- traces -----------------------------------------------------------------------------------------------------------


class TraceAttr(StrEnum):
    """The parts of a trace that can be read: its text, a block of that, its path, its size in bytes."""

    ALL = "all"
    STREAM = "stream"
    PATH = "path"
    SIZE = "size"


@dataclasses.dataclass(eq=False, slots=True)
class Trace:
    """A trace that a resource writes if it is enabled."""

    name: str
    help: str
    enabled: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidAttributeError("a trace needs a name")


def trace_path(folder: str | Path, name: str) -> Path:
    """Return the path of a trace in a folder. Raises TraceNotReadableError for a name that leads out of the folder."""
    root = Path(folder).resolve()
    found = root if "\0" in name else (root / name).resolve()
    if root not in found.parents:
        raise TraceNotReadableError(f"trace {name!r} is not the name of a file within {folder}")
    return found


def read_trace(
    path: str | Path, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0
) -> str | int | None:
    """Return the text of a trace (ALL), a block of it (STREAM), its path (PATH) or its size in bytes (SIZE).

    A block has ``block`` bytes and begins ``offset`` blocks from the start; past the end it is "". A character that its
    border cuts is a replacement character. Raises TraceNotReadableError.
    """
    path = Path(path)
    try:
        asked = TraceAttr(attr)
    except ValueError:
        raise TraceNotReadableError(f"of a trace one asks {', '.join(TraceAttr)}, not {attr!r}") from None
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # reading a pipe could block for ever
            raise TraceNotReadableError(f"trace {path} cannot be read: it is not a file")
        match asked:
            case TraceAttr.PATH:
                return str(path)
            case TraceAttr.SIZE:
                return about.st_size
            case TraceAttr.ALL:
                return path.read_bytes().decode("utf-8", "replace")
            case TraceAttr.STREAM:
                return _block(path, block, offset)
    except OSError as error:
        reason = "nothing was written yet" if isinstance(error, FileNotFoundError) else error.strerror
        raise TraceNotReadableError(f"trace {path} cannot be read: {reason}") from error


def _block(path: Path, block: int, offset: int) -> str:
    if block < 1 or offset < 0:
        raise TraceNotReadableError(f"trace {path}: block must be 1 byte or more, offset 0 blocks or more")
    with path.open("rb") as file:
        start, size = block * offset, os.fstat(file.fileno()).st_size
        if start >= size:
            return ""
        file.seek(start)
        return file.read(min(block, size)).decode("utf-8", "replace")
