"""Values as people read them: "1.2 GiB", "37 %", "2 d 4 h"."""

from __future__ import annotations

import math

from fedmon.common.metrics.table import Kind, Metric, Unit, metric_of

MISSING = "-"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T")
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
            return _percent(value)
        case Unit.BYTES:
            return _scaled(value, 1024.0, _BINARY)
        case Unit.SECONDS:
            return _duration(value)
        case Unit.COUNT | Unit.NONE | None:
            return _number(value)
        case Unit.BYTES_PER_SECOND:
            return f"{_scaled(value, 1024.0, _BINARY)}/s"
        case unit:
            return _with_symbol(value, unit)


def format_rate(metric: Metric | str, per_second: float | None) -> str:
    """Return how fast a counter grows: "1.2 MiB/s", "37 %" for seconds a second, "12/s"; a dash when unknown."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    if per_second is None or not math.isfinite(per_second):
        return MISSING
    match known.unit if known else None:
        case Unit.SECONDS:
            return _percent(per_second)
        case Unit.BYTES:
            return f"{_scaled(per_second, 1024.0, _BINARY)}/s"
        case Unit.JOULES:  # a joule a second is a watt
            return _with_symbol(per_second, Unit.WATTS)
        case _:
            return f"{_number(per_second)}/s"


def is_counter(metric: Metric | str) -> bool:
    """Tell whether a reader should show the growth of a metric and not its value."""
    known = metric_of(metric) if isinstance(metric, str) else metric
    return known is not None and known.kind is Kind.COUNTER


def _percent(ratio: float) -> str:
    percent = ratio * 100
    return f"{percent:.1f} %" if 0 < abs(percent) < 9.95 else f"{percent:.0f} %"


def _with_symbol(value: float, unit: Unit) -> str:
    if unit in _PREFIXED:
        return _scaled(value, 1000.0, tuple(f"{prefix}{_SYMBOLS[unit]}" for prefix in _DECIMAL))
    return f"{_number(value)} {_SYMBOLS[unit]}"


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return _scaled(value, 1000.0, _DECIMAL).rstrip()
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.2g}"


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    exponent = 0
    # 999.5 would be printed as 1000: the next unit begins where rounding does.
    while abs(value) >= base - 0.5 and exponent < len(units) - 1:
        value /= base
        exponent += 1
    text = f"{value:.1f}" if exponent and abs(value) < 99.95 else f"{value:.0f}"
    return f"{text} {units[exponent]}"


def _duration(seconds: float) -> str:
    if abs(seconds) < 1:
        return f"{seconds * 1000:.1f} ms" if seconds else "0 s"
    if abs(seconds) < 99.95:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s"
