"""Token buckets, so that junk is neither logged nor answered as fast as it arrives."""

from __future__ import annotations

import time
from collections import OrderedDict

_MAX_KEYS = 1000


class Throttle:
    """Allows ``burst`` events of one key at once, and ``per_s`` a second in the long run; owned by one thread."""

    def __init__(self, *, burst: int, per_s: float) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, key: str, count: int = 1) -> bool:
        """Count events; return whether they are within the limit."""
        now = time.monotonic()
        left, then = self._buckets.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_s)
        allowed = left >= count
        self._buckets[key] = (left - count if allowed else left, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return allowed
