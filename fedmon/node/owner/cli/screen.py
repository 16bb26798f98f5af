"""Text that fits the screen: fields, folded lines, and times as people say them."""

from __future__ import annotations

import datetime
import shutil
import sys
from collections.abc import Mapping

from fedmon.common.clock import utc_now
from fedmon.common.text import one_line

DEFAULT_WIDTH = 80
_GAP = 2
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def record(text: str) -> str:
    """Return one record: folded at a terminal, on one line where a program reads it."""
    line = one_line(text)
    return "\n    ".join(folded(line, width() - 4)) if sys.stdout.isatty() else line


def width() -> int:
    """Return the terminal's columns; 80 if there is none."""
    if not sys.stdout.isatty():
        return DEFAULT_WIDTH
    return max(40, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def fields(shown: Mapping[str, object]) -> str:
    """Return names and values below each other, without those that are None; long values are folded, ids stay whole."""
    indent = max(map(len, shown)) + _GAP
    lines = []
    for name, value in shown.items():
        if value is None:
            continue
        parts = [part for line in str(value).split("\n") for part in folded(one_line(line), width() - indent) or [""]]
        lines.append(f"{name:<{indent}}{parts[0]}".rstrip())
        lines += [f"{'':<{indent}}{part}".rstrip() for part in parts[1:]]
    return "\n".join(lines)


def folded(text: str, columns: int = 0) -> list[str]:
    """Return a text in lines of at most so many columns (default: the screen's); longer words stay whole."""
    import textwrap

    return textwrap.wrap(text, max(24, columns or width()), break_on_hyphens=False, break_long_words=False)


def ago(time: str) -> str:
    """Return how long an RFC 3339 time is past, in its largest unit, such as "3 min"."""
    past = max(0, int((utc_now() - datetime.datetime.fromisoformat(time)).total_seconds()))
    unit, size = next((unit for unit in _UNITS if past >= unit[1]), _UNITS[-1])
    return f"{past // size} {unit}"


def seconds(time: str | None) -> str:
    """Return an RFC 3339 time without its fraction; a dash for None."""
    return f"{time[:19]}Z" if time else "-"
