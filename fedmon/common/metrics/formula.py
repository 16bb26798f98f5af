"""Safe arithmetic for derived metrics: a text is parsed once to a small tree and then evaluated over named numbers.

A formula is made of numbers, names, ``+ - * /``, a minus before a term, and parentheses. Names are whole words that may
hold dots, as names of hardware events do (``l2_rqsts.miss``). Nothing in it is ever run as code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from fedmon.common.errors import InvalidInputError

MAX_LENGTH = 2_000
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>[-+*/()]))",
    re.ASCII,
)
_ENDS_BADLY = re.compile(r"[A-Za-z0-9_.]", re.ASCII)

_Node = Callable[[Mapping[str, float | None]], float | None]
_Operation = Callable[[float, float], float | None]


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
        parser = _Parser(text)
        self._root = parser.parse()
        self.names = frozenset(parser.names)
        """Every name that the formula uses."""

    def value(self, numbers: Mapping[str, float | None]) -> float | None:
        """Evaluate over named numbers.

        None when a name is missing or None, when something is divided by zero, and when the result is no finite number.
        """
        result = self._root(numbers)
        return result if result is not None and math.isfinite(result) else None

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"


class _Parser:
    """Reads ``sum := product (('+' | '-') product)*`` and so on, by descent, with the depth counted."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self._text = text
        if len(text) > MAX_LENGTH:
            raise FormulaError(text, MAX_LENGTH + 1, f"it is longer than {MAX_LENGTH} characters")
        self._tokens = _tokens(text)
        self._next = self._depth = 0

    def parse(self) -> _Node:
        root = self._sum()
        kind, word, position = self._tokens[self._next]
        if kind != "end":
            raise FormulaError(self._text, position, f"{word!r} follows a finished formula; an operator is expected")
        return root

    def _sum(self) -> _Node:
        return self._chain(self._product, "+", "-")

    def _product(self) -> _Node:
        return self._chain(self._term, "*", "/")

    def _chain(self, part: Callable[[], _Node], *signs: str) -> _Node:
        first, rest = part(), []
        while (sign := self._taken(*signs)) is not None:
            rest.append((_OPERATIONS[sign], part()))
        return _left_to_right(first, rest) if rest else first

    def _term(self) -> _Node:
        kind, word, position = self._tokens[self._next]
        self._next += kind != "end"
        if kind == "number":
            return _constant(float(word))
        if kind == "name":
            self.names.add(word)
            return _name(word)
        if word not in ("-", "("):
            found = "the formula ends" if kind == "end" else f"{word!r} stands"
            raise FormulaError(self._text, position, f"{found} where a number, a name or '(' is expected")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormulaError(self._text, position, f"it is nested more than {MAX_DEPTH} deep")
        inner = _negative(self._term()) if word == "-" else self._sum()
        if word == "(" and self._taken(")") is None:
            raise FormulaError(self._text, self._tokens[self._next][2], f"the '(' of position {position} is not closed")
        self._depth -= 1
        return inner

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


def _constant(number: float) -> _Node:
    return lambda _numbers: number


def _name(name: str) -> _Node:
    return lambda numbers: numbers.get(name)


def _negative(term: _Node) -> _Node:
    def negative(numbers: Mapping[str, float | None]) -> float | None:
        value = term(numbers)
        return None if value is None else -value

    return negative


def _left_to_right(first: _Node, rest: Sequence[tuple[_Operation, _Node]]) -> _Node:
    """Evaluate a chain of one precedence in a loop, so that its length costs no depth."""

    def chain(numbers: Mapping[str, float | None]) -> float | None:
        value = first(numbers)
        for calculate, term in rest:
            right = term(numbers)
            if value is None or right is None:
                return None
            value = calculate(value, right)
        return value

    return chain


_OPERATIONS: Mapping[str, _Operation] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else None,
}
