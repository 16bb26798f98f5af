"""A pace of Python's garbage collector that suits drawing."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_OBJECTS = 100_000
"""A figure makes some ten thousand objects: at Python's own 700 the collector takes a tenth of the time of a report."""


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector look for cycles seldom within a block, and never at what was there before."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
