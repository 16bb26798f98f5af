"""Text in the order in which people read it: cpu 2 before cpu 10."""

from __future__ import annotations

import re

_PARTS = re.compile(r"([0-9]{1,18})")

Order = tuple[tuple[int, int, str], ...]


def natural(text: str) -> Order:
    """Return what a text is sorted by: numbers in it count as numbers, and come before letters."""
    parts = filter(None, _PARTS.split(text))
    return tuple((0, int(part), part) if _PARTS.fullmatch(part) else (1, 0, part) for part in parts)
