"""A recording keeps to its bounds: the oldest samples go first, each is counted, and no clock can mislead it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from tests.common.store.recordings import NODE, STREAM, T0, batch, missing, seqs
from tests.support.compaction import compact

MIB = 2**20


class Clocks:
    """A wall clock that can be set, and a monotonic clock."""

    def __init__(self) -> None:
        self.mono = 0.0
        self.offset = T0

    def wall(self) -> float:
        return self.mono + self.offset

    def monotonic(self) -> float:
        return self.mono


def noisy(seq: int, *, boot: int = 1) -> Batch:
    """Return samples that hardly compress: 5 kB a batch."""
    one, chance = batch(seq, 10, boot=boot), random.Random(seq)
    for series in range(60):
        one.columns[f"user_{series}"] = [chance.random() for _ in range(10)]
    return one


def test_the_file_never_grows_beyond_its_size_and_the_oldest_go_and_do_not_come_back(path: Path) -> None:
    appended = 0
    with Recording(path, max_bytes=MIB) as recording:
        for first in range(0, 1200, 10):
            appended += recording.append([noisy(first)])
            recording.maintain()
            if first % 100 == 0:
                assert recording.size_bytes() <= MIB

        kept = seqs(recording.read())
        dropped = recording.counts()["dropped_by_size"]
        assert recording.append([batch(0, 100)]) == 0
        assert missing(recording, 0, 1199) == []
        (lost,) = recording.lost(NODE, 1, STREAM)

    assert (lost.first_seq, lost.last_seq) == (0, kept[0] - 1)
    assert kept == list(range(kept[0], 1200))
    assert 0 < dropped == kept[0]
    assert len(kept) + dropped == appended == 1200


def test_a_smaller_bound_shrinks_the_file_piece_by_piece(path: Path) -> None:
    with Recording(path) as recording:
        for first in range(0, 1200, 10):
            recording.append([noisy(first)])
        large = recording.size_bytes()
        recording.set_bounds(max_bytes=MIB, max_age_s=None)
        while recording.maintain():
            pass
        recording.append([batch(1200)])
        kept = seqs(recording.read())

        assert recording.size_bytes() <= MIB < large
        assert kept == list(range(kept[0], 1210))


def test_the_oldest_boot_goes_before_newer_ones(path: Path) -> None:
    clocks = Clocks()
    with Recording(path, max_bytes=MIB, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        for boot in (1, 2, 3):
            for first in range(0, 600, 10):
                clocks.mono += 10
                recording.append([noisy(first, boot=boot)])

        boots = {one.boot: one.oldest_seq for one in recording.extents()}

    assert 3 in boots
    assert 1 not in boots
    assert boots[3] == 0 or 2 not in boots


def test_samples_older_than_the_bound_go_and_are_counted(path: Path) -> None:
    clocks = Clocks()
    with Recording(path, max_age_s=60, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        for first in range(0, 200, 10):
            recording.append([batch(first)])
            clocks.mono += 10

        kept = seqs(recording.read())
        assert kept == list(range(130, 200))
        assert recording.counts()["dropped_by_age"] == 130

        clocks.mono += 1000
        assert recording.maintain()
        assert seqs(recording.read()) == []
        assert recording.counts()["dropped_by_age"] == 200


@pytest.mark.parametrize("step_s", [-86_400.0, 7_200.0])
def test_a_clock_that_is_set_makes_no_sample_old_and_changes_no_order(path: Path, step_s: float) -> None:
    clocks = Clocks()
    with Recording(path, max_age_s=600, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        for first in range(0, 200, 10):
            if first == 100:
                clocks.offset += step_s
            recording.append([batch(first, t0=clocks.offset)])
            clocks.mono += 10
        compact(recording)

        assert seqs(recording.read()) == list(range(200))
        assert recording.counts()["dropped_by_age"] == 0
        assert seqs(recording.read(since_t=T0 + 50)) == list(range(50, 100 if step_s < 0 else 200))
        extent = recording.extents()[0]
        assert (extent.oldest_t, extent.last_t) == (T0, T0 + step_s + 199)


def test_age_goes_on_between_two_processes_and_never_back(path: Path) -> None:
    clocks = Clocks()
    with Recording(path, max_age_s=600, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        recording.append([batch(0)])
    clocks.mono, clocks.offset = 5.0, T0 - 86_400  # the machine started again with its clock a day behind
    with Recording(path, max_age_s=600, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        recording.maintain()
        assert seqs(recording.read()) == list(range(10))

    clocks.offset = T0 + 700
    with Recording(path, max_age_s=600, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        recording.maintain()
        assert seqs(recording.read()) == []


def test_what_is_filled_in_late_is_as_old_as_its_neighbours(path: Path) -> None:
    clocks = Clocks()
    with Recording(path, max_age_s=100, wall=clocks.wall, monotonic=clocks.monotonic) as recording:
        recording.append([batch(150, 50)])
        backlog = [batch(first) for first in range(0, 150, 10)]
        recording.append(backlog)

        # A row goes when its last sample is too old; these rows have up to 60 samples.
        assert seqs(recording.read()) == list(range(60, 200))
        assert recording.counts()["dropped_by_age"] == 60
