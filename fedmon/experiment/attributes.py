"""Attributes of resources: their types, ranges and flags, all enforced, and their values as files hold them."""

from __future__ import annotations

import copy
import enum
import json
import math
import operator
from collections.abc import Callable, Iterable
from enum import IntFlag, StrEnum
from typing import Any

from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeError,
    InvalidAttributeValueError,
)
from fedmon.experiment.states import ResourceState

__all__ = ["MASK", "Attribute", "Flags", "SetHook", "Types", "write_refusal"]


MAX_DEPTH = 32
LARGEST = 2**63
"""Readers of a journal take whole numbers below this one."""
_KINDS = (bool, int, float, str)


def plain(value: Any, *, depth: int = 0) -> Any:
    """Return a value of plain parts only: tuples become lists, members of an Enum their values.

    Raises ValueError, which says why, for what no file can hold.
    """
    if value is None or type(value) in _KINDS:
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested more than {MAX_DEPTH} deep")
    if isinstance(value, (list, tuple)):
        return [plain(each, depth=depth + 1) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str.__str__(key): plain(each, depth=depth + 1) for key, each in value.items()}
    if isinstance(value, enum.Enum):
        return plain(value.value, depth=depth + 1)
    for kind in _KINDS:
        if isinstance(value, kind):
            # What only derives from a plain type is written as that and must compare as that.
            return kind(value) if kind is not str else str.__str__(value)
    raise ValueError(
        f"a {type(value).__name__} cannot be kept in a document; use text, numbers, true, false, or lists and tables "
        "of them"
    )


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same, also where one of them comes out of a file."""
    # True equals 1, and is another thing to say.
    if isinstance(one, bool) is isinstance(other, bool) and one == other:
        return True
    try:
        one, other = plain(one), plain(other)
    except ValueError:
        return False
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def noted(value: Any) -> Any:
    """Return a value as a journal holds it. Raises ValueError for what none can hold."""
    value = plain(value)
    return value if _is_json(value) else as_json(value)


def as_json(value: Any) -> dict[str, str]:
    """Return a plain value as a text of JSON, marked as such."""
    return {"json": json.dumps(value)}


def from_noted(value: Any) -> Any:
    """Return the value that `noted` had."""
    if isinstance(value, dict) and list(value) == ["json"] and isinstance(value["json"], str):
        return json.loads(value["json"])
    return value


def _is_json(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return list(value) != ["json"] and all(_is_json(key) and _is_json(each) for key, each in value.items())
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -LARGEST <= value < LARGEST


class Types(StrEnum):
    """What values an attribute takes."""

    String = "STRING"
    Bool = "BOOL"
    Enumerate = "ENUMERATE"
    Double = "DOUBLE"
    Integer = "INTEGER"


def bounds(given: Iterable[float]) -> tuple[float, float]:
    """Return the smallest and the largest number of a range. Raises ValueError, TypeError."""
    # NEPI's documentation says (max, min), and its code (min, max): both orders can mean but one thing.
    low, high = sorted(given)
    if math.isnan(low) or math.isnan(high):
        raise ValueError("a range needs two numbers")
    return low, high


def as_type(kind: Types, value: Any) -> Any:
    """Return a value as a type has it. Raises ValueError, which says why it does not fit."""
    is_bool = isinstance(value, bool)
    try:
        match kind:
            case Types.String if isinstance(value, str):
                return _written(value)
            case Types.Bool if is_bool:
                return value
            case Types.Integer if not is_bool:
                return operator.index(value)
            case Types.Double if not is_bool and not isinstance(value, (str, bytes, bytearray)):
                number = float(value)
                if not math.isfinite(number):
                    raise ValueError("not a finite number")
                return number
            case Types.Enumerate:
                return value
    except (TypeError, OverflowError):
        pass
    raise ValueError(f"it is of type {type(value).__name__}")


def _written(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it cannot be written down: it holds half a character") from None
    return text


def member(allowed: tuple[Any, ...], value: Any) -> Any:
    """Return which of the allowed values a value is, also one out of a file. Raises ValueError."""
    for each in allowed:
        if is_same(each, value):
            return each
    raise ValueError("not among what is allowed")


MASK = "********"
"""What files and logs show in place of a credential."""


class Flags(IntFlag):
    """Who may do what with an attribute, and when. The code of a resource type may always, in its own hooks."""

    NoRead = 1
    NoWrite = 2
    Design = 4  # not once the resource is being deployed
    Construct = 8  # used while it is deployed, so not later
    Credential = 16 | 4
    Filter = 32 | 4
    Reserved = 64  # for the resource type alone
    Global = 128  # of the type: every resource made later begins with its value


SetHook = Callable[[Any, Any], Any]


class Attribute:
    """A named value of a resource, what it may be, and who may change it.

    ``range`` is the smallest and the largest allowed number. ``set_hook(old, new)`` returns what is to be stored.
    Null is no value, and always allowed. Raises InvalidAttributeError for what cannot be defined.
    """

    name = help = ""
    type = Types.String
    flags = Flags(0)
    default: Any = None
    allowed: tuple[Any, ...] | None = None
    range: tuple[float, float] | None = None
    _hidden_in = ""  # of a copy for somebody who may not read it: whose attribute it is
    _write: Callable[[Any], object] | None = None  # of a copy for the code of a type: what sets it in the resource

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - these are NEPI's names
        type: Types = Types.String,  # noqa: A002
        flags: int | None = None,
        default: Any = None,
        allowed: Iterable[Any] | None = None,
        range: tuple[float, float] | None = None,  # noqa: A002
        set_hook: SetHook | None = None,
    ) -> None:
        if not name or not isinstance(name, str):
            raise InvalidAttributeError(f"an attribute needs a name, not {name!r}")
        self.name, self.help = name, help
        try:
            self.type = Types(type)
            self.flags = Flags(flags or 0)
            self.allowed = None if allowed is None else tuple(allowed)
            self.range = None if range is None else bounds(range)
        except (ValueError, TypeError) as error:
            raise InvalidAttributeError(f"attribute {name!r}: {error}") from error
        if self.type is Types.Enumerate and not self.allowed:
            raise InvalidAttributeError(f"attribute {name!r} is an Enumerate: say with allowed=... what of")
        if self.range is not None and self.type not in {Types.Integer, Types.Double}:
            raise InvalidAttributeError(f"attribute {name!r} has a range, and {self.type.name} has no order")
        if set_hook is not None and not callable(set_hook):
            raise InvalidAttributeError(f"attribute {name!r}: the set hook {set_hook!r} cannot be called")
        self._set_hook = set_hook
        try:
            self.default = self._fitting(default)
        except ValueError as error:
            raise InvalidAttributeError(f"attribute {name!r}: its default {default!r} does not fit: {error}") from error
        self._value = self.default

    @property
    def has_changed(self) -> bool:
        """Whether the value is another than the default."""
        return bool(self._value != self.default)

    @property
    def is_secret(self) -> bool:
        """Whether the value stays out of files and logs."""
        return self.has_flag(Flags.Credential)

    @property
    def is_masked(self) -> bool:
        """Whether the value stays out of documents, which anybody may read."""
        return self.is_secret or self.has_flag(Flags.NoRead)

    @property
    def value(self) -> Any:
        """The value; setting one that does not fit raises InvalidAttributeValueError, a ValueError.

        Raises AttributeAccessError where whoever asked for it may not read it.
        """
        if self._hidden_in:
            raise AttributeAccessError(self.name, self._hidden_in, "NoRead", "cannot be read")
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = self.accepted(value) if self._write is None else self._write(value)

    def has_flag(self, flag: int) -> bool:
        """Tell whether it has a flag; of Credential and Filter, whether it has all that they consist of."""
        wanted = int(flag)  # every resource asks this when it is made, and plain numbers are ten times as fast
        return int(self.flags) & wanted == wanted

    def is_valid_value(self, value: Any) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether a value of the right type fits; for subclasses to say."""
        return True

    def accepted(self, value: Any, *, resource: str = "") -> Any:
        """Return what would be stored for a value: checked, and handed through the set hook.

        Raises InvalidAttributeValueError, naming ``resource``.
        """
        value = self.checked(value, resource=resource)
        if self._set_hook is None:
            return value
        try:
            return self._set_hook(self._value, value)
        except Exception as error:
            raise self._refused(value, resource, f"its set hook says {type(error).__name__}: {error}") from error

    def checked(self, value: Any, *, resource: str = "") -> Any:
        """Return a value as the attribute's type has it. Raises InvalidAttributeValueError, naming ``resource``."""
        try:
            value = self._fitting(value)
            is_valid = value is None or self.is_valid_value(value)
        except Exception as error:
            raise self._refused(value, resource, str(error) or type(error).__name__) from error
        if not is_valid:
            raise self._refused(value, resource, "not valid")
        return value

    def stored(self, value: Any, *, resource: str = "") -> Any:
        """Return a value as it was stored, out of a file: where there is a set hook, that has said what is.

        Raises InvalidAttributeValueError, naming ``resource``, where there is none and the value does not fit.
        """
        if self._set_hook is None:
            return self.checked(value, resource=resource)
        return next((each for each in self.allowed or () if is_same(each, value)), value)

    def as_noted(self, value: Any, *, resource: str = "") -> Any:
        """Return a value as journals hold it: credentials masked, and numbers of more than 64 bits as a text.

        Raises InvalidAttributeValueError, naming ``resource``, for one that no file can hold.
        """
        if self.is_secret:
            return MASK
        if self.type is Types.Integer:
            if type(value) is int and not -LARGEST <= value < LARGEST:
                return hex(value)
            if isinstance(value, str):  # which a set hook made of a number
                return as_json(str.__str__(value))
        try:
            return noted(value)
        except ValueError as error:
            raise self._refused(value, resource, str(error)) from error

    def as_plain(self, value: Any, *, resource: str = "") -> Any:
        """Return a value that is to be set later as files hold it till then; one of another form as the type has it.

        Raises InvalidAttributeValueError, naming ``resource``.
        """
        found = self.checked(value, resource=resource)
        try:
            return plain(value)
        except ValueError:  # such as a number of a library
            try:
                return plain(found)
            except ValueError as error:
                raise self._refused(value, resource, str(error)) from error

    def from_note(self, note: Any) -> Any:
        """Return the value that `as_noted` had."""
        return int(note, 16) if self.type is Types.Integer and isinstance(note, str) else from_noted(note)

    def shown(self, resource: str) -> Attribute:
        """Return a copy for everybody: where they may not read the value, asking it for that is an error."""
        made = copy.copy(self)
        if self.has_flag(Flags.NoRead):
            made._hidden_in = resource  # noqa: SLF001 - a copy of its own
        return made

    def listed(self) -> Attribute:
        """Return a copy for everybody, whose value is null where they may not read it."""
        return self.with_value(None) if self.has_flag(Flags.NoRead) else copy.copy(self)

    def bound(self, write: Callable[[Any], object]) -> Attribute:
        """Return a copy whose value is set by ``write``, which returns what it is then."""
        made = copy.copy(self)
        made._write = write  # noqa: SLF001 - a copy of its own
        return made

    def with_value(self, value: Any) -> Attribute:
        """Return a copy that holds ``value``, which `accepted` has returned."""
        made = copy.copy(self)
        made._value = value  # noqa: SLF001 - a copy of its own
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

    def _fitting(self, value: Any) -> Any:
        """Return a value as the type has it; ValueError says why it does not fit."""
        if value is None:
            return None
        value = as_type(self.type, value)
        if self.allowed is not None:
            value = member(self.allowed, value)
        if self.range is not None and not self.range[0] <= value <= self.range[1]:
            raise ValueError("out of range")
        return value


def write_refusal(attribute: Attribute, state: ResourceState, *, is_deployed: bool) -> tuple[Flags, str] | None:
    """Return which flag forbids that somebody sets an attribute, and why; null where nothing does.

    ``is_deployed`` tells whether its resource was asked to deploy.
    """
    if attribute.has_flag(Flags.NoWrite):
        return Flags.NoWrite, "cannot be set"
    if attribute.has_flag(Flags.Reserved):
        return Flags.Reserved, "is for its resource type alone"
    if attribute.has_flag(Flags.Design) and (is_deployed or state >= ResourceState.READY):
        return Flags.Design, f"cannot be set once it was asked to deploy; it is {state.name}"
    if attribute.has_flag(Flags.Construct) and state >= ResourceState.READY:
        return Flags.Construct, f"is used while it is deployed and cannot be set later; it is {state.name}"
    return None
