"""Amounts as the sentences of a report say them."""

from __future__ import annotations

import math

_KWH = 3_600_000.0
_WH = 3600.0


def significant(value: float, digits: int = 3) -> str:
    """Return a number with this number of significant digits, and an exponent only if needed for reading."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    is_long = 10**digits <= abs(value) < 1e12
    return f"{value:,.0f}".replace(",", " ") if is_long else f"{value:.{digits}g}"


def energy(joules: float) -> str:
    """Return joules as "12 J", "3.4 Wh" or "1.2 kWh"."""
    if abs(joules) >= _KWH:
        return f"{significant(joules / _KWH)} kWh"
    if abs(joules) >= _WH:
        return f"{significant(joules / _WH)} Wh"
    return f"{significant(joules)} J ({significant(joules / _WH)} Wh)"


def mass(grams: float) -> str:
    """Return grams as "12 g" or "1.2 kg"."""
    return f"{significant(grams / 1000)} kg" if abs(grams) >= 1000 else f"{significant(grams)} g"
