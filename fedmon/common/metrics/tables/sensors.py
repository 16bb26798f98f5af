"""Temperatures, frequencies, pressure, NUMA, and what the machine is made of."""

from __future__ import annotations

from fedmon.common.metrics.metric import Metric

ROWS: list[Metric] = []
