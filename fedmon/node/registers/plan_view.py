"""A training plan as its reader must see it: nothing hidden, nothing that steers a terminal."""

from __future__ import annotations

import difflib
import re

from fedmon.common.log import is_hidden

OPEN, CLOSE = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""They enclose what stands for a hidden character; a plan that holds them itself has them shown in the same way."""

_UNUSUAL = re.compile(r"[^\t\n -~]")
_MAX_COMPARED = 1_000_000
_CONTEXT_LINES = 3


def visible(source: bytes) -> str:
    """Return a plan's text with every control, bidirectional and invisible character written out.

    Tabs, line feeds and visible characters stay. ``⟦U+202E⟧`` stands for a character, ``⟦0xFF⟧`` for a byte that is not
    UTF-8. Different bytes always give different texts.
    """
    return _UNUSUAL.sub(_shown, source.decode("utf-8", "surrogateescape"))


def visible_text(text: str) -> str:
    """Return a text with every control, bidirectional and invisible character written out, as `visible` does."""
    return _UNUSUAL.sub(_shown, text)


def diff(old: bytes, new: bytes, *, old_name: str = "approved", new_name: str = "asked for") -> str:
    """Return the unified difference of two plans in their visible forms; empty when the bytes are the same."""
    before, after = visible(old).split("\n"), visible(new).split("\n")
    heading = [f"--- {visible_text(old_name)}", f"+++ {visible_text(new_name)}"]
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    if (len(before) - head - tail) * (len(after) - head - tail) <= _MAX_COMPARED:
        lines = list(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""))[2:]
    elif before == after:
        lines = []
    else:
        lines = _replaced(before, after, head, tail)
    return "\n".join(heading + lines) + "\n" if lines else ""


def _common(left: list[str], right: list[str]) -> int:
    """Count how many lines two lists share from their start."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def _replaced(before: list[str], after: list[str], head: int, tail: int) -> list[str]:
    """Show the differing middle as taken out and put in: comparing so many lines one by one would take minutes."""
    start = max(0, head - _CONTEXT_LINES)
    old_end, new_end = len(before) - tail, len(after) - tail
    closing = after[new_end : new_end + _CONTEXT_LINES]
    old_length, new_length = old_end + len(closing) - start, new_end + len(closing) - start
    return [
        f"@@ -{start + 1},{old_length} +{start + 1},{new_length} @@",
        *(f" {line}" for line in before[start:head]),
        *(f"-{line}" for line in before[head:old_end]),
        *(f"+{line}" for line in after[head:new_end]),
        *(f" {line}" for line in closing),
    ]


def _shown(found: re.Match[str]) -> str:
    character = found.group()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"{OPEN}0x{code - 0xDC00:02X}{CLOSE}"
    if character in (OPEN, CLOSE) or is_hidden(character):
        return f"{OPEN}U+{code:04X}{CLOSE}"
    return character
