"""Sums over whole recordings: means by time, growth over resets and boots, holes, and clocks that are set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedmon.report.blocks import Block
from fedmon.report.totals import StreamTotal, Totals
from tests.report.tables import block

NAN = float("nan")


def total(*blocks: Block) -> StreamTotal:
    totals = Totals()
    for one in blocks:
        totals.add(one)
    (found,) = totals.streams()
    return found


def test_a_mean_is_weighted_by_time_and_goes_on_over_blocks() -> None:
    found = total(block(0, [0, 1, 2, 4], {"x": [1, 1, 1, 4]}), block(4, [5], {"x": [2]}))
    one = found.series["x"]

    assert one.mean == pytest.approx((1 + 1 + 1 + 4 * 2 + 2) / 6)
    assert (one.values, one.first, one.last, one.low, one.high) == (5, 1, 2, 1, 4)


def test_series_that_are_read_less_often_get_the_time_in_between() -> None:
    slow = [5, NAN, NAN, NAN, 1, NAN, NAN, NAN, 1]
    found = total(block(0, range(9), {"x": slow, "y": [NAN] * 9}))

    assert found.series["x"].mean == pytest.approx((5 * 1 + 1 * 4 + 1 * 4) / 9)
    assert found.series["x"].values == 3
    assert "y" not in found.series


def test_counters_grow_over_blocks_and_boots_and_lose_only_what_a_reset_hides() -> None:
    found = total(
        block(0, [0, 1, 2], {"host_x_total": [10, 12, 14]}),
        block(3, [3, 4], {"host_x_total": [3, 8]}),
        block(0, [0, 1], {"host_x_total": [100, 101]}, boot=2),
    )
    one = found.series["host_x_total"]

    assert (one.increase, found.boots) == (2 + 2 + 5 + 1, 2)
    assert one.grown_s == 5
    assert one.per_second == 2


def test_a_hole_is_no_time_of_the_mean_but_time_in_which_counters_grew() -> None:
    columns = {"x": [1.0] * 10, "host_x_total": [float(at) for at in range(10)]}
    later = {"x": [3.0] * 10, "host_x_total": [float(110 + at) for at in range(10)]}
    found = total(block(0, range(10), columns), block(30, range(110, 120), later))

    assert found.missing == 20
    assert (found.hole_count, found.hole_seconds) == (1, 100)
    assert (found.holes[0].missing, found.holes[0].seconds) == (20, 100)
    assert found.series["x"].mean == pytest.approx(2.0)
    assert found.series["host_x_total"].per_second == 1


def test_the_time_between_two_boots_is_a_hole_unless_it_is_short() -> None:
    before = block(0, range(10), {"x": [1.0] * 10})
    short = total(before, block(0, [0, 1], {"x": [1.0] * 2}, boot=2, ahead_s=1e9 + 11))
    found = total(before, block(0, [0, 1], {"x": [1.0] * 2}, boot=2, ahead_s=1e9 + 609))

    assert short.hole_count == 0
    assert [(hole.after_t, hole.until_t, hole.missing) for hole in found.holes] == [(1e9 + 9, 1e9 + 609, 0)]
    assert (found.hole_seconds, found.elapsed_s, found.missing) == (600, 610, 0)


def test_another_pace_and_one_late_tick_are_no_holes() -> None:
    paced = total(block(0, [*range(10), *range(10, 40, 2)], {"x": [1.0] * 25}))
    late = total(block(0, [0, 1, 2, 4.4, 5], {"x": [1.0] * 5}))

    assert paced.hole_count == late.hole_count == 0


def test_a_pace_that_leases_change_is_no_hole_and_a_tick_left_out_is() -> None:
    def host(seq: int, moments: Sequence[float], left_out: Sequence[float]) -> Block:
        return block(seq, moments, {"x": [1.0] * len(moments), "agent_ticks_missed_total": left_out})

    watched = [*np.arange(0, 4, 0.5), *range(9, 30, 5), 30, 31, *range(36, 50, 5)]

    assert total(host(0, watched, [0] * len(watched))).hole_count == 0
    assert total(host(0, watched[:9], [0] * 9), host(9, watched[9:12], [0] * 3)).hole_count == 0
    assert total(host(0, [0, 1, 11, 12], [0, 0, 9, 9])).hole_seconds == 9


def test_values_that_a_program_reports_when_it_likes_have_no_holes() -> None:
    assert total(block(0, [0, 1, 2, 500], {"x": [1.0] * 4}, stream="user")).hole_count == 0


def test_a_clock_that_is_set_changes_no_duration_and_is_noted() -> None:
    found = total(block(0, [0, 1, 2], {"x": [1, 1, 1]}), block(3, [3, 4], {"x": [1, 1]}, ahead_s=1e9 - 3600))

    assert [(step.t, step.by_s) for step in found.clock_steps] == [(1e9 - 3597, -3600)]
    assert found.seconds == 4
    assert found.hole_count == 0


def test_how_long_a_series_lay_at_which_values_is_kept_of_long_jobs_too() -> None:
    few = total(block(0, range(8), {"job_cpus_busy": [1.0] * 6 + [4.01] * 2}))
    many = total(*(block(seq, range(seq, seq + 5000), {"job_cpus_busy": np.arange(seq, seq + 5000) / 5000})
                   for seq in range(0, 20_000, 5000)))  # fmt: skip

    assert few.series["job_cpus_busy"].levels == ((1.0, 0.75), (4.0, 0.25))
    levels = many.series["job_cpus_busy"].levels
    assert len(levels) == 80
    assert sum(share for value, share in levels if value < 2) == pytest.approx(0.5, abs=0.01)
    assert sum(share for _, share in levels) == pytest.approx(1)


def test_the_share_of_the_time_below_the_idle_limit_is_kept_for_devices() -> None:
    found = total(block(0, range(4), {'gpu_utilization_ratio{gpu="0"}': [0.0, 0.049, 0.05, 0.9], "x": [0, 0, 0, 0]}))

    assert found.series['gpu_utilization_ratio{gpu="0"}'].levels == ((0.0, 0.5), (0.05, 0.25), (0.9, 0.25))
    assert found.series["x"].levels == ()
