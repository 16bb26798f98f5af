"""What a batch weighs in memory, so that a bound in bytes is one."""

from __future__ import annotations

from collections.abc import Sized

BYTES_A_COLUMN = 220
"""A list, its name as an object, and its place in a dictionary: CPython 3.11 to 3.13 on 64 bits, measured."""
BYTES_A_VALUE = 40
"""A float and its place in a list that may have grown by an eighth."""


def memory_bytes(*, samples: int, columns: Sized, payload_bytes: int) -> int:
    """Return about how much memory a decoded batch takes; its text weighs as much as its names and reasons at least."""
    return 400 + payload_bytes + len(columns) * BYTES_A_COLUMN + (len(columns) + 2) * samples * BYTES_A_VALUE
