"""Messages that arrive: queued on the network thread, handled by a dedicated thread; their weight, and counters."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sized

from fedmon.common.actor import Actor, Priority
from fedmon.common.log import escape_control

logger = logging.getLogger(__name__)

STOP_WAITS_S = 2.0
RETRY_S = 1.0
MAX_DETAIL = 300
TALLY_EVERY_S = 10.0
MESSAGES_A_TICK = 16
"""While many messages wait, ``on_tick`` is called after this number of them."""
BYTES_A_COLUMN = 220
"""A list, its name as an object, and its place in a dictionary: CPython 3.11 to 3.13 on 64 bits, measured."""
BYTES_A_VALUE = 40
"""A float and its place in a list that may have grown by an eighth."""


class Tally:
    """Counters of dropped and refused messages, by kind. Safe from any thread.

    The first event of a kind is logged at warning, then at most one line each 10 s with the count so far.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}

    def count(self, kind: str, detail: str = "", *, quiet: bool = False) -> None:
        """Add to a counter; ``detail`` is escaped and shown in the log line, ``quiet`` counts only."""
        with self._lock:
            self._counts[kind] += 1
            total, now = self._counts[kind], time.monotonic()
            if quiet or now - self._said_at.get(kind, -math.inf) < TALLY_EVERY_S:
                return
            self._said_at[kind] = now
        logger.warning("%s: %d so far; the latest: %s", kind, total, escape_control(detail[:MAX_DETAIL]) or "-")

    def as_dict(self) -> dict[str, int]:
        """Return a copy of all counters that are not zero, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


class Inbox(Actor):
    """Handles messages on a dedicated thread; a flood of samples displaces no reply.

    ``on_message`` gets topic, bytes, and whether it was retained. ``on_tick`` is called at the start, after messages
    came, at `wake`, and when the seconds are over that it returned. Both run on the inbox's thread.
    """

    def __init__(self, *, on_message: Callable[[str, bytes, bool], None], on_tick: Callable[[], float]) -> None:
        super().__init__("fedmon-inbox")
        self._on_message, self._on_tick = on_message, on_tick
        self._since_tick = 0
        self._timer_at = float("inf")
        self.wake()

    def stop(self) -> None:
        """End the thread; messages that were not handled yet are dropped."""
        self.close(timeout_s=STOP_WAITS_S, drop=True)

    def put(self, topic: str, payload: bytes, retained: bool = False) -> None:  # noqa: FBT001, FBT002 - the transport's order
        """Take a message from the network thread."""
        urgent = topic.startswith(("general/researcher", "general/status/"))
        self.post(
            lambda: self._arrived(topic, payload, retained),
            priority=Priority.URGENT if urgent else Priority.BULK,
            size_bytes=len(payload),
        )

    def wake(self) -> None:
        """Call ``on_tick`` soon."""
        self.post(self._tick)

    def drain(self, timeout_s: float) -> None:
        """Wait at most this long until earlier messages are handled."""
        handled = threading.Event()
        self.post(handled.set, priority=Priority.BULK)
        handled.wait(timeout_s)

    def _tick(self) -> None:
        self._since_tick = 0
        pause_s = RETRY_S
        try:
            pause_s = self._on_tick()
        finally:
            due_at = time.monotonic() + pause_s
            if due_at < self._timer_at:
                self._timer_at = due_at
                self.at(due_at, lambda: self._timer(due_at))

    def _timer(self, due_at: float) -> None:
        if due_at == self._timer_at:
            self._timer_at = float("inf")
            self._tick()

    def _arrived(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001 - as `put`
        self._since_tick += 1
        try:
            self._on_message(topic, payload, retained)
        finally:
            if self._since_tick >= MESSAGES_A_TICK or not self.backlog:
                self._tick()


def memory_bytes(*, samples: int, columns: Sized, payload_bytes: int) -> int:
    """Return about how much memory a decoded batch takes; its text weighs as much as its names and reasons at least."""
    return 400 + payload_bytes + len(columns) * BYTES_A_COLUMN + (len(columns) + 2) * samples * BYTES_A_VALUE
