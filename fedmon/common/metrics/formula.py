"""Safe arithmetic for derived metrics: a text is parsed once to a small tree and then evaluated over named numbers.

A formula is made of numbers, names, ``+ - * /``, a minus before a term, and parentheses. Names are whole words that may
hold dots, as names of hardware events do (``l2_rqsts.miss``). Nothing in it is ever run as code.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping

from fedmon.common.errors import InvalidInputError

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
