"""Events, the groups in which they are counted, and the formulas that derive metrics from a group."""

from __future__ import annotations

import enum
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.metrics.series import series

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


class FormulaError(InvalidInputError):
    """A formula cannot be read; names the formula, the position (from 1) and what was expected there."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        shown = text if len(text) <= 120 else f"{text[:117]}..."
        super().__init__(f"formula {shown!r}: {problem} at position {position}")
        self.text, self.position, self.problem = text, position, problem


class Formula:
    """Safe arithmetic over named numbers, parsed once to a small tree; nothing in it is ever run as code.

    It is made of numbers, names, ``+ - * /``, a minus before a term, and parentheses. Names are whole words that may
    hold dots, as names of hardware events do (``l2_rqsts.miss``). Raises FormulaError if the text is no formula, longer
    than 2,000 characters, or nested more than 40 deep.
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
