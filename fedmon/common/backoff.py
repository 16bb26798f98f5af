"""The one retry schedule: growing delays between attempts."""

from __future__ import annotations

import random


class Backoff:
    """Delays between attempts, each ``factor`` times as long as the one before, up to ``longest_s``.

    ``jitter`` is the share of a delay that chance may take away, so that many clients do not return at once.
    ``longest_s`` may be changed between attempts. ``attempts`` counts the delays since the last success.
    """

    def __init__(self, first_s: float, *, longest_s: float, factor: float = 2.0, jitter: float = 0.0) -> None:
        self.longest_s = longest_s
        self._first_s, self._factor, self._jitter = first_s, factor, jitter
        self.reset()

    def next_s(self) -> float:
        """Count a failed attempt; return how many seconds to wait before the next."""
        delay_s = min(self.longest_s, self._next_s)
        self.attempts += 1
        self._next_s *= self._factor
        return delay_s * random.uniform(1 - self._jitter, 1) if self._jitter else delay_s  # noqa: S311

    def reset(self) -> None:
        """Begin again with the first delay, after a success."""
        self.attempts, self._next_s = 0, self._first_s
