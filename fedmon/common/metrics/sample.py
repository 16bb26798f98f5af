"""One reading of everything a stream measures, taken at one instant; the growth between two readings."""

from __future__ import annotations

import msgspec


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """One moment on both clocks: ``t`` in Unix seconds for people, ``mono`` in monotonic seconds for differences."""

    t: float
    mono: float


class Sample(Instant, frozen=True, kw_only=True):
    """What every collector read at one tick.

    ``values`` maps a series such as ``host_disk_read_bytes_total{device="sda"}`` to its value, or to None where this
    one reading was missed; ``reasons`` says why for those series. ``t`` and ``mono`` are as in Instant. The mappings
    belong to the sample and are not changed after it was made.
    """

    values: dict[str, float | None]
    reasons: dict[str, str] = {}


def rate(earlier: float | None, later: float | None, elapsed_s: float) -> float | None:
    """Return the growth a second between two readings of a counter that lie ``elapsed_s`` monotonic seconds apart.

    None when a reading is missing, when no time passed, and when the counter went back, which means that it was
    restarted and that what it counted in between is not known.
    """
    if earlier is None or later is None or elapsed_s <= 0 or later < earlier:
        return None
    return (later - earlier) / elapsed_s
