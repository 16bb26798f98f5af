"""Prove that bytes from somebody else are a parcel: without numpy, and without running anything of them."""

from __future__ import annotations

from typing import Any

from fedmon.common.errors import InvalidInputError
from fedmon.plan import archive, npy, strict_json
from fedmon.plan.npy import ArrayHeader
from fedmon.plan.values import MAX_DEPTH, InvalidValuesError, spelled

DOCUMENT = "document.json"
_CHUNK_BYTES = 1 << 20  # a multiple of the four bytes of a character
_TRUTHS = b"\0\1"
_PLANES = bytes(range(0x11))


class PlacedArray:
    """An array of a parcel: where it belongs among the values, and where its data lie among the bytes."""

    __slots__ = ("header", "offset", "place")

    def __init__(self, *, place: list[str | int], header: ArrayHeader, offset: int) -> None:
        self.place, self.header, self.offset = place, header, offset


def check(parcel_format: str, buffer: bytes | bytearray | memoryview, max_bytes: int) -> None:
    """Return when bytes are a parcel of at most ``max_bytes``, which `unpack` takes; reads all of them.

    Raises InvalidValuesError saying what is wrong.
    """
    with memoryview(buffer) as view:
        if len(view) > max_bytes:
            raise InvalidValuesError(f"{len(view)} bytes, more than {max_bytes}")
        if parcel_format == "json":
            strict_json.read_object(view)
        elif parcel_format == "npz":
            _check_archive(view)
        else:
            raise InvalidValuesError(f"the format {parcel_format[:40]!r}, which is neither json nor npz")


def contents(view: memoryview) -> tuple[dict[str, Any], list[PlacedArray]]:
    """Return the values of an archive, with null where arrays belong, and these arrays.

    Checks everything but the data of the arrays. Raises InvalidValuesError.
    """
    try:
        members = archive.read(view)
    except InvalidInputError as error:
        raise InvalidValuesError(str(error)) from None
    names = [member.name for member in members]
    if names != [DOCUMENT, *(f"{number}.npy" for number in range(len(members) - 1))]:
        raise InvalidValuesError("an archive whose members are not document.json, 0.npy, 1.npy and so on")
    first = members[0]
    # The object around the values adds a container, and so does the list of lists of places.
    document = strict_json.read_object(view[first.offset : first.offset + first.size], depth=MAX_DEPTH + 1)
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
            header = npy.decode(view[member.offset : member.offset + member.size])
        except InvalidInputError as error:
            raise InvalidValuesError(f"{spelled(place)}: {error}") from None
        arrays.append(PlacedArray(place=place, header=header, offset=member.offset + header.data_offset))
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


def _check_archive(view: memoryview) -> None:
    _, arrays = contents(view)
    members = archive.read(view)
    for member in members:
        if archive.crc_of(view[member.offset : member.offset + member.size]) != member.crc:
            raise InvalidValuesError(f"member {member.name} of the archive has another checksum than it says")
    for array in arrays:
        data = view[array.offset : array.offset + array.header.data_bytes]
        if not _has_values(array.header.descr, data):
            raise InvalidValuesError(f"{spelled(array.place)}: bytes that are no {_NAMES[array.header.descr[1]]}")


_NAMES = {"b": "truths", "U": "characters"}


def _has_values(descr: str, data: memoryview) -> bool:
    """Tell whether all bytes are values of their type; of numbers all are."""
    kind = descr[1]
    if kind not in _NAMES:
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
