"""The unit of an axis: one that is easy to read for the values on it."""

from __future__ import annotations

import enum
import math

import msgspec

from fedmon.common.metrics.table import Kind, Metric, Unit

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LARGEST = 1e30


class Quantity(enum.Enum):
    """What the numbers of an axis are, which decides its unit and how it is scaled."""

    BYTES = "bytes"
    BYTE_RATE = "bytes per second"
    SHARE = "percent"
    CPUS = "CPUs"
    COUNT = "count"
    RATE = "per second"
    SECONDS = "seconds"
    HERTZ = "hertz"
    CELSIUS = "degrees"
    WATTS = "watts"
    GRAM_RATE = "grams per hour"
    NUMBER = "number"


_GAUGES = {
    Unit.RATIO: Quantity.SHARE,
    Unit.BYTES: Quantity.BYTES,
    Unit.SECONDS: Quantity.SECONDS,
    Unit.COUNT: Quantity.COUNT,
    Unit.HERTZ: Quantity.HERTZ,
    Unit.CELSIUS: Quantity.CELSIUS,
    Unit.WATTS: Quantity.WATTS,
    Unit.BYTES_PER_SECOND: Quantity.BYTE_RATE,
    Unit.PER_SECOND: Quantity.RATE,
}
_COUNTERS = {
    Unit.BYTES: Quantity.BYTE_RATE,
    Unit.SECONDS: Quantity.SHARE,
    Unit.COUNT: Quantity.RATE,
    Unit.JOULES: Quantity.WATTS,
    Unit.GRAMS: Quantity.GRAM_RATE,
}
# Units, what is between them, and how many of the first one a value of 1 is.
_STEPS = {
    Quantity.BYTES: (_BINARY, 1024.0, 1.0),
    Quantity.BYTE_RATE: (tuple(f"{unit}/s" for unit in _BINARY), 1024.0, 1.0),
    Quantity.WATTS: (("mW", "W", "kW", "MW"), 1000.0, 1000.0),
    Quantity.HERTZ: (("Hz", "kHz", "MHz", "GHz"), 1000.0, 1.0),
    Quantity.GRAM_RATE: (("mg/h", "g/h", "kg/h"), 1000.0, 3.6e6),
}
_FIXED = {
    Quantity.SHARE: ("%", 100.0),
    Quantity.CELSIUS: ("°C", 1.0),
    Quantity.CPUS: ("CPUs", 1.0),
    Quantity.RATE: ("per second", 1.0),
}
_TIMES = (("d", 172_800.0, 86_400.0), ("h", 7200.0, 3600.0), ("min", 120.0, 60.0), ("s", 1.0, 1.0))
"""Units of time, from how many seconds on they are used, and how many they have."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A unit: a value of the recording times ``factor`` is a number in ``unit``."""

    unit: str
    factor: float


def quantity_of(metric: Metric | None) -> Quantity:
    """Return what the values of a metric are on an axis; of a counter, its growth per second."""
    if metric is None:
        return Quantity.NUMBER
    table = _COUNTERS if metric.kind is Kind.COUNTER else _GAUGES
    return table.get(metric.unit, Quantity.NUMBER)


def scale_of(quantity: Quantity, largest: float) -> Scale:
    """Return the unit in which values up to ``largest`` are short numbers."""
    largest = min(abs(largest), _LARGEST) if math.isfinite(largest) else 0.0
    if quantity in _STEPS:
        units, base, first = _STEPS[quantity]
        step, left = 0, largest * first
        while left >= base and step < len(units) - 1:
            left, step = left / base, step + 1
        return Scale(unit=units[step], factor=first / base**step)
    if quantity is Quantity.SECONDS:
        for unit, from_s, size in _TIMES:
            if largest >= from_s:
                return Scale(unit=unit, factor=1.0 / size)
        return Scale(unit="ms", factor=1e3) if largest >= 1e-3 else Scale(unit="µs", factor=1e6)
    unit, factor = _FIXED.get(quantity, ("", 1.0))
    return Scale(unit=unit, factor=factor)
