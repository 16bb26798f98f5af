"""What a machine and a job on it showed at the same instants, put side by side from their two streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fedmon.report.block import Block, Floats

Chooser = Callable[[str], bool]


class Instants(NamedTuple):
    """Neighbouring samples of one boot of one node; ``host`` and ``job`` map series to arrays of equal length.

    ``t`` is Unix and ``mono`` monotonic time in seconds. A series that one of the streams does not have is absent.
    """

    node_id: str
    boot: int
    t: Floats
    mono: Floats
    host: Mapping[str, Floats]
    job: Mapping[str, Floats]

    def of_host(self, series: str) -> Floats:
        """Return a series of the machine, NaN throughout where there is none."""
        return self.host[series] if series in self.host else np.full(len(self.t), np.nan)

    def of_job(self, series: str) -> Floats:
        """Return a series of the job, NaN throughout where there is none."""
        return self.job[series] if series in self.job else np.full(len(self.t), np.nan)


def side_by_side(host: Iterator[Block], job: Iterator[Block]) -> Iterator[Instants]:
    """Join two streams of one node, each in order; samples of one tick have the same boot and monotonic time."""
    streams = (_Stream(host), _Stream(job))
    while True:
        ends = [end for stream in streams if (end := stream.end) is not None]
        if not ends:
            return
        limit = min(ends)
        parts = [stream.take(limit) for stream in streams]
        boot = limit[0]
        node_id, known = next((part.node_id, part) for part in parts if part is not None)
        if parts[0] is not None and parts[1] is not None and not np.array_equal(parts[0].mono, parts[1].mono):
            yield _joined(node_id, boot, parts[0], parts[1])
        else:
            columns = [{} if part is None else part.columns for part in parts]
            yield Instants(node_id, boot, known.t, known.mono, columns[0], columns[1])


class _Stream:
    """One stream, of which the samples up to some instant can be taken."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self.block: Block | None = None
        self._next()

    @property
    def end(self) -> tuple[int, float] | None:
        """The moment of the last sample that waits; None when all were taken."""
        return None if self.block is None else (self.block.boot, float(self.block.mono[-1]))

    def take(self, limit: tuple[int, float]) -> Block | None:
        block = self.block
        if block is None or block.boot != limit[0]:
            return None
        count = int(np.searchsorted(block.mono, limit[1], side="right"))
        if not count:
            return None
        if count == len(block.mono):
            self._next()
        else:
            self.block = block.part(block.seq + count, block.last_seq)
        return block.part(block.seq, block.seq + count - 1)

    def _next(self) -> None:
        self.block = next((block for block in self._blocks if len(block.t)), None)


def _joined(node_id: str, boot: int, host: Block, job: Block) -> Instants:
    mono = np.union1d(host.mono, job.mono)
    at_host, at_job = np.searchsorted(mono, host.mono), np.searchsorted(mono, job.mono)
    t = np.empty(len(mono))
    t[at_job], t[at_host] = job.t, host.t

    def spread(columns: Mapping[str, Floats], at: np.ndarray[tuple[int], np.dtype[np.intp]]) -> dict[str, Floats]:
        found = {}
        for name, values in columns.items():
            found[name] = np.full(len(mono), np.nan)
            found[name][at] = values
        return found

    return Instants(node_id, boot, t, mono, spread(host.columns, at_host), spread(job.columns, at_job))
