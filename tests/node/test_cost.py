from __future__ import annotations

from fedmon.node.measure.cost import MAX_STRETCH, Cost


def test_sampling_within_its_budget_keeps_its_pace() -> None:
    cost = Cost(budget_ratio=0.05)

    changes = [cost.account(0.04, 1.0) for _ in range(100)]

    assert not any(changes)
    assert cost.stretch == 1
    assert round(cost.cpu_s, 6) == 4.0


def test_sampling_above_its_budget_is_stretched_until_it_fits_and_not_for_ever() -> None:
    fits, never_fits = Cost(budget_ratio=0.05), Cost(budget_ratio=0.05)

    for _ in range(1000):
        fits.account(0.19, 1.0 * fits.stretch)
        never_fits.account(100.0, 1.0 * never_fits.stretch)

    assert fits.stretch == 4
    assert never_fits.stretch == MAX_STRETCH


def test_the_pace_comes_back_when_sampling_is_cheap_again() -> None:
    cost = Cost(budget_ratio=0.05)
    for _ in range(10):
        cost.account(0.19, 1.0 * cost.stretch)

    for _ in range(100):
        cost.account(0.001, 1.0 * cost.stretch)

    assert cost.stretch == 1


def test_one_costly_tick_among_many_is_no_reason() -> None:
    cost = Cost(budget_ratio=0.05)
    for _ in range(20):
        cost.account(0.001, 1.0)

    assert not cost.account(0.3, 1.0)


def test_the_first_tick_which_opens_everything_is_no_reason() -> None:
    cost = Cost(budget_ratio=0.05)

    changes = [cost.account(cpu_s, 0.2) for cpu_s in (0.02, 0.001, 0.001)]

    assert changes == [False, False, False]
