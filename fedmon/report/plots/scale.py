"""The unit of an axis: one that is easy to read for the values on it."""

from __future__ import annotations

import math

import msgspec

from fedmon.report.plots.figure import Quantity

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LARGEST = 1e30
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


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A unit: a value of the recording times ``factor`` is a number in ``unit``."""

    unit: str
    factor: float

    def number(self, value: float) -> str:
        """Return a value as a number in this unit, without the unit."""
        return number(value * self.factor)

    def text(self, value: float) -> str:
        """Return a value as a number and its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()


def scale_of(quantity: Quantity, largest: float, noun: str = "") -> Scale:
    """Return the unit in which values up to ``largest`` are short numbers."""
    largest = min(abs(largest), _LARGEST) if math.isfinite(largest) else 0.0
    if quantity in _STEPS:
        units, base, first = _STEPS[quantity]
        return _stepped(units, base, largest * first, first=first)
    if quantity is Quantity.SECONDS:
        return _seconds(largest)
    unit, factor = _FIXED.get(quantity, ("", 1.0))
    return Scale(unit=noun or unit, factor=factor)


def number(value: float) -> str:
    """Return a number with three digits that matter, and a prefix from 10 000 on."""
    size = abs(value)
    if not math.isfinite(value):
        return "-"
    if size >= 1e16 or 0 < size < 1e-3:
        return f"{value:.2g}"
    for prefix, step in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= step * (10 if step == 1e3 else 1) * 0.9995:
            return f"{_short(value / step)} {prefix}"
    return _short(value)


def _short(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _stepped(units: tuple[str, ...], base: float, largest: float, *, first: float) -> Scale:
    step = 0
    while largest >= base and step < len(units) - 1:
        largest /= base
        step += 1
    return Scale(unit=units[step], factor=first / base**step)


def _seconds(largest: float) -> Scale:
    for unit, from_s, size in (
        ("d", 172_800.0, 86_400.0),
        ("h", 7200.0, 3600.0),
        ("min", 120.0, 60.0),
        ("s", 1.0, 1.0),
    ):
        if largest >= from_s:
            return Scale(unit=unit, factor=1.0 / size)
    if largest >= 1e-3:
        return Scale(unit="ms", factor=1e3)
    return Scale(unit="µs" if largest else "s", factor=1e6 if largest else 1.0)
