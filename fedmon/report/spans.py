"""A selection cut into stretches of time that fit into memory, each of which can be read for itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedmon.common.store.recording_file import Key
from fedmon.common.store.recording_reader import Reach
from fedmon.common.store.seq_ranges import SeqRanges


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one node from ``since_t`` up to, but without, ``until_t``; ``runs`` says which may be among them.

    ``rows`` is how many there are at most.
    """

    node_id: str
    since_t: float
    until_t: float
    runs: list[tuple[Key, list[tuple[int, int]]]]
    rows: int


class _Rows(NamedTuple):
    """Numbers and times of rows of recordings, as columns."""

    seqs: NDArray[np.int64]
    times: NDArray[np.float64]

    def within(self, since_t: float, until_t: float) -> _Rows:
        chosen = (self.times[:, 1] >= since_t) & (self.times[:, 0] < until_t)
        return _Rows(self.seqs[chosen], self.times[chosen])


def spans(
    node_id: str, reaches: Mapping[Key, Iterable[Reach]], *, since_t: float, until_t: float, rows: int
) -> Iterator[Span]:
    """Cut what one node recorded into spans of about so many rows, by time.

    ``reaches`` says what the rows of its recordings hold. ``until_t`` does not belong to it.
    """
    tables = {key: _table(list(found)).within(since_t, until_t) for key, found in reaches.items()}
    for low, high in itertools.pairwise([since_t, *_cuts(list(tables.values()), since_t, rows), until_t]):
        runs: list[tuple[Key, list[tuple[int, int]]]] = []
        most = 0
        for key, table in tables.items():
            ranges = SeqRanges(map(tuple, table.within(low, high).seqs.tolist()))
            if ranges:
                runs.append((key, list(ranges)))
                most += ranges.total
        if runs:
            yield Span(node_id=node_id, since_t=low, until_t=high, runs=runs, rows=most)


def _table(reaches: Sequence[Reach]) -> _Rows:
    seqs = np.array([(one.first_seq, one.last_seq) for one in reaches], dtype=np.int64).reshape(-1, 2)
    times = np.array([(one.low_t, one.high_t) for one in reaches], dtype=np.float64).reshape(-1, 2)
    return _Rows(seqs, times)


def _cuts(tables: Sequence[_Rows], since_t: float, rows: int) -> list[float]:
    """Return times at which a row begins, with about so many samples between them."""
    if not tables:
        return []
    lows = np.concatenate([table.times[:, 0] for table in tables])
    lengths = np.concatenate([table.seqs[:, 1] - table.seqs[:, 0] + 1 for table in tables])
    order = np.argsort(lows, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order]
    found: list[float] = []
    taken, last = 0.0, since_t
    for at, low in zip(before.tolist(), lows[order].tolist(), strict=True):
        if at - taken >= rows and low > last and math.isfinite(low):
            found.append(low)
            taken, last = at, low
    return found
