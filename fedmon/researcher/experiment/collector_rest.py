"""The garbage collector at rest, for what makes very many values of which none leads back to itself."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Have the collector look at nothing for a moment; it goes on where it was on before.

    A step over thousands of resources makes so many that it would look at all of them again and again, and find
    nothing: a sixth of the time of such a step.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
