"""The garbage collector at rest, for what makes very many values of which none leads back to itself."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY = 1000


@contextlib.contextmanager
def collector_at_rest(resources: int) -> Iterator[None]:
    """Have the collector look at nothing while something is done with many resources; then it is as it was before.

    A step over thousands of resources makes so many that it would look at all of them again and again, and find
    nothing: a sixth of the time of such a step.
    """
    was_on = gc.isenabled() and resources >= _MANY
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
