"""Samples that a bounded recording dropped while it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmon.common.errors import StorageError
from fedmon.common.store.recording_file import Key
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.report.source import Source


def vanished(before: Source, now: Source) -> int:
    """Return how many of the samples that there were are there no longer; some of them may have been read in time."""
    left = _numbers(now)
    total = 0
    for key, numbers in _numbers(before).items():
        gone = numbers.copy()
        for first, last in left.get(key, SeqRanges()):
            gone.remove(first, last)
        total += gone.total
    return total


def dropped_meanwhile(source: Source, files: Sequence[Path], *, rows: int, expected: int) -> int:
    """Return how many samples went while ``rows`` rows of at most so many as ``expected`` were written.

    Raises StorageError where that is why there is none at all.
    """
    with Source(files) as now:
        gone = vanished(source, now)
    if expected and not rows and gone:
        raise StorageError(
            f"the recording dropped {gone} samples while they were read, and no row is left: export again, or give the"
            " recording more room ([recording] max_bytes and max_age_s)"
        )
    return gone


def _numbers(source: Source) -> Mapping[Key, SeqRanges]:
    found: dict[Key, SeqRanges] = {}
    for one in source.streams:
        numbers = found.setdefault((one.node_id, one.stream, one.boot), SeqRanges())
        for first, last in one.ranges:
            numbers.add(first, last)
    return found
