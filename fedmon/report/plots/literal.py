"""Names as they can be drawn: nothing in them is markup, a line break or a missing glyph."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

LONGEST = 32


def literal(text: str, most: int = LONGEST) -> str:
    """Return a text of at most ``most`` characters that can be drawn as it is.

    Characters that are invisible, break the line or are not in the font are shown by their code; of a long text
    begin and end remain.
    """
    shown = "".join(_shown(character) for character in text[: 8 * most])
    if len(text) > 8 * most:
        shown += "".join(_shown(character) for character in text[-most:])
    if len(shown) <= most:
        return shown
    tail = (most - 1) // 2
    return f"{shown[: most - 1 - tail]}…{shown[len(shown) - tail :]}"


def file_name(text: str, most: int = 60) -> str:
    """Return a text as a part of a file name: only letters, digits, dash, dot and underscore."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("._-")[:most] or "unnamed"


def _shown(character: str) -> str:
    if character == " ":
        return character
    code = ord(character)
    is_drawn = unicodedata.category(character)[0] not in "CZ" and not unicodedata.combining(character)
    if is_drawn and (code < 0x7F or code in _glyphs()):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode() if code > 0x1F else repr(character)[1:-1]


@functools.cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    font: Any = FT2Font(findfont("DejaVu Sans"))
    return frozenset(font.get_charmap())
