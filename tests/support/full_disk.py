"""A disk that is full, as a program sees it that may make no larger file."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Have this process, with all of its threads, write no file beyond a size; it gets an error as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
