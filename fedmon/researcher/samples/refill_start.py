"""Where a stream begins for a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fedmon.common.ids import NodeId
from fedmon.common.wire.samples import Extent
from fedmon.researcher.samples.refill_line import Line, Search


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream goes on: at this number of this boot, and at the beginning of every later boot."""

    boot: int
    seq: int


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """A stream begins with the first sample kept that is not older than the Unix time ``t``."""

    t: float


Start = Callable[[NodeId, str], Resume | Since | None]
"""Where a stream begins for a consumer; null for the first sample that it hears."""


def open_line(line: Line, extents: Iterable[Extent], since: float) -> None:
    """Begin a line with what a node keeps from a moment on, or begin to look for that moment."""
    wanted = [extent for extent in extents if extent.last_t >= since]
    if not wanted:
        return
    first, *later = wanted
    line.done = first.boot
    for extent in later:
        line.back(extent.boot, begin=extent.oldest_seq, end=extent.last_seq + 1)
    if first.oldest_t >= since:
        line.back(first.boot, begin=first.oldest_seq, end=first.last_seq + 1)
        line.opened = True
    else:
        end = first.last_seq + 1
        line.opened = False
        line.search = Search(boot=first.boot, since=since, low=first.oldest_seq + 1, high=first.last_seq, end=end)
        if line.search.low >= line.search.high:
            line.back(first.boot, begin=first.last_seq, end=end)
            line.search, line.opened = None, True
