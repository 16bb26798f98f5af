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
_UNITS_OF_RATES = {Unit.SECONDS: Unit.RATIO, Unit.BYTES: Unit.BYTES_PER_SECOND, Unit.JOULES: Unit.WATTS}
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
    return _in_unit(value, known.unit if known else Unit.NONE)


def format_rate(metric: Metric | str, per_second: float | None) -> str:
    """Return how fast a counter grows: "1.2 MiB/s", "37 %" for seconds a second, "12/s"; a dash when unknown."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    if per_second is None or not math.isfinite(per_second):
        return MISSING
    unit = _UNITS_OF_RATES.get(known.unit) if known else None
    return _in_unit(per_second, unit) if unit else f"{text.number(per_second)}/s"


def is_counter(series: str) -> bool:
    """Tell whether a reader should show the growth of a series: by the table, or by its name if the table lacks it."""
    known = metric_of(series)
    return known.kind is Kind.COUNTER if known is not None else metric_name(series).endswith("_total")


def _in_unit(value: float, unit: Unit) -> str:
    match unit:
        case Unit.RATIO:
            return text.percent(value)
        case Unit.BYTES:
            return text.size(value)
        case Unit.SECONDS:
            return text.duration(value)
        case Unit.COUNT | Unit.NONE:
            return text.number(value)
        case Unit.BYTES_PER_SECOND:
            return f"{text.size(value)}/s"
        case _ if unit in _PREFIXED:
            return text.scaled(value, _SYMBOLS[unit])
        case _:
            return f"{text.number(value)} {_SYMBOLS[unit]}"
