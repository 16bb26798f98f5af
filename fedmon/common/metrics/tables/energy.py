"""Energy and power of the machine and the share of a job."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
