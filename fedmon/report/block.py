"""Neighbouring samples of one stream as arrays, which is how everything here reads a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


class Block(NamedTuple):
    """Samples ``seq`` to ``last_seq`` of one stream of one boot of one node, in order.

    ``t`` is Unix time and ``mono`` monotonic time in seconds. ``columns`` maps a series to one value a sample; NaN is
    a value that is not there. All arrays are of the same length and are not changed.
    """

    node_id: str
    boot: int
    stream: str
    seq: int
    t: Floats
    mono: Floats
    columns: Mapping[str, Floats]

    @property
    def last_seq(self) -> int:
        """The number of the last sample."""
        return self.seq + len(self.t) - 1

    def part(self, first_seq: int, last_seq: int) -> Block:
        """Return the samples from ``first_seq`` to ``last_seq``, both included."""
        low, high = max(0, first_seq - self.seq), max(0, last_seq - self.seq + 1)
        if low == 0 and high >= len(self.t):
            return self
        columns = {name: values[low:high] for name, values in self.columns.items()}
        return self._replace(seq=self.seq + low, t=self.t[low:high], mono=self.mono[low:high], columns=columns)
