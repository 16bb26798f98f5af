from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.node.measure.grid import Grid


def test_a_million_ticks_do_not_drift() -> None:
    grid = Grid(start=100.0, interval_s=0.2)

    assert grid.due(1_000_000) == 100.0 + 1_000_000 * 0.2


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100.0, (1, 0)),
        (104.9, (1, 0)),
        (105.0, (1, 0)),
        (105.1, (2, 1)),
        (110.0, (2, 1)),
        (110.1, (3, 2)),
        (3700.0, (720, 719)),
    ],
)
def test_ticks_that_lie_behind_are_left_out_and_counted(now: float, expected: tuple[int, int]) -> None:
    assert Grid(start=100.0, interval_s=5.0).after(0, now) == expected


@given(
    start=st.floats(0, 1e7),
    interval_s=st.floats(0.2, 3600),
    number=st.integers(0, 10**6),
    late_s=st.floats(0, 1e5),
)
def test_the_next_tick_is_the_first_that_is_not_over(
    start: float, interval_s: float, number: int, late_s: float
) -> None:
    grid = Grid(start=start, interval_s=interval_s)
    now = grid.due(number) + late_s

    following, missed = grid.after(number, now)

    assert following == number + 1 + missed
    assert missed >= 0
    assert grid.due(following) >= now
    assert missed == 0 or grid.due(following - 1) < now + 1e-6 * interval_s
