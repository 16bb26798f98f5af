"""Amounts as the sentences of a report say them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from fedmon.common.metrics.table import format_rate, format_value

_KWH = 3_600_000.0
_WH = 3600.0


def percent(ratio: float) -> str:
    """Return a ratio as "37 %"."""
    return format_value("host_cpu_busy_ratio", ratio)


def size(amount: float) -> str:
    """Return bytes as "1.2 GiB"."""
    return format_value("host_memory_total_bytes", amount)


def size_rate(per_second: float) -> str:
    """Return bytes a second as "1.2 MiB/s"."""
    return format_rate("host_disk_read_bytes_total", per_second)


def duration(seconds: float) -> str:
    """Return seconds as "2 d 4 h"."""
    return format_value("host_uptime_seconds", seconds)


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits and no exponent as long as it can be read without one."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if abs(value) >= 10**digits:
        return f"{value:,.0f}".replace(",", " ") if abs(value) < 1e12 else f"{value:.{digits}g}"
    return f"{value:.{digits}g}"


def energy(joules: float) -> str:
    """Return joules as "12 J", "3.4 Wh" or "1.2 kWh"."""
    if abs(joules) >= _KWH:
        return f"{number(joules / _KWH)} kWh"
    if abs(joules) >= _WH:
        return f"{number(joules / _WH)} Wh"
    return f"{number(joules)} J ({number(joules / _WH)} Wh)"


def mass(grams: float) -> str:
    """Return grams as "12 g" or "1.2 kg"."""
    return f"{number(grams / 1000)} kg" if abs(grams) >= 1000 else f"{number(grams)} g"


def moment(t: float) -> str:
    """Return a Unix time as "2026-11-21 10:12:58 UTC"; a dash for what no calendar has."""
    try:
        return datetime.fromtimestamp(t, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "-"


def counted(amount: int, one: str, many: str | None = None) -> str:
    """Return "1 node" or "3 nodes"."""
    return f"{amount} {one if amount == 1 else many or f'{one}s'}"


def listed(words: Sequence[str], most: int = 3) -> str:
    """Return "a, b and c", or "a, b, c and 7 more"."""
    if len(words) > most + 1:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
