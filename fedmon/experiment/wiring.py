"""Former place of guids as callers give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from fedmon.experiment.errors import UnknownGuidError


def guids_of(guids: int | Iterable[int]) -> tuple[int, ...]:
    """Return guids as a tuple without repeats; one alone is taken for a list of one. Raises UnknownGuidError."""
    try:
        if not isinstance(guids, Iterable):
            return (operator.index(guids),)
        return tuple(dict.fromkeys([operator.index(guid) for guid in guids]))
    except TypeError:
        raise UnknownGuidError(f"{guids!r:.80} is no guid of a resource, and no list of them") from None
