"""Recordings in steps of time: nothing is invented, nothing that was there is lost."""

from __future__ import annotations

import numpy as np
import pytest

from fedmon.report.bins import Bins, SeriesKey
from tests.report.tables import block

GAUGE = SeriesKey("n1", "host", "host_load1")


def test_many_samples_keep_their_peaks_their_count_and_their_mean() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(0.0, 10_000.0)
    values = rng.normal(size=len(t))
    values[rng.random(len(t)) < 0.2] = np.nan
    bins = Bins((0.0, float(t[-1])), count=50)

    for first in range(0, len(t), 333):
        part = slice(first, first + 333)
        bins.add(block(first, t[part], {"host_load1": values[part]}, ahead_s=0))

    found = bins.of(GAUGE)
    assert len(found.t) == 50
    assert found.counts.sum() == np.isfinite(values).sum()
    assert found.low.min() == np.nanmin(values)
    assert found.high.max() == np.nanmax(values)
    assert np.average(found.mean, weights=found.counts) == pytest.approx(np.nanmean(values))
    first_step = values[t < bins.width_s]
    assert found.mean[0] == pytest.approx(np.nanmean(first_step))


def test_a_gap_is_known_in_few_and_in_many_samples_and_a_change_of_interval_is_none() -> None:
    few, many, slower = Bins((0.0, 20.0)), Bins((0.0, 9999.0), count=100), Bins((0.0, 200.0))
    lost, watched = Bins((0.0, 20.0)), Bins((0.0, 200.0))
    few.add(block(0, [0, 1, 2, 3, 10, 11, 12], {"host_load1": [1] * 7}, ahead_s=0))
    t = [float(n) for n in range(10_000) if not 4000 <= n < 5000]
    many.add(block(0, t, {"host_load1": [1.0] * len(t)}, ahead_s=0))
    t = [*map(float, range(20)), *map(float, range(20, 200, 10))]
    slower.add(block(0, t, {"host_load1": [1.0] * len(t)}, ahead_s=0))
    for first, begin in ((0, 0.0), (11, 10.5)):  # one sample is missing, of a node that took the next one soon
        lost.add(block(first, [begin + at for at in range(10)], {"host_load1": [1.0] * 10}, ahead_s=0))
    t = np.cumsum([5.0] * 9 + [1.0] * 9 + [5.0] * 3 + [1.0] * 9).tolist()
    told = {"host_load1": [1.0] * len(t), "agent_ticks_missed_total": [0.0] * len(t)}
    watched.add(block(0, t, told, ahead_s=0))

    assert np.flatnonzero(few.of(GAUGE).gaps).tolist() == [3]
    assert np.flatnonzero(many.of(GAUGE).gaps).tolist() == [39]
    assert not slower.of(GAUGE).gaps.any()
    assert np.flatnonzero(lost.of(GAUGE).gaps).tolist() == [9]
    assert not watched.of(GAUGE).gaps.any()
