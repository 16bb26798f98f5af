"""What is counted in the end, after the probes, and under which series it travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fedmon.common.metrics.series import series
from fedmon.node.perf.event import Counter, Derived, Event, Group
from fedmon.node.perf.groups import TASK_CLOCK

EVENTS = "perf_events_total"
TASK_CLOCK_SECONDS = "perf_task_clock_seconds_total"
COUNTED_SECONDS = "perf_counted_seconds_total"
STARTS = "perf_starts_total"
RUNNING = "perf_running_ratio"

_PER_UNIT: Mapping[str, float] = {"msec": 1e-3, "MiB": 2**20 / 64}
"""What perf's units are in ours: seconds, and lines of 64 bytes for memory controllers."""


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """One event of one group and its series."""

    group: str
    event: Event
    series: str

    def converted(self, value: float, unit: str) -> float:
        """Turn perf's number into ours; counts stay whole."""
        factor = _PER_UNIT.get(unit)
        if factor is None:
            return int(value)
        return value * factor if self.event.name == TASK_CLOCK else round(value * factor)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that are counted, what is derived from each, and why the rest is missing.

    ``missing`` maps a series to its reason.
    """

    groups: tuple[Group, ...]
    derived: Mapping[str, tuple[Derived, ...]]
    missing: Mapping[str, str]

    def by_printed_name(self) -> dict[str, Counted]:
        """Map the name under which perf prints an event to what it is."""
        return {
            event.printed(group.name): Counted(group=group.name, event=event, series=event_series(group.name, event))
            for group in self.groups
            for event in group.events
        }

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None when it is measured, else to the reason."""
        report: dict[str, str | None] = dict(self.missing)
        if self.groups:
            report |= dict.fromkeys((EVENTS, COUNTED_SECONDS, STARTS))
        for group in self.groups:
            if any(event.name == TASK_CLOCK for event in group.events):
                report[TASK_CLOCK_SECONDS] = None
            if has_ratio(group):
                report[series(RUNNING, group=group.name)] = None
            report |= dict.fromkeys(one.series for one in self.derived[group.name])
        return report


def make_plan(groups: Iterable[Group], topics: tuple[str, ...], outcome: Mapping[str, str | None],
              missing: Mapping[str, str]) -> Plan:  # fmt: skip
    """Keep the groups that the probe found usable; ``outcome`` maps each group to None or a reason.

    Where two groups give one series, one that works is enough, and else the first one's reason is told.
    """
    usable: list[Group] = []
    derived: dict[str, tuple[Derived, ...]] = {}
    reasons: dict[str, str] = {}
    for group in groups:
        asked, reason = group.asked((*topics, "software")), outcome[group.name]
        if reason is None:
            given = {one.series for known in derived.values() for one in known}
            usable.append(group)
            derived[group.name] = tuple(one for one in asked if one.series not in given)
            continue
        told = series(RUNNING, group=group.name) if has_ratio(group) else EVENTS
        for name in (told, *(one.series for one in asked)):
            reasons.setdefault(name, reason)
    given = {one.series for known in derived.values() for one in known}
    reasons = {name: reason for name, reason in (dict(missing) | reasons).items() if name not in given}
    return Plan(groups=tuple(usable), derived=derived, missing=reasons)


def event_series(group: str, event: Event) -> str:
    """Return the series of an event's total."""
    if event.name == TASK_CLOCK:
        return TASK_CLOCK_SECONDS
    return series(EVENTS, group=group, event=event.name)


def has_ratio(group: Group) -> bool:
    """Tell whether a group may have to wait for counters, so that its running time is told."""
    return any(event.counter is not Counter.SOFTWARE for event in group.events)
