"""What the verbs print: one JSON document, or text that fits the screen."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fedmon.common.errors import InvalidInputError
from fedmon.common.text import one_line

DEFAULT_WIDTH = 80
_GAP = 2


def emit(document: Mapping[str, Any], text: Callable[[], str], *, as_json: bool) -> None:
    """Print one JSON document on one line, or the text about it."""
    print(msgspec.json.encode(document).decode() if as_json else text())


def note(text: str) -> None:
    """Tell the reader something beside the result, where no program takes it for the result."""
    print("\n".join(_wrapped(one_line(f"note: {text}"), width())), file=sys.stderr)


def record(text: str) -> str:
    """Return one record: folded at a terminal, on one line where a program reads it."""
    line = one_line(text)
    return "\n    ".join(_wrapped(line, width() - 4)) if sys.stdout.isatty() else line


def ask(option: str, question: str, *, as_json: bool, default: str | None = None) -> str:
    """Ask for a missing argument when a person sits at the terminal.

    Raises InvalidInputError naming the option if there is no terminal.
    """
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInputError(f"missing {option}: give it on the command line; there is no terminal to ask at")
    import typer

    return str(typer.prompt(question, default=default, err=True)).strip()


def width() -> int:
    """Return how many columns there are: the terminal's, or 80 where none is."""
    if not sys.stdout.isatty():
        return DEFAULT_WIDTH
    return max(40, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Return names and values below each other; long values go on under their beginning, paths and ids stay whole."""
    indent = max(len(name) for name, _ in pairs) + _GAP
    lines = []
    for name, value in pairs:
        paragraphs = [
            part
            for line in str(value).split("\n")
            for part in _wrapped(one_line(line), max(24, width() - indent)) or [""]
        ]
        lines.append(f"{name:<{indent}}{paragraphs[0]}".rstrip())
        lines += [f"{'':<{indent}}{part}".rstrip() for part in paragraphs[1:]]
    return "\n".join(lines)


def _wrapped(text: str, columns: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=False)


def seconds(time: str | None) -> str:
    """Return an RFC 3339 time without its fraction; a dash where there is none."""
    return f"{time[:19]}Z" if time else "-"


def minutes(time: str | None) -> str:
    """Return an RFC 3339 time to the minute; a dash where there is none."""
    return f"{time[:16]}Z" if time else "-"
