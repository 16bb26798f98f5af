"""Values of a plan as JSON text; arrays are taken out, and their places noted."""

from __future__ import annotations

import sys

from fedmon.common.errors import InvalidInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    Place = tuple[str | int, ...]
    """Keys and indices, from the outermost."""

MAX_DEPTH = 32
"""Containers around a value, the outermost counted."""
SMALLEST, LARGEST = -(2**63), 2**64 - 1
MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_CONTAINERS = 500_000
"""Lists and objects in one document; with its bytes, this bounds the memory that reading it takes."""
MAX_ARRAYS = 99_999
"""With their document they are the members that an archive has at most."""
MAX_DIMENSIONS = 32
_TRAVEL = "JSON values and numpy arrays travel"
_PLAIN = {float, int}
_ESCAPES = {number: f"\\u{number:04x}" for number in range(32)} | {ord('"'): '\\"', ord("\\"): "\\\\"}


class InvalidValuesError(InvalidInputError):
    """Values cannot be sent, or bytes are no values; names the place, such as ``model.w``."""


class TooLargeError(InvalidValuesError):
    """Values need more bytes than allowed; ``max_bytes`` is how many are."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes} bytes")
        self.max_bytes = max_bytes


class ValuesWriter:
    """Writes one mapping as JSON text; ``arrays`` are what was found, with null in the text, at ``places``."""

    def __init__(self, *, max_bytes: int | None) -> None:
        self.arrays: list[npt.NDArray[Any]] = []
        self.places: list[Place] = []
        self._max_bytes = max_bytes
        self._size = self._containers = 0
        self._around: list[int] = []
        self._place: list[str | int] = []

    def text(self, values: object) -> str:
        """Return the text. Raises InvalidValuesError naming the place, and TooLargeError as soon as it is known."""
        if not is_mapping(values):
            raise InvalidValuesError(f"{described(values)} instead of a mapping of names to values")
        text = self._mapping(values)  # type: ignore[arg-type]  # it is a mapping, which mypy cannot know
        if self._containers > MAX_CONTAINERS:
            raise InvalidValuesError(f"{self._containers} lists and objects, more than {MAX_CONTAINERS}: send arrays")
        return text

    def _text(self, value: object) -> str:
        kind = type(value)
        if kind is str:
            return self._string(value)  # type: ignore[arg-type]  # the exact type was compared
        if value is None or kind is bool:
            return self._counted("null" if value is None else "true" if value else "false")
        if kind is int or kind is float:
            return self._number(value)  # type: ignore[arg-type]  # the exact types were compared
        if isinstance(value, list | tuple):
            return self._sequence(value)
        if is_mapping(value):
            return self._mapping(value)  # type: ignore[arg-type]  # it is a mapping, which mypy cannot know
        return self._other(value)

    def _string(self, text: str) -> str:
        self._count(len(text) + 2)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self._wrong("a text with half a surrogate pair, which is no Unicode") from None
        return quoted(text)

    def _number(self, value: float) -> str:
        if isinstance(value, int):
            if not SMALLEST <= value <= LARGEST:
                raise self._wrong("an integer beyond 64 bits (send it as a text)")
            return self._counted(int.__repr__(value))
        if value - value != 0:
            raise self._wrong(f"{float.__repr__(value)}, which JSON has not (send None, or an array)")
        return self._counted(float.__repr__(value))

    def _other(self, value: object) -> str:
        """Deal with subclasses of plain types, with what numpy has, and with what cannot travel."""
        numpy = sys.modules.get("numpy")  # without the import there is no array
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                return self._array(value, numpy)
            if isinstance(value, numpy.generic):
                return self._numpy_scalar(value)
        if isinstance(value, str):
            return self._string(str.__str__(value))
        if isinstance(value, int | float):
            return self._number(value)
        raise self._wrong(described(value))

    def _numpy_scalar(self, value: np.generic) -> str:
        plain = value.item()
        if type(plain) in (bool, int, float, str):
            return self._text(plain)
        if value.dtype.kind == "f":  # a long double has no plain type
            return self._number(float(value))
        raise self._wrong(f"a numpy scalar of type {value.dtype} ({_TRAVEL})")

    def _array(self, array: npt.NDArray[Any], numpy: Any) -> str:
        if isinstance(array, numpy.ma.MaskedArray):
            raise self._wrong("a masked array (send its .filled(...), or data and mask as two arrays)")
        kind, size = array.dtype.kind, array.dtype.itemsize
        if kind == "O":
            raise self._wrong("an array of objects (give it a type, such as .astype(float))")
        if kind not in "biufcUS" or (kind == "f" and size > 8) or (kind == "c" and size > 16):
            raise self._wrong(f"an array of type {array.dtype} (truths, numbers of up to 64 bits and texts travel)")
        if array.ndim > MAX_DIMENSIONS:
            raise self._wrong(f"an array of {array.ndim} dimensions, more than {MAX_DIMENSIONS}: reshape it")
        if len(self.arrays) >= MAX_ARRAYS:
            raise self._wrong(f"more than {MAX_ARRAYS} arrays: put them together, as one array of more dimensions")
        self._count(array.nbytes)
        self.arrays.append(array)
        self.places.append(tuple(self._place))
        return self._counted("null")

    def _sequence(self, values: Sequence[object]) -> str:
        self._enter(values, len(values) + 1)
        kinds = set(map(type, values))
        text = self._plain_numbers(values) if len(kinds) == 1 and kinds < _PLAIN else None
        if text is None:
            members = []
            for index, value in enumerate(values):
                self._place.append(index)
                members.append(self._text(value))
                self._place.pop()
            text = ",".join(members)
        self._around.pop()
        return f"[{text}]"

    def _plain_numbers(self, values: Sequence[Any]) -> str | None:
        """Return the text of a long list in a tenth of the time, or None when something in it is to be named."""
        if type(values[0]) is int and not (min(values) >= SMALLEST and max(values) <= LARGEST):
            return None
        text = ",".join(map(repr, values))
        return None if "n" in text else self._counted(text)  # as in nan and inf

    def _mapping(self, values: Mapping[object, object]) -> str:
        self._enter(values, 2 * len(values) + 1)
        members = []
        for key, value in values.items():
            if not isinstance(key, str):
                raise self._wrong(f"the key {repr(key)[:40]}, which is no text")
            self._place.append(str.__str__(key))
            members.append(f"{self._string(str.__str__(key))}:{self._text(value)}")
            self._place.pop()
        self._around.pop()
        return "{" + ",".join(members) + "}"

    def _enter(self, values: object, punctuation: int) -> None:
        if id(values) in self._around:
            raise self._wrong("a container that holds itself")
        if len(self._around) >= MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} containers around each other")
        self._around.append(id(values))
        self._containers += 1
        self._count(punctuation)

    def _counted(self, text: str) -> str:
        self._count(len(text))
        return text

    def _count(self, size_bytes: int) -> None:
        self._size += size_bytes
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise TooLargeError(self._max_bytes)

    def _wrong(self, what: str) -> InvalidValuesError:
        return InvalidValuesError(f"{spelled(self._place)}: {what}")


def quoted(text: str) -> str:
    """Return a JSON string; half a surrogate pair stays as it is, for the caller that encodes the text.

    The json module takes as long to import as all else that a plan without data does, so it is not used here.
    """
    return f'"{text.translate(_ESCAPES)}"'


def spelled(place: Sequence[str | int]) -> str:
    """Return a place as people write it, such as ``model.w[2]``; a long one without its middle."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if len(step) <= 80 else f"{step[:77]}..."
            text += ("." if text else "") + (name if name.isprintable() else ascii(name))
    if len(text) > 200:
        text = f"{text[:120]}...{text[-60:]}"
    return text or "the values"


_ADVICE = (
    ((bytes, bytearray, memoryview), "a text, or numpy.frombuffer(..., dtype='uint8')"),
    ((set, frozenset), "a sorted list"),
    ((complex,), "its two parts, or an array"),
)


def described(value: object) -> str:
    """Describe a value that cannot travel, and what to send in its place."""
    kind = type(value)
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    advice = next((advice for kinds, advice in _ADVICE if isinstance(value, kinds)), None)
    if advice is None and hasattr(kind, "__array__") and kind.__name__ != "ndarray":
        advice = "numpy.asarray(...) of it"
    if advice is not None:
        return f"a value of type {kind.__name__} (send {advice})"
    return (
        f"a value of type {kind.__name__}"
        if kind.__module__ == "builtins"
        else f"an instance of {kind.__name__} ({_TRAVEL})"
    )


def is_mapping(value: object) -> bool:
    """Tell whether a value has names and values."""
    if isinstance(value, dict):
        return True
    if type(value).__module__ == "builtins" and type(value).__name__ != "mappingproxy":
        return False
    from collections.abc import Mapping as AnyMapping

    return isinstance(value, AnyMapping)
