"""Words for people: quantities, durations, moments, plurals, lists and the one table renderer."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence

from fedmon.common.clock import utc_now
from fedmon.common.log import escape_control

MISSING = "-"
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T")
_AGES = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_GAP = 2
_LEAST_SHORTENED, _LEAST_FOLDED = 6, 10
_ID_WIDTH = 36
"""An id that is broken into two lines cannot be copied; longer words may be broken anywhere."""
_SHORT_ID = 13
"""Characters of a version 7 UUID that hold its millisecond."""
UNLIMITED = 10_000
"""Columns of a pipe or file: nothing is cut there."""
_NUMBER = re.compile(r"-|[-+]?\d[\d.]*(e[-+]?\d+)?( ?([^\W\d_]{1,3}|[%°]C?))?(/s)?")
_DIGITS = re.compile(r"([0-9]{1,18})")
_HEAD, _RULE = "1", "2"
"""Codes of bold and faint text on a terminal (ECMA-48, SGR)."""


def plural(amount: int, one: str, many: str | None = None) -> str:
    """Return "1 node" or "3 nodes"."""
    return f"{amount} {one if amount == 1 else many or f'{one}s'}"


def joined(words: Sequence[str], *, most: int = 3, last: str = " and ") -> str:
    """Return "a, b and c", or "a, b, c and 7 more" for many more than ``most``."""
    if len(words) > most + 1:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])}{last}{words[-1]}"


def shorten(text: str, limit: int) -> str:
    """Cut a text to ``limit`` characters, with a sign that it continues."""
    return text if len(text) <= limit else text[: max(1, limit - 1)] + "…"


def sound(text: str) -> str:
    """Return a text that every format can hold: anything but characters of Unicode is written as its code."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """Return a text on one line, with hidden and control characters made visible."""
    return escape_control(" ".join(text.split()) if "\n" in text else text)


def number(value: float) -> str:
    """Return a number as "12", "3.14" or "1.2 M"."""
    if abs(value) >= 10_000:
        return scaled(value).rstrip()
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def percent(ratio: float) -> str:
    """Return a ratio as "37 %" or "0.4 %"."""
    share = ratio * 100
    return f"{share:.1f} %" if 0 < abs(share) < 9.95 else f"{share:.0f} %"


def size(size_bytes: float) -> str:
    """Return bytes as "1.2 GiB"."""
    return _scaled(size_bytes, 1024.0, _BINARY)


def scaled(value: float, symbol: str = "") -> str:
    """Return a value with a decimal prefix before its unit: "1.2 kW"."""
    return _scaled(value, 1000.0, tuple(f"{prefix}{symbol}" for prefix in _DECIMAL))


def duration(seconds: float) -> str:
    """Return seconds as "0.4 ms", "59.9 s", "2 min 5 s", "3 h 1 min" or "2 d 4 h"."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.1f} ms" if seconds else "0 s"
    if abs(seconds) < 99.95:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s"


def moment(when: float | datetime.datetime) -> str:
    """Return a moment, or a Unix time, as "2026-11-21 10:12:58 UTC".

    A number that no calendar has is a dash; a moment that UTC does not have stays as it came.
    """
    try:
        known = when if isinstance(when, datetime.datetime) else datetime.datetime.fromtimestamp(when, datetime.UTC)
        return known.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return when.isoformat() if isinstance(when, datetime.datetime) else MISSING


def ago(when: datetime.datetime) -> str:
    """Return how far a moment is from now, in its largest unit: "12 s ago", or "in 3 d"."""
    past_s = int((utc_now() - when).total_seconds())
    unit, size_s = next((age for age in _AGES if abs(past_s) >= age[1]), _AGES[-1])
    text = f"{abs(past_s) // size_s} {unit}"
    return f"in {text}" if past_s < 0 else f"{text} ago"


def short_ids(ids: Collection[str]) -> dict[str, str]:
    """Map ids to beginnings that differ; only UUIDs are shortened, after a prefix such as ``dataset_``."""
    bare = {each: each[-_ID_WIDTH:] for each in ids}
    sizes = (
        size for size in range(_SHORT_ID, _ID_WIDTH + 1) if len({one[:size] for one in bare.values()}) == len(bare)
    )
    enough = next(sizes, _ID_WIDTH)
    return {each: one[:enough] if one.count("-") == 4 and len(one) == _ID_WIDTH else each for each, one in bare.items()}


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of a text: numbers in it count as numbers, and come before letters."""
    parts = enumerate(_DIGITS.split(text))
    return tuple((0, int(part), part) if place % 2 else (1, 0, part) for place, part in parts if part)


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int = 0,
    fold: bool = False,
    styles: Sequence[Sequence[str]] | None = None,
) -> str:
    """Return rows below their headers as aligned text; ``width`` 0 is that of the terminal; pipes cut nothing.

    Each cell becomes one line with hidden characters escaped, numbers stand to the right. The widest columns are
    shortened until lines fit, or with ``fold`` folded; lines are longer where that would break a word or an id.
    ``styles`` are SGR codes for each cell, empty for none: with them headers are bold.
    """
    import shutil
    import textwrap

    from tabulate import tabulate

    room = (width or shutil.get_terminal_size((UNLIMITED, 24)).columns) - _GAP * (len(headers) - 1)
    cells = [list(headers), *([one_line(str(cell)) for cell in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    least = [_least_folded(column) if fold else _LEAST_SHORTENED for column in columns]
    # None is wider than the line: one of a million characters would be narrowed by one at a time.
    widths = [min(max(map(len, column)), max(room, one)) for column, one in zip(columns, least, strict=True)]
    while sum(widths) > room and (wider := [at for at, width in enumerate(widths) if width > least[at]]):
        widths[max(wider, key=widths.__getitem__)] -= 1
    plain = [""] * len(headers)
    codes = [plain] * (len(cells) + 1) if styles is None else [[_HEAD] * len(headers), [_RULE] * len(headers), *styles]
    fitted = [
        [
            _styled(textwrap.fill(cell, limit, break_on_hyphens=False) if fold else shorten(cell, limit), code)
            for cell, limit, code in zip(row, widths, row_codes, strict=True)
        ]
        for row, row_codes in zip([cells[0], ["─" * limit for limit in widths], *cells[1:]], codes, strict=True)
    ]
    aligned = [
        "right" if at and len(column) > 1 and all(map(_is_number, column[1:])) else "left"
        for at, column in enumerate(columns)
    ]
    lines = tabulate(
        fitted, tablefmt="plain", colalign=aligned, disable_numparse=True, preserve_whitespace=True
    ).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _is_number(cell: str) -> bool:
    return not cell or _NUMBER.fullmatch(cell) is not None


def _styled(text: str, code: str) -> str:
    return "\n".join(f"\x1b[{code}m{line}\x1b[0m" if code and line else line for line in text.split("\n"))


def _least_folded(column: Sequence[str]) -> int:
    words = (len(word) for cell in column for word in cell.split())
    return max(_LEAST_FOLDED, *(length for length in (0, *words) if length <= _ID_WIDTH))


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    exponent = 0
    # 999.5 would be printed as 1000: the next unit begins where rounding does.
    while abs(value) >= base - 0.5 and exponent < len(units) - 1:
        value /= base
        exponent += 1
    text = f"{value:.1f}" if exponent and abs(value) < 99.95 else f"{value:.0f}"
    return f"{text} {units[exponent]}"
