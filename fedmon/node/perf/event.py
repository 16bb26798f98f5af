"""Events, the groups in which they are counted, and what is derived from a group."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping

import msgspec

from fedmon.common.metrics.formula import Formula
from fedmon.common.metrics.series import series


class Counter(enum.Enum):
    """Who counts an event: the kernel, the counters of a core, or one that the cores of a socket share."""

    SOFTWARE = "software"
    CORE = "core"
    UNCORE = "uncore"


class Scope(enum.Enum):
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

    metric: str
    formula: str
    topic: str
    labels: Mapping[str, str] = {}

    @property
    def series(self) -> str:
        """The series under which the result travels."""
        return series(self.metric, **self.labels)

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
