"""InfiniBand and RDMA ports."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
