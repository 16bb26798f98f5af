"""Untrusted parcels: proof that they are parcels, and what they hold, read without numpy and without running them."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn

from fedmon.common.errors import InvalidInputError
from fedmon.plan import archive
from fedmon.plan.values import (
    LARGEST,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    SMALLEST,
    InvalidValuesError,
    spelled,
)

_CHUNK_BYTES = 1 << 20  # a multiple of the four bytes of a character
_TRUTHS = b"\0\1"
_PLANES = bytes(range(0x11))
_CHECKED_TYPES = {"b": "truths", "U": "characters"}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class PlacedArray(NamedTuple):
    """An array of a parcel: where it belongs among the values, and where its data lie among the bytes."""

    place: list[str | int]
    header: archive.ArrayHeader
    offset: int


def check(parcel_format: str, buffer: bytes | bytearray | memoryview, max_bytes: int) -> None:
    """Return when bytes are a parcel of at most ``max_bytes``, which `unpack` takes; reads all of them.

    Raises InvalidValuesError saying what is wrong.
    """
    with memoryview(buffer) as view:
        if len(view) > max_bytes:
            raise InvalidValuesError(f"{len(view)} bytes, more than {max_bytes}")
        _, arrays = contents(parcel_format, view)
        if parcel_format == "npz":
            _check_data(view, arrays)


def contents(parcel_format: str, view: memoryview) -> tuple[dict[str, Any], list[PlacedArray]]:
    """Return the values of a parcel, with None where arrays belong, and these arrays.

    Checks everything but the data of the arrays. Raises InvalidValuesError.
    """
    if parcel_format == "json":
        return read_object(view), []
    if parcel_format != "npz":
        raise InvalidValuesError(f"the format {parcel_format[:40]!r}, which is neither json nor npz")
    try:
        members = archive.read(view)
    except InvalidInputError as error:
        raise InvalidValuesError(str(error)) from None
    names = [member.name for member in members]
    if names != [archive.DOCUMENT, *(f"{number}.npy" for number in range(len(members) - 1))]:
        raise InvalidValuesError("an archive whose members are not document.json, 0.npy, 1.npy and so on")
    first = members[0]
    # The object around the values adds a container, and so does the list of lists of places.
    document = read_object(first.data(view), depth=MAX_DEPTH + 1)
    values, places = document.get("values"), document.get("arrays")
    if set(document) != {"values", "arrays"} or not isinstance(values, dict) or not isinstance(places, list):
        raise InvalidValuesError("an archive whose document has not values and arrays")
    if len(places) != len(members) - 1 or not places:
        raise InvalidValuesError(f"an archive with {len(places)} places for {len(members) - 1} arrays")
    seen: set[tuple[str | int, ...]] = set()
    arrays = []
    for member, place in zip(members[1:], places, strict=True):
        _check_place(values, place, seen)
        try:
            header = archive.read_array_header(member.data(view))
        except InvalidInputError as error:
            raise InvalidValuesError(f"{spelled(place)}: {error}") from None
        arrays.append(PlacedArray(place, header, member.data_offset + header.data_offset))
    return values, arrays


def container_of(values: dict[str, Any], place: list[str | int]) -> Any:
    """Return what directly holds a place. Raises LookupError and TypeError when there is nothing like it."""
    container: Any = values
    for step in place[:-1]:
        container = container[step]
    return container


def _check_place(values: dict[str, Any], place: object, seen: set[tuple[str | int, ...]]) -> None:
    if not isinstance(place, list) or not place or not all(_is_step(step) for step in place):
        raise InvalidValuesError("an archive with a place that is no list of keys and indices")
    key = tuple(place)
    try:
        empty = container_of(values, place)[place[-1]] is None
    except (LookupError, TypeError):
        empty = False
    if not empty or key in seen:
        raise InvalidValuesError(f"{spelled(place)}: no place for an array")
    seen.add(key)


def _is_step(step: object) -> bool:
    return isinstance(step, str) or (type(step) is int and step >= 0)


def _check_data(view: memoryview, arrays: list[PlacedArray]) -> None:
    for member in archive.read(view):
        if archive.crc_of(member.data(view)) != member.crc:
            raise InvalidValuesError(f"member {member.name} of the archive has another checksum than it says")
    for array in arrays:
        data = view[array.offset : array.offset + array.header.data_bytes]
        if not _has_values(array.header.descr, data):
            kind = _CHECKED_TYPES[array.header.descr[1]]
            raise InvalidValuesError(f"{spelled(array.place)}: bytes that are no {kind}")


def _has_values(descr: str, data: memoryview) -> bool:
    """Tell whether all bytes are values of their type; of numbers all are."""
    kind = descr[1]
    if kind not in _CHECKED_TYPES:
        return True
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = bytes(data[start : start + _CHUNK_BYTES])
        if kind == "b":
            if chunk.translate(None, _TRUTHS):
                return False
            continue
        if descr[0] == ">":
            highest, planes = chunk[0::4], chunk[1::4]
        else:
            highest, planes = chunk[3::4], chunk[2::4]
        if highest.strip(b"\0") or planes.translate(None, _PLANES):
            return False
    return True


def read_object(data: memoryview, *, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Return the object that bytes hold. Raises InvalidValuesError saying what is wrong with them.

    Integers have at most 64 bits, other numbers are finite, texts are Unicode; ``depth`` counts containers.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidValuesError(f"{len(data)} bytes of JSON, more than {MAX_DOCUMENT_BYTES}")
    try:
        text = bytes(data).decode()
        _refuse_too_many(text)
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidValuesError(f"no JSON: it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise InvalidValuesError(f"JSON with more than {depth} containers around each other") from None
    except InvalidValuesError:
        raise
    except ValueError as error:
        raise InvalidValuesError(f"no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidValuesError("JSON that is no object")
    _check(value, depth)
    return value


def _refuse_too_many(text: str) -> None:
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        bare = _STRING.sub("", text)
        if bare.count("[") + bare.count("{") > MAX_CONTAINERS:
            raise InvalidValuesError(f"JSON with more than {MAX_CONTAINERS} lists and objects")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidValuesError(f"JSON with the key {name[:80]!r} twice in one object")
            seen.add(name)
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise InvalidValuesError(f"no JSON: {constant} is no number")


def _check(value: dict[str, Any], depth: int) -> None:
    """Look at all values, without recursion."""
    layer: list[Any] = [value]
    for _ in range(depth):
        inner: list[Any] = []
        for container in layer:
            members = container
            if isinstance(container, dict):
                for name in container:
                    _check_leaf(name)
                members = container.values()
            for member in members:
                if isinstance(member, dict | list):
                    inner.append(member)
                else:
                    _check_leaf(member)
        layer = inner
        if not layer:
            return
    raise InvalidValuesError(f"JSON with more than {depth} containers around each other")


def _check_leaf(value: object) -> None:
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidValuesError("JSON with half a surrogate pair in a text") from None
    elif isinstance(value, float):
        if value - value != 0:
            raise InvalidValuesError("JSON with a number beyond every float")
    elif isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        raise InvalidValuesError("JSON with an integer beyond 64 bits")
