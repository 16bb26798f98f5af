"""The plans of the examples let leave what they say, and nothing that tells of few people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmon.demo.cli import OTHER_PLANS, PLAN
from tests.docs.examples import EXAMPLES, ROOT, example

counts = st.lists(st.integers(0, 30), min_size=1, max_size=12)
shown = example("plans/histogram_plan").shown


@given(counts, st.integers(0, 30), st.integers(1, 20))
def test_no_bin_below_the_minimum_leaves_a_node_and_none_can_be_computed(
    inside: list[int], outside: int, minimum: int
) -> None:
    rows = sum(inside) + outside

    left = shown(inside, rows, minimum)
    unseen = rows - sum(count for count in left if count is not None)

    assert all(count is None or count == true for count, true in zip(left, inside, strict=True))
    assert all(count is None or count >= minimum for count in left)
    assert unseen == 0 or unseen >= minimum or set(left) == {None}


@given(counts, st.integers(1, 20))
def test_nothing_is_withheld_where_every_bin_has_the_minimum(inside: list[int], minimum: int) -> None:
    enough = [count + minimum for count in inside]

    assert shown(enough, sum(enough), minimum) == enough


@pytest.mark.parametrize("plan", [PLAN, *OTHER_PLANS])
def test_the_demo_has_the_very_plans_of_the_examples(plan: str) -> None:
    assert (ROOT / "fedmon/demo/data" / plan).read_bytes() == (EXAMPLES / "plans" / plan).read_bytes()


def test_sums_are_put_together_whatever_the_sizes_of_the_hospitals() -> None:
    combined = example("federated_mean").combined

    together = combined([{"rows": 1, "mean": 1.0, "squares": 0.0}, {"rows": 3, "mean": 5.0, "squares": 8.0}])

    assert together == {"rows": 4, "mean": 4.0, "deviation": 5**0.5}


def test_a_bin_that_somebody_withheld_is_named_and_counts_what_the_others_told() -> None:
    combined = example("federated_histogram").combined

    bins = combined([0.0, 1.0, 2.0], {"a": [7, None], "b": [5, 6]})

    assert [(one["count"], one["withheld"]) for one in bins] == [(12, []), (6, ["a"])]
