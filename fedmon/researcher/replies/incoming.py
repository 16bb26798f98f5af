"""A message on its way to the disk, and who wants to hear that it is there."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from fedmon.researcher.replies.kept import Keepable

logger = logging.getLogger(__name__)


class OnKept(Protocol):
    """Hears under which key a message is safe, and whether it came for the first time."""

    def __call__(self, key: int, *, first: bool) -> None:
        """Hear it, on the thread that writes."""


def nothing(key: int, *, first: bool) -> None:
    """Stand in for a caller that does not wait until its message is safe."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message on its way to the disk."""

    message: Keepable
    only_once: bool = False
    on_kept: OnKept = nothing

    def told(self, key: int, *, first: bool) -> None:
        """Tell who wanted to hear; a failing one must not end the thread that writes for all."""
        try:
            self.on_kept(key, first=first)
        except Exception:
            logger.exception("what follows keeping message %s failed", self.message.id)
