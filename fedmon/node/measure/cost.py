"""What sampling costs, and how far it backs off when that is more than its budget."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

MAX_STRETCH = 64
_REMEMBERED = 8.0
_CALM_TICKS = 20


class Cost:
    """Watches the CPU time of sampling against a budget; belongs to the sampler's thread, but for ``stretch``.

    The share of a core is averaged over about eight ticks. Above the budget the interval is doubled, at most to 64
    times; when the share would stay below half of the budget at half the interval, for 20 ticks, it is halved again.
    """

    def __init__(self, *, budget_ratio: float) -> None:
        self.budget_ratio = budget_ratio
        self.stretch = 1
        self.cpu_s = 0.0
        # From 0, so that the first tick, which opens every file, is one among many, too.
        self._share = 0.0
        self._calm = 0

    def account(self, cpu_s: float, interval_s: float) -> bool:
        """Take the CPU seconds of one tick, with the interval as it is stretched; True when the stretch changed."""
        self.cpu_s += cpu_s
        self._share += (cpu_s / interval_s - self._share) / _REMEMBERED
        if self._share > self.budget_ratio and self.stretch < MAX_STRETCH:
            return self._change(self.stretch * 2)
        self._calm = self._calm + 1 if self._share * 4 < self.budget_ratio else 0
        if self._calm >= _CALM_TICKS and self.stretch > 1:
            return self._change(self.stretch // 2)
        return False

    def _change(self, stretch: int) -> bool:
        logger.warning(
            "sampling takes %.1f %% of a core and its budget is %.1f %%: samples are now %d times as far apart",
            self._share * 100, self.budget_ratio * 100, stretch,
        )  # fmt: skip
        # The average of another interval starts anew, or one costly tick would count more than once.
        self.stretch, self._share, self._calm = stretch, 0.0, 0
        return True
