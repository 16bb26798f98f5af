"""How fast a counter grows, from two raw readings of it."""

from __future__ import annotations


def rate(earlier: float | None, later: float | None, elapsed_s: float) -> float | None:
    """Return the growth a second between two readings of a counter that lie ``elapsed_s`` monotonic seconds apart.

    None when a reading is missing, when no time passed, and when the counter went back, which means that it was
    restarted and that what it counted in between is not known.
    """
    if earlier is None or later is None or elapsed_s <= 0 or later < earlier:
        return None
    return (later - earlier) / elapsed_s
