"""Events, the groups in which they are counted, and the plan of a machine; the table is events.toml."""

from __future__ import annotations

import ast
import enum
import functools
import importlib.resources
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Why

SEPARATOR = ";"
"""Between the columns of perf's output: a comma may stand inside numbers and raw events."""
TASK_CLOCK = "task-clock"
KERNEL_EVENTS = frozenset({"context-switches", "cpu-migrations"})
"""Events inside the kernel: a perf that may count user mode only prints 0 for them."""

EVENTS, TASK_CLOCK_SECONDS = "perf_events_total", "perf_task_clock_seconds_total"
COUNTED_SECONDS, STARTS, RUNNING = "perf_counted_seconds_total", "perf_starts_total", "perf_running_ratio"
OF_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "l2": ("perf_l2_bandwidth_bytes_per_second",),
    "l2cache": ("perf_l2_requests_per_instruction", "perf_l2_misses_per_instruction", "perf_l2_miss_ratio"),
    "l3": ("perf_l3_bandwidth_bytes_per_second",),
    "l3cache": ("perf_l3_requests_per_instruction", "perf_l3_misses_per_instruction", "perf_l3_miss_ratio"),
    "flops_sp": ('perf_flops_per_second{precision="single"}', 'perf_vectorization_ratio{precision="single"}'),
    "flops_dp": ('perf_flops_per_second{precision="double"}', 'perf_vectorization_ratio{precision="double"}'),
    "memory": ("perf_memory_bandwidth_bytes_per_second",),
}
"""Topics that need the table of an architecture, and the series of each."""

_SHARED = f"{Why.UNSUPPORTED.value}: all cores share these counters; only the whole machine can be counted"
_PER_UNIT: Mapping[str, float] = {"msec": 1e-3, "MiB": 2**20 / 64}
"""Perf's units in ours: seconds, and lines of 64 bytes for memory controllers."""
_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def variable(name: str) -> str:
    """Return the name of an event in formulas."""
    return re.sub("[-.]", "_", name)


class Formula:
    """Sums, products and quotients of numbers and events."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(re.sub(r"[A-Za-z_][\w.]*", lambda match: variable(match[0]), text), mode="eval")
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._tree = tree.body

    def value(self, numbers: Mapping[str, float]) -> float | None:
        """Evaluate over named numbers; None if a divisor is 0."""
        try:
            return _value(self._tree, numbers)
        except ZeroDivisionError:
            return None


def _value(node: ast.AST, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.Name(id=name):
            return numbers[name]
    return float(cast("Any", node).value)


class Counter(enum.Enum):
    """An event is counted by the kernel, by a core, or by a unit that the cores of a socket share."""

    SOFTWARE = "software"
    CORE = "core"
    UNCORE = "uncore"


class PerfScope(enum.Enum):
    """Perf watches everything on the machine, or the processes of one job."""

    HOST = "host"
    JOB = "job"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event; ``name`` is a label of the metric. ``config`` is perf's word for it, or the terms of a raw event."""

    name: str
    config: str
    pmu: str = ""
    counter: Counter = Counter.CORE

    def spelling(self, group: str) -> str:
        """Return the argument for perf: in user mode only if a core counts it, and raw events by a name of ours."""
        if self.pmu:
            modifier = "u" if self.counter is Counter.CORE else ""
            return f"{self.pmu}/{self.config},name={self.printed(group)}/{modifier}"
        return f"{self.config}:u" if self.counter is Counter.CORE else self.config

    def printed(self, group: str) -> str:
        """Return the name in perf's output, without modifiers; no two groups share one."""
        return f"{group}.{self.name}" if self.pmu else self.config

    @property
    def variable(self) -> str:
        """The name in formulas."""
        return variable(self.name)

    def series(self, group: str) -> str:
        """Return the series of its total."""
        return TASK_CLOCK_SECONDS if self.name == TASK_CLOCK else series(EVENTS, group=group, event=self.name)

    def converted(self, value: float, unit: str) -> float:
        """Convert perf's number into base units; counts stay whole."""
        factor = _PER_UNIT.get(unit)
        if factor is None:
            return int(value)
        return value * factor if self.name == TASK_CLOCK else round(value * factor)


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """A series computed from the counts of one group over ``seconds``, for a topic of the settings."""

    series: str
    formula: Formula
    topic: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Events that are counted in the same time, so that their ratios mean something.

    ``together`` puts them into braces: perf then counts all of them or none.
    """

    name: str
    events: tuple[Event, ...]
    derived: tuple[Derived, ...] = ()
    together: bool = True

    @property
    def has_ratio(self) -> bool:
        """Whether the group may wait for counters, so that its running time is known."""
        return any(event.counter is not Counter.SOFTWARE for event in self.events)

    def spelling(self) -> str:
        """Return the argument of perf's ``-e``."""
        events = ",".join(event.spelling(self.name) for event in self.events)
        return f"{{{events}}}" if self.together else events

    def asked(self, topics: Iterable[str]) -> tuple[Derived, ...]:
        """Return the derived series of these topics."""
        return tuple(one for one in self.derived if one.topic in topics)


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one micro-architecture; ``missing`` has the reason of each series without a group, by topic."""

    groups: tuple[Group, ...]
    missing: Mapping[str, Mapping[str, str]]


@functools.cache
def table() -> dict[str, Any]:
    """Return the content of events.toml."""
    text = (importlib.resources.files("fedmon.node.perf") / "events.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def architecture(name: str) -> Architecture | None:
    """Return a micro-architecture of events.toml; None for one without events."""
    row = table()["architectures"].get(name)
    if row is None:
        return None
    groups = (_group(table()["groups"][group]) for group in row["groups"])
    return Architecture(groups=tuple(groups), missing=row.get("missing", {}))


@functools.cache
def everywhere(name: str) -> Group:
    """Return a group of every machine."""
    return _group(table()["everywhere"][name])


def _group(row: Mapping[str, Any]) -> Group:
    pmu = row.get("pmu", "cpu")
    counter = {"cpu": Counter.CORE, "software": Counter.SOFTWARE}.get(pmu, Counter.UNCORE)
    events = (event.split() for event in row["events"])
    return Group(
        name=row["name"],
        events=tuple(
            Event(name=words[-1], config=words[0], pmu=pmu if len(words) > 1 else "", counter=counter)
            for words in events
        ),
        derived=tuple(
            Derived(series=key, formula=Formula(formula), topic=topic)
            for topic, formulas in row.get("derived", {}).items()
            for key, formula in formulas.items()
        ),
        together=not row.get("apart", False),
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Groups to count, the series derived from each, and the reason of each series that is missing."""

    groups: tuple[Group, ...]
    derived: Mapping[str, tuple[Derived, ...]]
    missing: Mapping[str, str]

    def capabilities(self) -> dict[str, str | None]:
        """Map each metric, or one series of it, to None if it is measured, else to the reason."""
        report: dict[str, str | None] = dict(self.missing)
        if self.groups:
            report |= dict.fromkeys((EVENTS, COUNTED_SECONDS, STARTS))
        for group in self.groups:
            if any(event.name == TASK_CLOCK for event in group.events):
                report[TASK_CLOCK_SECONDS] = None
            if group.has_ratio:
                report[series(RUNNING, group=group.name)] = None
            report |= dict.fromkeys(one.series for one in self.derived[group.name])
        return report


def candidates(
    topics: tuple[str, ...],
    *,
    scope: PerfScope,
    architecture: Architecture | None,
    described: str,
) -> tuple[list[Group], dict[str, str]]:
    """Return the groups to be tried for these topics, and the reason of each series that needs no trial.

    The software events are always among them. ``described`` is the processor in words, for reasons.
    """
    if architecture is None:
        unknown = f"no table of events for {described}"
        reasons = {topic: dict.fromkeys(names, unknown) for topic, names in OF_ARCHITECTURE.items()}
        architecture = Architecture(groups=(), missing=reasons)
    found = [everywhere(name) for name in ("cycles", "branches", "cache") if name in topics]
    found += [group for group in architecture.groups if group.asked(topics)]
    missing = {
        name: f"{Why.UNSUPPORTED.value}: {why}"
        for topic in topics
        for name, why in architecture.missing.get(topic, {}).items()
    }
    software = everywhere(f"software_{scope.value}")
    if scope is PerfScope.HOST:
        return [software, *found], missing
    shared = [group for group in found if any(event.counter is Counter.UNCORE for event in group.events)]
    missing |= {one.series: _SHARED for group in shared for one in group.asked(topics)}
    return [software, *(group for group in found if group not in shared)], missing


def make_plan(
    groups: Iterable[Group], topics: tuple[str, ...], outcome: Mapping[str, str | None], missing: Mapping[str, str]
) -> Plan:
    """Keep the groups that the trial found usable; ``outcome`` maps each group to None or a reason.

    If two groups give one series, the first usable one gives it; if none is usable, the first reason holds.
    """
    usable: list[Group] = []
    derived: dict[str, tuple[Derived, ...]] = {}
    reasons: dict[str, str] = {}
    given: set[str] = set()
    for group in groups:
        asked, reason = group.asked((*topics, "software")), outcome[group.name]
        if reason is None:
            usable.append(group)
            derived[group.name] = tuple(one for one in asked if one.series not in given)
            given |= {one.series for one in asked}
            continue
        named = series(RUNNING, group=group.name) if group.has_ratio else EVENTS
        for name in (named, *(one.series for one in asked)):
            reasons.setdefault(name, reason)
    left = {name: reason for name, reason in (dict(missing) | reasons).items() if name not in given}
    return Plan(groups=tuple(usable), derived=derived, missing=left)
