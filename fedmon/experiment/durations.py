"""Times as NEPI writes them: "1.5h", "2m", "30s", "5ms", "7us", and moments as 20 digits."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping

from fedmon.experiment.errors import InvalidTimeError

_UNITS: Mapping[str, float] = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
# Larger units first, each at most once; "m" must not eat the first letter of "ms".
_DURATION = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in ("h", "m(?!s)", "s", "ms", "us")))
_MOMENT = re.compile(r"[0-9]{20}")
MOMENT = "%Y%m%d%H%M%S%f"
"""The format of a moment, in local time."""
_LENGTHS, _DATE = '"1.5h", "2m", "30s", "5ms", "7us" or together "2m30s"', "20 digits, YYYYMMDDhhmmssffffff"
_LONGEST_S = 100 * 366 * 86400.0
_LONGEST_TEXT = 200


def seconds(text: object, remedy: str = _LENGTHS) -> float:
    """Return a duration in seconds, as documents and users write it; 0 for None and "".

    Larger units come first, and each at most once: "2m30s". Raises InvalidTimeError, which says to write ``remedy``.
    """
    if text is None or text == "":
        return 0.0
    found = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST_TEXT else None
    if found is None:
        raise InvalidTimeError(text, remedy)
    total = math.fsum(float(n) * unit for n, unit in zip(found.groups(), _UNITS.values(), strict=True) if n)
    if total > _LONGEST_S:
        raise InvalidTimeError(text, remedy, "more than 100 years")
    return total


def moment(text: str) -> datetime.datetime:
    """Return the moment of 20 digits, which are local time as NEPI's, in UTC. Raises InvalidTimeError."""
    if not _MOMENT.fullmatch(text):
        raise InvalidTimeError(text, _DATE)
    try:
        return datetime.datetime.strptime(text, MOMENT).astimezone(datetime.UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidTimeError(text, _DATE, f"no such date: {error}") from error


def moment_of(date: str | None, *, now: float) -> float:
    """Return the Unix time of a moment, which may be past, or of a duration from ``now``. Raises InvalidTimeError."""
    if isinstance(date, str) and _MOMENT.fullmatch(date):
        return moment(date).timestamp()
    return now + seconds(date, f"{_LENGTHS}, or a moment as {_DATE}")


def duration_text(duration_s: float) -> str:
    """Return a duration as a text that `seconds` reads back to the microsecond."""
    return f"{duration_s:.6f}".rstrip("0").rstrip(".") + "s"
