"""The one table of metrics: names, kinds, meanings, and the formats of values.

Column names on the wire, table headers and ``docs/metrics.md`` come from here. Names are in base units, which
instance (CPU mode, device, interface, mount point) is meant is a label, and a counter ends in ``_total``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from fedmon.common import text
from fedmon.common.metrics.metric import Kind, Metric, Scope, Unit
from fedmon.common.metrics.series import metric_name
from fedmon.common.metrics.tables import energy, gpu, host, job

__all__ = [
    "METRICS", "MISSING", "Kind", "Metric", "Scope", "Unit", "format_rate", "format_value", "is_counter", "metric_of",
]  # fmt: skip

MISSING = text.MISSING
_SYMBOLS = {
    Unit.HERTZ: "Hz",
    Unit.CELSIUS: "°C",
    Unit.WATTS: "W",
    Unit.JOULES: "J",
    Unit.KILOWATT_HOURS: "kWh",
    Unit.GRAMS: "g",
    Unit.PER_SECOND: "/s",
}
_PREFIXED = frozenset({Unit.HERTZ, Unit.WATTS, Unit.JOULES, Unit.PER_SECOND})
GROUPS = (host, energy, gpu, job)

METRICS: Mapping[str, Metric] = MappingProxyType({row.name: row for group in GROUPS for row in group.ROWS})
"""Every metric by its name, in the order in which people read them."""


def metric_of(name: str) -> Metric | None:
    """Return the row of a series or metric name; None when the table does not know it."""
    return METRICS.get(metric_name(name))


def format_value(metric: Metric | str, value: float | None) -> str:
    """Return a value in its metric's unit; a dash when there is none, the bare number when the metric is unknown."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    if value is None or not math.isfinite(value):
        return MISSING
    match known.unit if known else None:
        case Unit.RATIO:
            return text.percent(value)
        case Unit.BYTES:
            return text.size(value)
        case Unit.SECONDS:
            return text.duration(value)
        case Unit.COUNT | Unit.NONE | None:
            return text.number(value)
        case Unit.BYTES_PER_SECOND:
            return f"{text.size(value)}/s"
        case unit:
            return _with_symbol(value, unit)


def format_rate(metric: Metric | str, per_second: float | None) -> str:
    """Return how fast a counter grows: "1.2 MiB/s", "37 %" for seconds a second, "12/s"; a dash when unknown."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    if per_second is None or not math.isfinite(per_second):
        return MISSING
    match known.unit if known else None:
        case Unit.SECONDS:
            return text.percent(per_second)
        case Unit.BYTES:
            return f"{text.size(per_second)}/s"
        case Unit.JOULES:  # a joule a second is a watt
            return _with_symbol(per_second, Unit.WATTS)
        case _:
            return f"{text.number(per_second)}/s"


def is_counter(series: str) -> bool:
    """Tell whether a reader should show the growth of a series: by the table, or by its name if the table lacks it."""
    known = metric_of(series)
    return known.kind is Kind.COUNTER if known is not None else metric_name(series).endswith("_total")


def _with_symbol(value: float, unit: Unit) -> str:
    if unit in _PREFIXED:
        return text.scaled(value, _SYMBOLS[unit])
    return f"{text.number(value)} {_SYMBOLS[unit]}"
