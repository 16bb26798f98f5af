"""Options of the verbs that read recordings: times."""

from __future__ import annotations

from datetime import UTC, datetime

from fedmon.common.errors import InvalidInputError


def times(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """Return from when and until when in Unix seconds; see `unix_time`. Raises InvalidInputError."""
    since_t, until_t = unix_time(since), unix_time(until)
    if since_t is not None and until_t is not None and until_t < since_t:
        raise InvalidInputError(f"--until {until} is before --since {since}")
    return since_t, until_t


def unix_time(text: str | None) -> float | None:
    """Return a time as Unix seconds: such, or as "2026-11-21 10:00", in UTC unless it names its zone.

    Raises InvalidInputError.
    """
    if text is None:
        return None
    try:
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"{text!r} is not a time: write 2026-11-21T10:00:00, with +01:00 after it if it is not UTC, or Unix seconds"
        ) from None
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
