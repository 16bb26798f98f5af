"""Values as people read them: "1.2 GiB", "37 %", "2 d 4 h"."""

from __future__ import annotations

import math

from fedmon.common import text
from fedmon.common.metrics.table import Kind, Metric, Unit, metric_of

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


def is_counter(metric: Metric | str) -> bool:
    """Tell whether a reader should show the growth of a metric and not its value."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    return known is not None and known.kind is Kind.COUNTER


def _with_symbol(value: float, unit: Unit) -> str:
    if unit in _PREFIXED:
        return text.scaled(value, _SYMBOLS[unit])
    return f"{text.number(value)} {_SYMBOLS[unit]}"
