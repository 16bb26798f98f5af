"""What a parcel holds, as lines for people: names, types and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmon.plan import parcel_check, strict_json
from fedmon.plan.values import InvalidValuesError, spelled

_MAX_TEXT = 60
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "U": "text", "S": "bytes"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One value, or one array anywhere among the values; ``shape`` is that of an array or list, else null."""

    name: str
    type: str
    shape: tuple[int, ...] | None
    value: str


def listing(parcel_format: str, buffer: bytes | memoryview) -> list[Listed]:
    """Return what a parcel holds, values by their outermost names and arrays by their places; needs no numpy.

    Raises InvalidValuesError.
    """
    with memoryview(buffer) as view:
        if parcel_format == "json":
            return [_value(name, value) for name, value in strict_json.read_object(view).items()]
        if parcel_format != "npz":
            raise InvalidValuesError(f"the format {parcel_format[:40]!r}, which is neither json nor npz")
        values, arrays = parcel_check.contents(view)
    named: dict[str, list[Listed]] = {name: [] for name in values}
    for array in arrays:
        kind, size = array.header.descr[1], array.header.descr[2:]
        bits = "" if kind == "b" else size if kind in "US" else str(int(size) * 8)
        listed = Listed(name=spelled(array.place), type=f"{_KINDS[kind]}{bits}", shape=array.header.shape, value="")
        named[str(array.place[0])].append(listed)
    found: list[Listed] = []
    for name, value in values.items():
        if value is not None or not named[name]:
            found.append(_value(name, value))
        found += named[name]
    return found


def _value(name: str, value: Any) -> Listed:
    if isinstance(value, dict):
        return Listed(name=spelled([name]), type="object", shape=None, value=f"of {len(value)}")
    if isinstance(value, list):
        return Listed(name=spelled([name]), type="list", shape=(len(value),), value="")
    text = (
        ascii(value) if isinstance(value, str) else {None: "null", True: "true", False: "false"}.get(value, str(value))
    )
    kind = (
        "null"
        if value is None
        else "truth"
        if isinstance(value, bool)
        else "text"
        if isinstance(value, str)
        else "number"
    )
    return Listed(
        name=spelled([name]), type=kind, shape=None, value=text if len(text) <= _MAX_TEXT else f"{text[:57]}..."
    )
