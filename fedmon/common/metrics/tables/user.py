"""Values that a program reports beside the resources it uses."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
