"""Values of attributes as files and journals hold them: plain ones, and those that JSON has no form for as a text."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

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
