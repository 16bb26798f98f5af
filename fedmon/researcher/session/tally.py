"""Counters of dropped and refused messages, logged at a bounded rate."""

from __future__ import annotations

import logging
import threading
import time

from fedmon.common.log import escape_control

logger = logging.getLogger(__name__)

SAY_EVERY_S = 10.0
MAX_DETAIL = 300


class Tally:
    """Counters by kind. Safe from any thread.

    The first event of a kind is logged at warning, then at most one line each ``say_every_s`` with the count so far.
    """

    def __init__(self, *, say_every_s: float = SAY_EVERY_S) -> None:
        self._say_every_s = say_every_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._said_at: dict[str, float] = {}

    def count(self, kind: str, detail: str = "", *, number: int = 1, quiet: bool = False) -> None:
        """Add to a counter; ``detail`` is escaped and shown in the log line, ``quiet`` counts only."""
        with self._lock:
            total = self._counts[kind] = self._counts.get(kind, 0) + number
            now = time.monotonic()
            said_at = self._said_at.get(kind)
            if quiet or (said_at is not None and now - said_at < self._say_every_s):
                return
            self._said_at[kind] = now
        logger.warning("%s: %d so far; the latest: %s", kind, total, escape_control(detail[:MAX_DETAIL]) or "-")

    def __getitem__(self, kind: str) -> int:
        with self._lock:
            return self._counts.get(kind, 0)

    def as_dict(self) -> dict[str, int]:
        """Return a copy of all counters that are not zero, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))
