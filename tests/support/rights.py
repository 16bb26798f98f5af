"""Fewer rights than root has, so that the kernel itself refuses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

NOBODY = 65_534


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Have this process open files without the rights of root, until the end of the block."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
