"""Where a time axis has its ticks and what they say: seconds for short recordings, dates for long ones."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator

import msgspec

SHORT_S = 300.0
"""Recordings up to this length are shown in seconds since their begin."""

_DAY = 86_400
_STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAYS = (1, 2, 7, 14)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120)


class TimeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """A Unix time ``t`` is drawn at ``t - origin``; ``ticks`` are such positions with their labels."""

    origin: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    label: str


def time_axis(start: float, end: float, *, zone: datetime.tzinfo = datetime.UTC, most: int = 9) -> TimeAxis:
    """Return the axis for Unix times ``start`` to ``end``, with at most ``most`` ticks or so, in a time zone."""
    span = max(end - start, 0.0)
    first = datetime.datetime.fromtimestamp(start, zone)
    if span <= SHORT_S:
        step = _nice(max(span, 1e-3) / (most - 1))
        ticks = [number * step for number in range(int(span / step + 1e-6) + 1)]
        label = f"seconds since {first:%Y-%m-%d %H:%M:%S} {_zone_name(first)}"
        return TimeAxis(origin=start, start=0.0, end=span, ticks=tuple((at, f"{at:g}") for at in ticks), label=label)
    last = datetime.datetime.fromtimestamp(end, zone)
    ticks_at = [moment for moment in _moments(first, last, span / (most - 1)) if start <= moment.timestamp() <= end]
    has_hours = any(moment.hour or moment.minute for moment in ticks_at)
    has_years = first.year != last.year and all(moment.day == 1 for moment in ticks_at)
    labels = tuple((at.timestamp() - start, _tick(at, has_hours=has_hours, has_years=has_years)) for at in ticks_at)
    return TimeAxis(origin=start, start=0.0, end=span, ticks=labels, label=_label(first, last))


def _tick(moment: datetime.datetime, *, has_hours: bool, has_years: bool) -> str:
    if has_hours and (moment.hour or moment.minute):
        return f"{moment:%H:%M}"
    return f"{moment:%b %Y}" if has_years else f"{moment.day} {moment:%b}"


def _label(first: datetime.datetime, last: datetime.datetime) -> str:
    begins, ends = f"{first.day} {first:%B}", f"{last.day} {last:%B} {last.year}"
    if first.date() == last.date():
        return f"{ends}, {_zone_name(first)}"
    year = "" if first.year == last.year else f" {first.year}"
    return f"{begins}{year} to {ends}, {_zone_name(first)}"


def _zone_name(moment: datetime.datetime) -> str:
    name = moment.tzname() or "UTC"
    return name if name == "UTC" else f"{name} (UTC{moment:%z})"


def _nice(step: float) -> float:
    size: float = 10.0 ** math.floor(math.log10(step))
    return next((size * factor for factor in (1, 2, 5) if size * factor >= step * 0.999), size * 10)


def _moments(first: datetime.datetime, last: datetime.datetime, step_s: float) -> Iterator[datetime.datetime]:
    """Return round moments on the clock of the time zone; every day begins anew, so that a changed clock is right."""
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    within_day = next((step for step in _STEPS if step >= step_s), None)
    days = next((step for step in _DAYS if step * _DAY >= step_s), None)
    if within_day is not None:
        while midnight <= last:
            for second in range(0, _DAY, within_day):
                yield midnight.replace(hour=second // 3600, minute=second % 3600 // 60)
            midnight = _next_day(midnight, 1)
    elif days is not None:
        while midnight <= last:
            yield midnight
            midnight = _next_day(midnight, days)
    else:
        months = next((step for step in _MONTHS if step * 31 * _DAY >= step_s), _MONTHS[-1])
        month = midnight.replace(day=1, month=1)
        while month <= last:
            yield month
            number = month.year * 12 + month.month - 1 + months
            month = month.replace(year=number // 12, month=number % 12 + 1)


def _next_day(midnight: datetime.datetime, days: int) -> datetime.datetime:
    return datetime.datetime.combine(midnight.date() + datetime.timedelta(days=days), datetime.time(), midnight.tzinfo)
