"""Hardware and software events that perf counts, and what follows from them."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
