"""Knowing when everybody who is there has been heard of: the marker, the quiet time, the cap."""

from __future__ import annotations

QUIET_S = 0.3
CAP_S = 2.0


class Settling:
    """Decides from times alone whether the roster is settled; belongs to one thread.

    After connecting, retained presence arrives before the marker that we publish to ourselves; nodes that the broker
    remembers nothing of answer the first ping. Settled is: the marker is back and nobody new was heard of for 300 ms,
    or 2 s have passed.
    """

    def __init__(self) -> None:
        self._begun_at: float | None = None
        self._news_at = 0.0
        self._marker_back = False
        self.settled = False

    def begin(self, now: float) -> None:
        """Start over: we are connected, and the marker and the first ping are on their way."""
        self._begun_at = self._news_at = now
        self._marker_back = self.settled = False

    def interrupt(self) -> None:
        """Note that the connection is gone; what was settled is not any more."""
        self._begun_at = None
        self.settled = False

    def marker_back(self) -> None:
        """Note that the marker came back."""
        self._marker_back = True

    def heard_new(self, now: float) -> None:
        """Note that a node was heard of for the first time."""
        self._news_at = now

    def check(self, now: float) -> bool:
        """Return True once, at the moment when the roster becomes settled."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return False
        self.settled = True
        return True

    def due_at(self) -> float | None:
        """Return when `check` is to be asked next, on the monotonic clock; null when there is nothing to wait for."""
        if self._begun_at is None or self.settled:
            return None
        cap_at = self._begun_at + CAP_S
        return min(cap_at, self._news_at + QUIET_S) if self._marker_back else cap_at
