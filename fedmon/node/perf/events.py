"""Events, the groups in which they are counted, and the choice of groups for a machine."""

from __future__ import annotations

import enum
import functools
import importlib.resources
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import series
from fedmon.node.collectors.base import Why

MAX_LENGTH = 2_000
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>[-+*/()]))",
    re.ASCII,
)
_ENDS_BADLY = re.compile(r"[A-Za-z0-9_.]", re.ASCII)

_Operation = Callable[[float, float], float | None]
_OPERATIONS: Mapping[str, _Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else None,
}


class FormulaError(InvalidInputError):
    """A formula cannot be read; names the formula, the position (from 1) and what was expected there."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        shown = text if len(text) <= 120 else f"{text[:117]}..."
        super().__init__(f"formula {shown!r}: {problem} at position {position}")
        self.text, self.position, self.problem = text, position, problem


class Formula:
    """One formula, parsed.

    Raises FormulaError when the text is no formula, longer than 2,000 characters, or nested more than 40 deep.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = _Parser(text).parse()
        self.names = frozenset(step for step in self._steps if isinstance(step, str))
        """Every name that the formula uses."""

    def value(self, numbers: Mapping[str, float | None]) -> float | None:
        """Evaluate over named numbers.

        None when a name is missing or None, when something is divided by zero, and when the result is no finite number.
        """
        stack: list[float | None] = []
        for step in self._steps:
            if isinstance(step, str):
                stack.append(numbers.get(step))
            elif isinstance(step, float):
                stack.append(step)
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(None if left is None or right is None else step(left, right))
        (result,) = stack
        return result if result is not None and math.isfinite(result) else None

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"


class _Parser:
    """Reads ``sum := product (('+' | '-') product)*`` and so on, by descent, with the depth counted.

    ``steps`` are the numbers, names and operations in postfix order.
    """

    def __init__(self, text: str) -> None:
        self.steps: list[float | str | _Operation] = []
        self._text = text
        if len(text) > MAX_LENGTH:
            raise FormulaError(text, MAX_LENGTH + 1, f"it is longer than {MAX_LENGTH} characters")
        self._tokens = _tokens(text)
        self._next = self._depth = 0

    def parse(self) -> list[float | str | _Operation]:
        self._sum()
        kind, word, position = self._tokens[self._next]
        if kind != "end":
            raise FormulaError(self._text, position, f"{word!r} follows a finished formula; an operator is expected")
        return self.steps

    def _sum(self) -> None:
        self._chain(lambda: self._chain(self._term, "*", "/"), "+", "-")

    def _chain(self, part: Callable[[], None], *signs: str) -> None:
        part()
        while (sign := self._taken(*signs)) is not None:
            part()
            self.steps.append(_OPERATIONS[sign])

    def _term(self) -> None:
        kind, word, position = self._tokens[self._next]
        self._next += kind != "end"
        if kind in ("number", "name"):
            self.steps.append(float(word) if kind == "number" else word)
            return
        if word not in ("-", "("):
            found = "the formula ends" if kind == "end" else f"{word!r} stands"
            raise FormulaError(self._text, position, f"{found} where a number, a name or '(' is expected")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormulaError(self._text, position, f"it is nested more than {MAX_DEPTH} deep")
        if word == "-":
            self.steps.append(0.0)
            self._term()
            self.steps.append(operator.sub)
        else:
            self._sum()
            if self._taken(")") is None:
                at = self._tokens[self._next][2]
                raise FormulaError(self._text, at, f"the '(' of position {position} is not closed")
        self._depth -= 1

    def _taken(self, *signs: str) -> str | None:
        kind, word, _position = self._tokens[self._next]
        if kind != "sign" or word not in signs:
            return None
        self._next += 1
        return word


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Return kind, word and position (from 1) of each token, with an end mark after the last."""
    found: list[tuple[str, str, int]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise FormulaError(text, start + 1, f"{text[start]!r} is not allowed")
        kind = match.lastgroup or ""
        if kind == "number" and _ENDS_BADLY.match(text, match.end()):
            raise FormulaError(text, match.start(kind) + 1, "a number runs into a word")
        found.append((kind, match[kind], match.start(kind) + 1))
        position = match.end()
    return [*found, ("end", "", end + 1)]


class Counter(enum.Enum):
    """Who counts an event: the kernel, the counters of a core, or one that the cores of a socket share."""

    SOFTWARE = "software"
    CORE = "core"
    UNCORE = "uncore"


class PerfScope(enum.Enum):
    """What perf watches: everything on the machine, or the processes of one job."""

    HOST = "host"
    JOB = "job"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event.

    ``name`` is the vendor's, in small letters; it is a label of the metric and, with ``_`` for ``-``, a name in
    formulas. ``config`` is perf's own word for it, or with ``pmu`` the terms of a raw event.
    """

    name: str
    config: str
    pmu: str = ""
    counter: Counter = Counter.CORE

    def spelling(self, group: str) -> str:
        """Return how perf is asked for it: in user mode only where a core counts it, and under a name of ours."""
        if self.pmu:
            modifier = "u" if self.counter is Counter.CORE else ""
            return f"{self.pmu}/{self.config},name={self.printed(group)}/{modifier}"
        return f"{self.config}:u" if self.counter is Counter.CORE else self.config

    def printed(self, group: str) -> str:
        """Return the name under which perf prints it, without modifiers; no two groups share one."""
        return f"{group}.{self.name}" if self.pmu else self.config

    @property
    def variable(self) -> str:
        """The name in formulas."""
        return self.name.replace("-", "_")


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the counts of one group over some ``seconds``; ``topic`` is the setting that asks for it."""

    series: str
    formula: str
    topic: str

    def parsed(self) -> Formula:
        """Return the formula, parsed once per process. Raises FormulaError."""
        return _parsed(self.formula)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Events that are counted in the same time, so that their ratios mean something.

    ``together`` puts them into braces: perf then counts all of them or none. ``cost`` is how many counters of a core
    they take.
    """

    name: str
    events: tuple[Event, ...]
    derived: tuple[Derived, ...] = ()
    together: bool = True
    extra_counters: int = 0

    @property
    def cost(self) -> int:
        """How many counters of a core the group takes at most."""
        return sum(event.counter is Counter.CORE for event in self.events) + self.extra_counters

    @property
    def shared(self) -> bool:
        """Whether a counter that cores share is among them, which nobody can count for one job."""
        return any(event.counter is Counter.UNCORE for event in self.events)

    def spelling(self) -> str:
        """Return the argument of perf's ``-e``."""
        events = ",".join(event.spelling(self.name) for event in self.events)
        return f"{{{events}}}" if self.together else events

    def asked(self, topics: tuple[str, ...]) -> tuple[Derived, ...]:
        """Return what is to be derived from it for these topics."""
        return tuple(one for one in self.derived if one.topic in topics)


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What one micro-architecture can count.

    ``counters`` is how many general counters one hardware thread has; ``counters_alone`` when its core runs no second
    thread. ``missing`` maps a series that it cannot give to its topic and the reason. ``source`` names the documents.
    """

    name: str
    counters: int
    counters_alone: int
    groups: tuple[Group, ...]
    missing: Mapping[str, tuple[str, str]] = {}
    source: str


@functools.cache
def _parsed(text: str) -> Formula:
    return Formula(text)


@functools.cache
def _table() -> dict[str, Any]:
    text = (importlib.resources.files("fedmon.node.perf") / "events.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def architecture(name: str) -> Architecture | None:
    """Return a micro-architecture of events.toml, None for one without events; its server line may end in ``_x``."""
    table = _table()
    row = table["architectures"].get(name)
    if row is None:
        return None
    missing = row.get("missing", {})
    return Architecture(
        name=name,
        counters=row["counters"],
        counters_alone=row["counters_alone"],
        groups=tuple(_group(table["groups"][group]) for group in row["groups"]),
        missing={series: (topic, why) for topic, of_topic in missing.items() for series, why in of_topic.items()},
        source=row["source"],
    )


def architectures() -> tuple[str, ...]:
    """Return the names of the micro-architectures with events."""
    return tuple(_table()["architectures"])


def _group(row: Mapping[str, Any]) -> Group:
    pmu = row.get("pmu", "cpu")
    counter = Counter.CORE if pmu == "cpu" else Counter.UNCORE
    events = (event.split() for event in row["events"])
    return Group(
        name=row["name"],
        events=tuple(Event(name=name, pmu=pmu, config=config, counter=counter) for config, name in events),
        derived=tuple(
            Derived(series=series, formula=formula, topic=topic)
            for topic, formulas in row["derived"].items()
            for series, formula in formulas.items()
        ),
        together=not row.get("apart", False),
        extra_counters=row.get("extra_counters", 0),
    )


SEPARATOR = ";"
"""Between the columns of perf's output: a comma may stand inside of numbers and raw events."""

DEFAULT_COUNTERS = 4
"""General counters where the architecture is not known: what Intel cores with two threads have had since 2011."""

TASK_CLOCK = "task-clock"
KERNEL_EVENTS = frozenset({"context-switches", "cpu-migrations"})
"""Events that happen inside the kernel: counted for user mode only, perf prints a 0 that is none."""


def _software(*names: str) -> tuple[Event, ...]:
    return tuple(Event(name=name, config=name, counter=Counter.SOFTWARE) for name in names)


_EVERYWHERE = ("context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")

# System-wide, task-clock runs on idle CPUs too and says nothing.
SOFTWARE: Mapping[PerfScope, Group] = {
    PerfScope.HOST: Group(name="software", events=_software(*_EVERYWHERE), together=False),
    PerfScope.JOB: Group(
        name="software",
        events=_software(TASK_CLOCK, *_EVERYWHERE),
        derived=(Derived(series="perf_cpus_utilized", formula="task_clock / seconds", topic="software"),),
        together=False,
    ),
}

# Perf's own words for them: the kernel knows their codes on each processor (Linux uapi/linux/perf_event.h,
# PERF_TYPE_HARDWARE). Pairs, so that the kernel can rotate them between few counters.
GENERIC: tuple[Group, ...] = (
    Group(
        name="cycles",
        events=(Event(name="cycles", config="cycles"), Event(name="instructions", config="instructions")),
        derived=(Derived(series="perf_instructions_per_cycle", formula="instructions / cycles", topic="cycles"),),
    ),
    Group(
        name="branches",
        events=(Event(name="branches", config="branches"), Event(name="branch-misses", config="branch-misses")),
        derived=(Derived(series="perf_branch_miss_ratio", formula="branch_misses / branches", topic="branches"),),
    ),
    Group(
        name="cache",
        events=(
            Event(name="cache-references", config="cache-references"),
            Event(name="cache-misses", config="cache-misses"),
        ),
        derived=(Derived(series="perf_cache_miss_ratio", formula="cache_misses / cache_references", topic="cache"),),
    ),
)

OF_ARCHITECTURE: Mapping[str, tuple[str, ...]] = {
    "l2": ("perf_l2_bandwidth_bytes_per_second",),
    "l2cache": ("perf_l2_requests_per_instruction", "perf_l2_misses_per_instruction", "perf_l2_miss_ratio"),
    "l3": ("perf_l3_bandwidth_bytes_per_second",),
    "l3cache": ("perf_l3_requests_per_instruction", "perf_l3_misses_per_instruction", "perf_l3_miss_ratio"),
    "flops_sp": ('perf_flops_per_second{precision="single"}', 'perf_vectorization_ratio{precision="single"}'),
    "flops_dp": ('perf_flops_per_second{precision="double"}', 'perf_vectorization_ratio{precision="double"}'),
    "memory": ("perf_memory_bandwidth_bytes_per_second",),
}
"""Topics that need the table of an architecture, and the series that each promises."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be probed, and the series that need no probe because this machine cannot have them."""

    groups: tuple[Group, ...]
    missing: Mapping[str, str]


def choose(
    topics: tuple[str, ...],
    *,
    scope: PerfScope,
    architecture: Architecture | None,
    described: str,
    counters: int = DEFAULT_COUNTERS,
) -> Choice:
    """Choose the groups for these topics; the software events are always among them.

    ``described`` is the processor in words, for reasons.
    """
    asked = (*topics, "software")
    missing: dict[str, str] = {}
    groups = [SOFTWARE[scope]]
    candidates = [group for group in GENERIC if group.name in topics]
    if architecture is None:
        text = f"{Why.UNSUPPORTED.value}: there is no table of events for {described}"
        missing |= {name: text for topic in topics for name in OF_ARCHITECTURE.get(topic, ())}
    else:
        candidates += [group for group in architecture.groups if group.asked(topics)]
        missing |= {
            name: f"{Why.UNSUPPORTED.value}: {why}"
            for name, (topic, why) in architecture.missing.items()
            if topic in topics
        }
    for group in candidates:
        reason = _impossible(group, scope, counters)
        if reason is None:
            groups.append(group)
        else:
            missing |= {one.series: reason for one in group.asked(asked)}
    return Choice(groups=tuple(groups), missing=missing)


def _impossible(group: Group, scope: PerfScope, counters: int) -> str | None:
    if group.shared and scope is PerfScope.JOB:
        return f"{Why.UNSUPPORTED.value}: all cores share these counters, so that only the whole machine can be counted"
    if group.together and group.cost > counters:
        return (
            f"{Why.UNSUPPORTED.value}: its events take {group.cost} counters at once, and a thread here has {counters}"
        )
    return None


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
