"""The output of ``perf stat -x ';'`` in the locale C, and its running totals.

A line is ``[time;]value;unit;event[;cgroup];running ns;running %[;metric;metric unit]``. The value is a number, or
``<not counted>`` or ``<not supported>``, which is a gap and no 0. Source: man page perf-stat(1), section "CSV FORMAT".
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict

import msgspec

from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Reading, Why
from fedmon.node.perf.events import COUNTED_SECONDS, KERNEL_EVENTS, RUNNING, SEPARATOR, Event, Plan

NOT_SUPPORTED = "not supported"

_VALUE = re.compile(r"<(not counted|not supported)>|\d+(?:\.\d+)?", re.ASCII)
_MODIFIERS = re.compile(r"(?<=[^:]):([ukhGHpPSDWeIb]+)$")
_NOT_COUNTED = f"{Why.FAILED.value}: not counted: it did not run since the previous sample, or no counter was free"
_NOT_SUPPORTED = f"{Why.UNSUPPORTED.value}: perf says that the event is not supported here"
_INCOMPLETE = f"{Why.FAILED.value}: the events of this group were not all counted in one interval"
_ZERO_DIVISOR = f"{Why.FAILED.value}: nothing happened that the result could be divided by"
_KERNEL_ONLY = f"{Why.NO_PERMISSION.value}: happens in the kernel, which only a user with CAP_PERFMON may count"


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """One line: the count of an event in one interval.

    ``value`` is None with the word of the ``gap``. ``time_s`` is the end of the interval since perf began; None without
    intervals. ``running_ratio`` is the share of the time in which a counter was free for it.
    """

    event: str
    value: float | None
    gap: str | None = None
    time_s: float | None = None
    unit: str = ""
    modifiers: str = ""
    running_ratio: float | None = None


def parse_line(line: str) -> Count | None:
    """Read one line; None if it is no count: a comment, a message, or a torn line."""
    fields = [field.strip() for field in line.strip().split(SEPARATOR)]
    matches = [_VALUE.fullmatch(field) for field in fields]
    time_s = None
    if len(fields) > 3 and matches[0] and matches[1]:
        time_s = float(fields[0])
        del fields[0], matches[0]
    if len(fields) < 3 or (value := matches[0]) is None or not fields[2]:
        return None
    rest = fields[3:]
    if rest and rest[0] and _VALUE.fullmatch(rest[0]) is None:
        del rest[0]  # the cgroup, before the running time and its share
    modifiers, gap = _MODIFIERS.search(fields[2]), value[1]
    has_ratio = gap is None and len(rest) > 1 and _VALUE.fullmatch(rest[1]) is not None
    return Count(
        event=fields[2][: modifiers.start()] if modifiers else fields[2],
        value=None if gap else float(value[0]),
        gap=gap,
        time_s=time_s,
        unit=fields[1],
        modifiers=modifiers[1] if modifiers else "",
        running_ratio=min(float(rest[1]) / 100, 1.0) if has_ratio else None,
    )


class Totals:
    """The running totals of a plan, kept over restarts of perf.

    ``begin``, ``add`` and ``end_interval`` belong to the thread that reads perf; ``take`` is safe from any thread.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known = {
            event.printed(group.name): (event, event.series(group.name))
            for group in plan.groups
            for event in group.events
        }
        self._lock = threading.Lock()
        self._ended_s = 0.0
        self._interval: defaultdict[str, list[Count]] = defaultdict(list)
        self._time_s: float | None = None
        self._seconds = 0.0
        self._totals: dict[str, float] = {}
        self._gaps: dict[str, str] = {}
        # Of each group since the last `take`: sums over its intervals without a gap, and the least running ratio.
        self._windows: dict[str, dict[str, float]] = {}
        self._ratios: dict[str, float] = {}
        self._fresh = False

    def begin(self) -> None:
        """Start the clock at 0, as a new perf does."""
        self._interval.clear()
        self._time_s, self._ended_s = None, 0.0

    def add(self, count: Count) -> None:
        """Take one line; a new time ends the interval before it."""
        if count.time_s != self._time_s:
            self.end_interval()
            self._time_s = count.time_s
        self._interval[count.event].append(count)

    def end_interval(self) -> None:
        """Add the lines since the last end."""
        if not self._interval or self._time_s is None:
            return
        seconds = max(0.0, self._time_s - self._ended_s)
        with self._lock:
            for group in self._plan.groups:
                self._end_group(group.name, [event.printed(group.name) for event in group.events], seconds)
            self._seconds += seconds
            self._fresh = True
        self._ended_s = self._time_s
        self._interval.clear()

    def take(self) -> Reading | None:
        """Return the totals, and series derived from the intervals since the previous call; None if none has ended."""
        with self._lock:
            if not self._fresh:
                return None
            windows, ratios, gaps = self._windows, self._ratios, self._gaps
            self._fresh, self._windows, self._ratios, self._gaps = False, {}, {}, {}
            totals, seconds = dict(self._totals), self._seconds
        values: dict[str, float | None] = {COUNTED_SECONDS: round(seconds, 6)}
        reasons: dict[str, str] = {}
        for group in self._plan.groups:
            window, gap = windows.get(group.name), ""
            for name in (event.series(group.name) for event in group.events):
                if reason := gaps.get(name):
                    values[name], reasons[name] = None, reason
                    gap = gap or reason
                else:
                    values[name] = totals[name]
            if group.name in ratios and group.has_ratio:
                values[series(RUNNING, group=group.name)] = ratios[group.name]
            for derived in self._plan.derived[group.name]:
                result = None if window is None else derived.formula.value(window)
                values[derived.series] = result
                if result is None:
                    reasons[derived.series] = (gap or _INCOMPLETE) if window is None else _ZERO_DIVISOR
        return Reading(values, reasons)

    def _end_group(self, name: str, printed: list[str], seconds: float) -> None:
        counts: dict[str, float] = {}
        ratios = []
        for event_name in printed:
            event, key = self._known[event_name]
            # A counter of several devices (memory controllers) may be printed once for each.
            lines = self._interval.get(event_name, [])
            value, reason = _sum_of(event, lines)
            if reason:
                self._gaps.setdefault(key, reason)
            else:
                self._totals[key] = self._totals.get(key, 0) + value
                self._gaps[key] = ""  # a value since the previous look is enough
                counts[event.variable] = value
                ratios += [line.running_ratio for line in lines if line.running_ratio is not None]
        if len(counts) < len(printed) or seconds <= 0:
            return
        window = self._windows.setdefault(name, {})
        for variable, value in {**counts, "seconds": seconds}.items():
            window[variable] = window.get(variable, 0) + value
        self._ratios[name] = min([*ratios, self._ratios.get(name, 1.0)])


def _sum_of(event: Event, lines: list[Count]) -> tuple[float, str]:
    """Return the sum of the lines of one event, and the reason of a gap among them."""
    value: float = 0
    reason = "" if lines else _NOT_COUNTED
    for line in lines:
        if line.value is None:
            reason = _NOT_SUPPORTED if line.gap == NOT_SUPPORTED else _NOT_COUNTED
        elif event.name in KERNEL_EVENTS and line.modifiers == "u":
            reason = _KERNEL_ONLY
        else:
            value += event.converted(line.value, line.unit)
    return value, reason
