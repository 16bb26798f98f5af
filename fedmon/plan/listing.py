"""What a parcel holds, as lines for people: names, types and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedmon.plan.parcel_check import contents
from fedmon.plan.values import spelled

_MAX_TEXT = 60
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "U": "text", "S": "bytes"}


@dataclass(frozen=True, slots=True)
class ListedValue:
    """One value, or one array anywhere among the values; ``shape`` is that of an array or list, else None."""

    name: str
    type: str
    shape: tuple[int, ...] | None
    value: str


def listing(parcel_format: str, buffer: bytes | memoryview) -> list[ListedValue]:
    """Return what a parcel holds for people: values by their outermost names and arrays by their places.

    Raises InvalidValuesError.
    """
    with memoryview(buffer) as view:
        values, arrays = contents(parcel_format, view)
    named: dict[str, list[ListedValue]] = {name: [] for name in values}
    for array in arrays:
        kind, size = array.header.descr[1], array.header.descr[2:]
        bits = "" if kind == "b" else size if kind in "US" else str(int(size) * 8)
        listed = ListedValue(spelled(array.place), f"{_KINDS[kind]}{bits}", array.header.shape, "")
        named[str(array.place[0])].append(listed)
    found: list[ListedValue] = []
    for name, value in values.items():
        if value is not None or not named[name]:
            found.append(_listed(spelled([name]), value))
        found += named[name]
    return found


def _listed(name: str, value: Any) -> ListedValue:
    if isinstance(value, dict):
        return ListedValue(name, "object", None, f"of {len(value)}")
    if isinstance(value, list):
        return ListedValue(name, "list", (len(value),), "")
    if value is None:
        return ListedValue(name, "null", None, "null")
    if isinstance(value, bool):
        return ListedValue(name, "truth", None, str(value).lower())
    kind, text = ("text", ascii(value)) if isinstance(value, str) else ("number", str(value))
    return ListedValue(name, kind, None, text if len(text) <= _MAX_TEXT else f"{text[:57]}...")
