"""Samples for recordings, of which every value tells where it belongs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.common.store.seq_ranges import SeqRanges

NODE, STREAM = "a", "host"
T0, MONO0 = 1_760_000_000.0, 1_000.0
Flat = list[tuple[str, str, int, int, float, float, dict[str, float | None], dict[str, str]]]


def batch(
    seq: int, length: int = 10, *, boot: int = 1, node: str = NODE, stream: str = STREAM, t0: float = T0
) -> Batch:
    """Return samples at 1 Hz with a gauge, a counter, a constant and a series that is read every third time."""
    numbers = range(seq, seq + length)
    return Batch(
        node_id=node,
        boot=boot,
        stream=stream,
        seq=seq,
        t=[t0 + number for number in numbers],
        mono=[MONO0 + number for number in numbers],
        columns={
            "host_cpu_busy_ratio": [round(number % 7 / 7, 4) for number in numbers],
            'host_disk_read_bytes_total{device="sda"}': [4096 * number for number in numbers],
            "host_cpu_count": [2 for _ in numbers],
            "host_temperature_celsius": [20.5 if number % 3 == 0 else None for number in numbers],
        },
    )


def flat(batches: Iterable[Batch]) -> Flat:
    """Return samples one by one, however they were cut into batches."""
    return [
        (
            *(one.node_id, one.stream, one.boot, one.seq + at, one.t[at], one.mono[at]),
            {series: column[at] for series, column in one.columns.items() if column[at] is not None},
            {
                series: why
                for series, why in one.reasons.items()
                if one.columns.get(series, [1] * len(one.t))[at] is None
            },
        )
        for one in batches
        for at in range(len(one.t))
    ]


def seqs(batches: Iterable[Batch]) -> list[int]:
    """Return the numbers of samples, in order."""
    return [one.seq + at for one in batches for at in range(len(one.t))]


def missing(
    recording: Recording, first: int, last: int, *, of: tuple[str, int, str] = (NODE, 1, STREAM)
) -> list[tuple[int, int]]:
    """Return the ranges of samples of a stream that are neither there nor said to be lost."""
    there = [one.ranges for one in recording.extents() if (one.node_id, one.boot, one.stream) == of]
    lost = [(one.first_seq, one.last_seq) for one in recording.lost(*of)]
    return SeqRanges(itertools.chain(lost, *there)).absent(first, last)
