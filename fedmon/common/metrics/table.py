"""The one table of metrics: what each is called, counts, and means.

Column names on the wire, table headers and ``docs/metrics.md`` come from here. Names are in base units, which
instance (CPU mode, device, interface, mount point) is meant is a label, and a counter ends in ``_total``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fedmon.common.metrics.metric import Kind, Metric, Scope, Unit
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.tables import energy, gpu, host, job

__all__ = ["METRICS", "Kind", "Metric", "Scope", "Unit", "by_name", "metric_of"]

_GROUPS = (host, energy, gpu, job)


def by_name(rows: Iterable[Metric]) -> Mapping[str, Metric]:
    """Return the rows under their names, in their order.

    Raises ValueError when a name is declared twice.
    """
    table: dict[str, Metric] = {}
    for row in rows:
        if table.setdefault(row.name, row) is not row:
            raise ValueError(f"metric {row.name} is declared twice; give one of them another name")
    return MappingProxyType(table)


METRICS: Mapping[str, Metric] = by_name(row for group in _GROUPS for row in group.ROWS)
"""Every metric by its name, in the order in which people read them."""


def metric_of(text: str) -> Metric | None:
    """Return the row of a series or metric name; None when the table does not know it."""
    return METRICS.get(metric_name(text))
