"""Reads what ``perf stat`` prints with ``-x ';'`` or ``-j``.

A line is ``[time;]value;unit;event[;cgroup];running ns;running %[;metric;metric unit]``. The value is a number, or says
that the event was not counted or is not supported, which is a gap and no 0. Source: man page perf-stat(1), section
"CSV FORMAT"; JSON as printed since Linux 6.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from fedmon.node.perf.command import SEPARATOR

NOT_COUNTED = "not counted"
NOT_SUPPORTED = "not supported"

_GAP = re.compile(r"<(not counted|not supported)>")
_NUMBER = re.compile(r"\d[\d.,'\u00a0\u202f ]*", re.ASCII)
_WHOLE = re.compile(r"\d+|\d{1,3}(?:,\d{3})+|\d{1,3}(?:\.\d{3})+", re.ASCII)
_MODIFIERS = re.compile(r"(?<=[^:]):([ukhGHpPSDWeIb]+)$")


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what an event counted in one interval.

    ``value`` is None with ``gap`` saying which. ``time_s`` is the end of the interval since perf began; None where perf
    was not asked for intervals. ``running_ratio`` is the share of the time in which a counter was free for it.
    """

    event: str
    value: float | None
    gap: str | None = None
    time_s: float | None = None
    unit: str = ""
    modifiers: str = ""
    cgroup: str | None = None
    running_ratio: float | None = None


def parse_line(line: str) -> Count | None:
    """Read one line; None when it is no count: a comment, a message, or something torn."""
    line = line.strip()
    if line.startswith("{"):
        return _json(line)
    fields = [field.strip() for field in line.split(SEPARATOR)]
    timed = len(fields) > 3 and _is_value(fields[1]) and _NUMBER.fullmatch(fields[0]) is not None
    time_s = _number(fields.pop(0), decimals=True) if timed else None
    if len(fields) < 3 or not _is_value(fields[0]):
        return None
    value, unit, event, *rest = fields
    cgroup = rest.pop(0) if _names_a_cgroup(rest) else None
    running = _number(rest[1], decimals=True) if len(rest) > 1 else None
    return _count(value, unit, event, time_s=time_s, cgroup=cgroup, percent=running)


def _json(line: str) -> Count | None:
    try:
        found = msgspec.json.decode(line, type=dict[str, str | float | None])
    except msgspec.MsgspecError:
        return None
    value, event = str(found.get("counter-value", "")).strip(), str(found.get("event") or "").strip()
    if not _is_value(value):
        return None
    cgroup = found.get("cgroup")
    return _count(
        value,
        str(found.get("unit") or ""),
        event,
        time_s=_json_number(found, "interval"),
        cgroup=None if cgroup is None else str(cgroup),
        percent=_json_number(found, "pcnt-running"),
    )


def _count(
    value: str, unit: str, event: str, *, time_s: float | None, cgroup: str | None, percent: float | None
) -> Count | None:
    gap = _GAP.fullmatch(value)
    # Perf prints units only for clocks (msec) and bytes (MiB), which have decimals; all the rest are whole numbers.
    number = None if gap else _number(value, decimals=bool(unit))
    if not event or (gap is None and number is None):
        return None
    modifiers = _MODIFIERS.search(event)
    return Count(
        event=event[: modifiers.start()] if modifiers else event,
        value=number,
        gap=gap[1] if gap else None,
        time_s=time_s,
        unit=unit,
        modifiers=modifiers[1] if modifiers else "",
        cgroup=cgroup or None,
        running_ratio=None if percent is None or gap else min(percent / 100, 1.0),
    )


def _names_a_cgroup(rest: Sequence[str]) -> bool:
    """Tell whether a column with the cgroup stands before the running time and its share.

    Both are numbers and end the line or are followed by the metric, which is empty or a number, and its unit.
    """
    if not rest or rest[0] == "":
        return False
    if _NUMBER.fullmatch(rest[0]) is None:
        return True
    # A cgroup may be called by a number: then three numbers follow each other, and the last is a share with decimals.
    return len(rest) in (3, 5) and _NUMBER.fullmatch(rest[1]) is not None and _NUMBER.fullmatch(rest[2]) is not None


def _is_value(text: str) -> bool:
    return _GAP.fullmatch(text) is not None or _NUMBER.fullmatch(text) is not None


def _json_number(found: Mapping[str, str | float | None], key: str) -> float | None:
    value = found.get(key)
    return _number(value, decimals=True) if isinstance(value, str) else value


def _number(text: str, *, decimals: bool) -> float | None:
    """Read a number with or without thousands separators, with a decimal point or comma.

    ``decimals`` says what a single mark before three digits is: a decimal mark, or one of thousands.
    """
    text = re.sub(r"['\u00a0\u202f ]", "", text)
    marks = re.findall(r"[.,]", text)
    decimal = marks[-1] if len(set(marks)) == 2 or len(marks) == 1 else ""
    if decimal == "," and len(marks) == 1 and not decimals and len(text.rpartition(",")[2]) == 3:
        decimal = ""
    whole, _mark, fraction = text.rpartition(decimal) if decimal else (text, "", "")
    if _WHOLE.fullmatch(whole) is None or not (fraction or "0").isdecimal():
        return None
    return float(f"{re.sub('[.,]', '', whole)}.{fraction or 0}")
