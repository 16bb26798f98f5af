"""One limit at which a finding changes what it says."""

from __future__ import annotations

import msgspec

from fedmon.common.metrics.metric import Unit


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A limit in a base unit, and the reason why it lies there."""

    name: str
    value: float
    unit: Unit
    why: str
