"""One reading of everything a stream measures, taken at one instant."""

from __future__ import annotations

import msgspec


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """One moment on both clocks: ``t`` in Unix seconds for people, ``mono`` in monotonic seconds for differences."""

    t: float
    mono: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What every collector read at one tick.

    ``values`` maps a series such as ``host_disk_read_bytes_total{device="sda"}`` to its value, or to None where this
    one reading was missed; ``reasons`` says why for those series. ``t`` and ``mono`` are as in Instant. The mappings
    belong to the sample and are not changed after it was made.
    """

    t: float
    mono: float
    values: dict[str, float | None]
    reasons: dict[str, str] = {}
