"""Limits of a test's own process: no larger files, as on a disk that is full, or no more open ones."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Have this process, with all of its threads, write no file beyond a size; it gets an error as on a full disk."""
    with limited(resource.RLIMIT_FSIZE, size_bytes):
        yield


@contextlib.contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Set one of this process's limits, such as RLIMIT_NOFILE, until the end of the block."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
