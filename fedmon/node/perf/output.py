"""The output of ``perf stat -x ';'`` in the locale C, and its running totals.

A line is ``[time;]value;unit;event[;cgroup];running ns;running %[;metric;metric unit]``. The value is a number, or says
that the event was not counted or is not supported, which is a gap and no 0. Source: man page perf-stat(1), section
"CSV FORMAT".
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence

import msgspec

from fedmon.node.collectors.base import Why
from fedmon.node.perf.events import KERNEL_EVENTS, SEPARATOR, Counted, Plan

NOT_SUPPORTED = "not supported"

_VALUE = re.compile(r"<(not counted|not supported)>|\d+(?:\.\d+)?", re.ASCII)
_MODIFIERS = re.compile(r"(?<=[^:]):([ukhGHpPSDWeIb]+)$")


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what an event counted in one interval.

    ``value`` is None with ``gap`` saying which. ``time_s`` is the end of the interval since perf began; None where perf
    was not asked for intervals. ``running_ratio`` is the share of the time in which a counter was free for it.
    """

    event: str
    value: float | None
    gap: str | None = None
    time_s: float | None = None
    unit: str = ""
    modifiers: str = ""
    cgroup: str | None = None
    running_ratio: float | None = None


def parse_line(line: str) -> Count | None:
    """Read one line; None when it is no count: a comment, a message, or something torn."""
    fields = [field.strip() for field in line.strip().split(SEPARATOR)]
    is_timed = len(fields) > 3 and _VALUE.fullmatch(fields[1]) is not None and _VALUE.fullmatch(fields[0]) is not None
    time_s = float(fields.pop(0)) if is_timed else None
    if len(fields) < 3 or (match := _VALUE.fullmatch(fields[0])) is None or not fields[2]:
        return None
    _, unit, event, *rest = fields
    cgroup = rest.pop(0) if _names_a_cgroup(rest) else None
    modifiers, gap = _MODIFIERS.search(event), match[1]
    is_told = gap is None and len(rest) > 1 and _VALUE.fullmatch(rest[1]) is not None
    return Count(
        event=event[: modifiers.start()] if modifiers else event,
        value=None if gap else float(match[0]),
        gap=gap,
        time_s=time_s,
        unit=unit,
        modifiers=modifiers[1] if modifiers else "",
        cgroup=cgroup,
        running_ratio=min(float(rest[1]) / 100, 1.0) if is_told else None,
    )


def _names_a_cgroup(rest: Sequence[str]) -> bool:
    """Tell whether a column with the cgroup stands before the running time and its share.

    Both are numbers and end the line or are followed by the metric, which is empty or a number, and its unit.
    """
    if not rest or rest[0] == "":
        return False
    numbers = [_VALUE.fullmatch(field) is not None for field in rest[:3]]
    # A cgroup may be called by a number: then three numbers follow each other, and the last is a share.
    return not numbers[0] or (len(rest) in (3, 5) and all(numbers))


_NOT_COUNTED = (
    f"{Why.FAILED.value}: not counted: nothing of it ran since the previous sample, or no counter was free for it"
)
_NOT_SUPPORTED = f"{Why.UNSUPPORTED.value}: perf says that the event is not supported here"
_KERNEL_ONLY = f"{Why.NO_PERMISSION.value}: happens in the kernel, which only a user with CAP_PERFMON may count"


class GroupWindow(msgspec.Struct, kw_only=True):
    """What the intervals since the previous look counted for one group, those with a gap left out."""

    seconds: float = 0.0
    counts: dict[str, float] = {}
    running_ratio: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state at one look: ``totals`` and ``gaps`` by series, ``windows`` by group.

    ``fresh`` says whether an interval ended since the previous look. ``gaps`` are events of which no interval since
    then has a value, with the reason. ``seconds`` is the time counted since the first start, on perf's clock.
    """

    fresh: bool
    seconds: float
    totals: Mapping[str, float]
    gaps: Mapping[str, str]
    windows: Mapping[str, GroupWindow]


class Totals:
    """The running totals of a plan, kept over restarts of perf.

    ``add`` and ``end_interval`` belong to the thread that reads perf; ``take`` is safe from any thread and never waits
    for it longer than an addition takes.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known = plan.by_printed_name()
        self._lock = threading.Lock()
        self._ended_s = 0.0
        self._interval: dict[str, list[tuple[Counted, Count]]] = {}
        self._time_s: float | None = None
        self._seconds = 0.0
        self._totals: dict[str, float] = {}
        self._gaps: dict[str, str] = {}
        self._valued: set[str] = set()
        self._windows: dict[str, GroupWindow] = {}
        self._fresh = False
        self.unknown = 0
        """Counts under a name that nobody asked for."""

    def begin(self) -> None:
        """Perf was started anew: its clock is at 0 again."""
        self._interval, self._time_s, self._ended_s = {}, None, 0.0

    def add(self, count: Count) -> None:
        """Take one line; a new time ends the interval before it."""
        known = self._known.get(count.event)
        if known is None:
            self.unknown += 1
            return
        if count.time_s != self._time_s:
            self.end_interval()
            self._time_s = count.time_s
        self._interval.setdefault(count.event, []).append((known, count))

    def end_interval(self) -> None:
        """Add what was taken since the last end; nothing when there was nothing."""
        if not self._interval or self._time_s is None:
            return
        seconds = max(0.0, self._time_s - self._ended_s)
        with self._lock:
            for group in self._plan.groups:
                lines = [self._interval.get(event.printed(group.name), []) for event in group.events]
                self._end_group(group.name, lines, seconds)
            self._seconds += seconds
            self._fresh = True
        self._ended_s, self._interval = self._time_s, {}

    def take(self) -> Snapshot:
        """Return what was counted, and begin a new window."""
        with self._lock:
            snapshot = Snapshot(
                fresh=self._fresh,
                seconds=self._seconds,
                totals=dict(self._totals),
                gaps={name: reason for name, reason in self._gaps.items() if name not in self._valued},
                windows=self._windows,
            )
            self._fresh, self._windows, self._gaps, self._valued = False, {}, {}, set()
            return snapshot

    def _end_group(self, name: str, lines: list[list[tuple[Counted, Count]]], seconds: float) -> None:
        counts: dict[str, float] = {}
        ratios = []
        for printed in lines:
            # A counter that several devices have (memory controllers) may be printed once for each.
            total = self._end_event(printed)
            if total is None:
                continue
            known, value = total
            counts[known.event.variable] = value
            ratios += [count.running_ratio for _known, count in printed if count.running_ratio is not None]
        if len(counts) < len(lines) or seconds <= 0:
            return
        window = self._windows.setdefault(name, GroupWindow())
        window.seconds += seconds
        for variable, value in counts.items():
            window.counts[variable] = window.counts.get(variable, 0) + value
        if ratios:
            window.running_ratio = min([*ratios, *([] if window.running_ratio is None else [window.running_ratio])])

    def _end_event(self, printed: list[tuple[Counted, Count]]) -> tuple[Counted, float] | None:
        if not printed:
            return None
        known, reason = printed[0][0], None
        value: float = 0
        for _known, count in printed:
            if count.value is None:
                reason = _NOT_SUPPORTED if count.gap == NOT_SUPPORTED else _NOT_COUNTED
            elif known.event.name in KERNEL_EVENTS and count.modifiers == "u":
                reason = _KERNEL_ONLY
            else:
                value += known.converted(count.value, count.unit)
        if reason is not None:
            self._gaps[known.series] = reason
            return None
        self._totals[known.series] = self._totals.get(known.series, 0) + value
        self._valued.add(known.series)
        return known, value
