"""Values of a plan as JSON and back: arrays are taken out, and other values that cannot travel are named."""

from __future__ import annotations

import sys

from fedmon.common.errors import InvalidInputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, TypeGuard

    import numpy as np
    import numpy.typing as npt

    Place = tuple[str | int, ...]
    """Keys and indices, from the outermost."""

MAX_DEPTH = 32
"""Containers around a value, the outermost counted."""
SMALLEST, LARGEST = -(2**63), 2**64 - 1
MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_ARGUMENTS_BYTES = 65_536
MAX_CONTAINERS = 500_000
"""Lists and objects in one document; with its bytes, this bounds the memory that reading it takes."""
MAX_ARRAYS = 99_999
"""With their document they are the members that an archive has at most."""
MAX_DIMENSIONS = 32
_TRAVEL = "JSON values and numpy arrays travel"


class InvalidValuesError(InvalidInputError):
    """Values cannot be sent, or bytes are no values; names the place, such as ``model.w``."""


class TooLargeError(InvalidValuesError):
    """Values need more bytes than allowed; ``max_bytes`` is how many are."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"more than {max_bytes} bytes")
        self.max_bytes = max_bytes


class ValuesWalk:
    """Walks through one mapping of names to values; ``arrays`` and ``places`` are the arrays that it found."""

    def __init__(self, *, max_bytes: int | None) -> None:
        self.arrays: list[npt.NDArray[Any]] = []
        self.places: list[Place] = []
        self._max_bytes = max_bytes
        self._size = self._containers = 0

    def named(self, values: object) -> dict[str, Any]:
        """Return a mapping for `json_text`, with None in place of arrays.

        Raises InvalidValuesError naming the place, and TooLargeError as soon as it is known.
        """
        if not is_mapping(values):
            raise InvalidValuesError(f"{described(values)} instead of a mapping of names to values")
        return self._mapping(values, ())

    def _plain(self, value: Any, place: Place) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if value is None or isinstance(value, (int, float)):
            self._count(1)
            if isinstance(value, int) and not SMALLEST <= value <= LARGEST:
                raise _wrong(place, "an integer beyond 64 bits (send it as a text)")
            if isinstance(value, float) and value - value != 0:
                raise _wrong(place, f"{float.__repr__(value)}, which JSON has not (send None, or an array)")
            return value
        if isinstance(value, (list, tuple)):
            return self._sequence(value, place)
        if is_mapping(value):
            return self._mapping(value, place)
        numpy = sys.modules.get("numpy")  # without the import there is no array
        if numpy is not None and isinstance(value, numpy.ndarray):
            return self._array(value, place, numpy)
        if numpy is not None and isinstance(value, numpy.generic):
            return self._numpy_scalar(value, place)
        raise _wrong(place, f"{described(value)} ({_TRAVEL})")

    def _text(self, text: str, place: Place) -> str:
        self._count(len(text) + 2)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise _wrong(place, "a text with half a surrogate pair, which is no Unicode") from None
        return text

    def _sequence(self, values: Sequence[Any], place: Place) -> Sequence[Any]:
        self._enter(len(values) + 1, place)
        kinds = set(map(type, values))
        # Long lists of numbers are looked at in a tenth of the time.
        is_sound = kinds == {float} and sum(values) * 0 == 0
        if is_sound or (kinds == {int} and min(values) >= SMALLEST and max(values) <= LARGEST):
            self._count(len(values))
        else:
            values = [self._plain(value, (*place, index)) for index, value in enumerate(values)]
        return values

    def _mapping(self, values: Mapping[object, object], place: Place) -> dict[str, Any]:
        self._enter(2 * len(values) + 1, place)
        members = {}
        for key, value in values.items():
            if not isinstance(key, str):
                raise _wrong(place, f"the key {repr(key)[:40]}, which is no text")
            members[self._text(key, place)] = self._plain(value, (*place, key))
        return members

    def _numpy_scalar(self, value: np.generic, place: Place) -> Any:
        plain = value.item()
        if type(plain) in (bool, int, float, str):
            return self._plain(plain, place)
        if value.dtype.kind == "f":  # a long double has no plain type
            return self._plain(float(value), place)
        raise _wrong(place, f"a numpy scalar of type {value.dtype} ({_TRAVEL})")

    def _array(self, array: npt.NDArray[Any], place: Place, numpy: Any) -> None:
        kind, size = array.dtype.kind, array.dtype.itemsize
        wrong = None
        if isinstance(array, numpy.ma.MaskedArray):
            wrong = "a masked array (send its .filled(...), or data and mask as two arrays)"
        elif kind == "O":
            wrong = "an array of objects (give it a type, such as .astype(float))"
        elif kind not in "biufcUS" or (kind == "f" and size > 8) or (kind == "c" and size > 16):
            wrong = f"an array of type {array.dtype} (truths, numbers of up to 64 bits and texts travel)"
        elif array.ndim > MAX_DIMENSIONS:
            wrong = f"an array of {array.ndim} dimensions, more than {MAX_DIMENSIONS}: reshape it"
        elif len(self.arrays) >= MAX_ARRAYS:
            wrong = f"more than {MAX_ARRAYS} arrays: put them together, as one array of more dimensions"
        if wrong is not None:
            raise _wrong(place, wrong)
        self._count(array.nbytes)
        self.arrays.append(array)
        self.places.append(place)

    def _enter(self, punctuation: int, place: Place) -> None:
        if len(place) >= MAX_DEPTH:  # or a container that holds itself
            raise _wrong(place, f"more than {MAX_DEPTH} containers around each other")
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise _wrong(place, f"more than {MAX_CONTAINERS} lists and objects: send arrays")
        self._count(punctuation)

    def _count(self, size_bytes: int) -> None:
        self._size += size_bytes
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise TooLargeError(self._max_bytes)


def json_text(values: object) -> str:
    """Return plain values as JSON text. Raises ValueError for a number that is not finite.

    Calls the same function as json.dumps: to import json takes as long as everything else in a plan without data. A
    Python without that function uses json.
    """
    try:
        from _json import encode_basestring, make_encoder

        sort_keys = skip_keys = allow_nan = False
        encode = make_encoder(None, str, encode_basestring, None, ":", ",", sort_keys, skip_keys, allow_nan)
        return "".join(encode(values, 0))
    except (ImportError, TypeError):
        import json

        return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_object(data: memoryview, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Return the JSON object in bytes. Raises InvalidValuesError naming the fault.

    Integers have at most 64 bits, other numbers are finite, texts are Unicode, and names occur once in an object.
    """
    import json
    import re
    from itertools import accumulate

    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidValuesError(f"{len(data)} bytes of JSON, more than {MAX_DOCUMENT_BYTES}")
    try:
        text = bytes(data).decode()
        # Outside of texts, each bracket is a container; they are counted before there is memory for them. Escaped
        # characters go first, so that the pattern is linear.
        plain = text.replace("\\\\", "").replace('\\"', "")
        brackets = re.sub(r'"[^"]*"|[^]["{}]+', "", plain)
        if brackets.count("[") + brackets.count("{") > MAX_CONTAINERS:
            raise InvalidValuesError(f"JSON with more than {MAX_CONTAINERS} lists and objects")
        if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > max_depth:
            raise InvalidValuesError(f"JSON with more than {max_depth} containers around each other")
        found = json.loads(text, object_pairs_hook=_without_repeats, parse_int=_whole)
        json_text(found).encode()  # NaN, and half a surrogate pair, have no text
    except InvalidValuesError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidValuesError(f"no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise InvalidValuesError("JSON that is not an object")
    return found


def arguments_of(words: Iterable[str]) -> dict[str, Any]:
    """Return arguments from words of a shell: JSON objects, then ``rate=0.1``, whose value is JSON or else a text.

    Raises InvalidInputError.
    """
    found: dict[str, Any] = {}
    for word in sorted(words, key=lambda word: word.lstrip()[:1] != "{"):
        name, equals, text = word.partition("=")
        is_object = word.lstrip()[:1] == "{"
        if not is_object and not (name and equals):
            raise InvalidInputError(f"--arg {word!r} is not of the form name=value, and no JSON object")
        try:
            if is_object:
                found |= read_object(memoryview(word.encode()))
            else:
                (found[name],) = read_object(memoryview(f'{{"":{text}}}'.encode())).values()
        except ValueError as error:
            if is_object:
                raise InvalidInputError(f"--arg {word!r}: {error}") from None
            found[name] = text
    return found


def _whole(digits: str) -> int:
    number = int(digits)
    if not SMALLEST <= number <= LARGEST:
        raise InvalidValuesError("JSON with an integer beyond 64 bits")
    return number


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        from collections import Counter

        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidValuesError(f"JSON with the key {name[:80]!r} twice in one object")
    return members


def spelled(place: Sequence[str | int]) -> str:
    """Return a place as text, such as ``model.w[2]``."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if len(step) <= 80 else f"{step[:77]}..."
            text += ("." if text else "") + (name if name.isprintable() else ascii(name))
    return text or "the values"


def _wrong(place: Place, what: str) -> InvalidValuesError:
    return InvalidValuesError(f"{spelled(place)}: {what}")


def described(value: object) -> str:
    """Return the type of a value in words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return True if a value maps names to values."""
    if isinstance(value, dict):
        return True
    if type(value).__module__ == "builtins" and type(value).__name__ != "mappingproxy":
        return False
    from collections.abc import Mapping as AnyMapping

    return isinstance(value, AnyMapping)
