"""What a node measures of one job: the tree of its processes, or its cgroup."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
