"""What values an attribute takes: its type, its range, and what it is one of."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from fedmon.experiment.noted_values import is_same


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
