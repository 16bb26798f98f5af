"""Columns come back equal, whatever numbers they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.common.store.recording_format import restored, written
from fedmon.common.store.seq_ranges import SeqRanges

NUMBERS = st.one_of(
    st.none(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 10**9).map(lambda number: number / 100),
    st.integers(0, 10**6).map(lambda number: number * 4096),
)


@settings(max_examples=60)
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_every_column_comes_back_equal(column: list[float | None]) -> None:
    stored = json.loads(msgspec.json.encode(written(column)))

    again = restored(stored, len(column))

    assert again == column


def test_no_number_at_all_becomes_null() -> None:
    stored = json.loads(msgspec.json.encode(written([1.5, math.nan, math.inf])))

    assert restored(stored, 3) == [1.5, None, None]


@pytest.mark.parametrize("column", [[10**9, [1, 1], 1], ["2", [1, 1], 1], [0, [1], 1], [0, [1, 1]]])
def test_a_column_that_nobody_can_have_written_is_refused(column: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"a column has|not enough values"):
        restored(column, 2)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(-1, 12)), max_size=25))
def test_ranges_are_the_set_of_their_numbers(steps: list[tuple[bool, int, int]]) -> None:
    ranges, model = SeqRanges(), set[int]()
    for adds, first, length in steps:
        numbers = set(range(first, first + length))
        if adds:
            ranges.add(first, first + length - 1)
            model |= numbers
        else:
            ranges.remove(first, first + length - 1)
            model -= numbers

    assert {number for a, b in ranges for number in range(a, b + 1)} == model
    assert ranges.total == len(model)
    assert {n for a, b in ranges.absent(5, 30) for n in range(a, b + 1)} == set(range(5, 31)) - model
    assert {n for a, b in ranges.within(5, 30) for n in range(a, b + 1)} == set(range(5, 31)) & model
    assert all(b + 1 < c for (_, b), (c, _) in zip(list(ranges), list(ranges)[1:], strict=False))
