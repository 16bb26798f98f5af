"""Adds up what perf prints, one interval after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from fedmon.node.collectors.base import Why
from fedmon.node.perf.groups import KERNEL_EVENTS
from fedmon.node.perf.output import NOT_SUPPORTED, Count
from fedmon.node.perf.plan import Counted, Plan

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
