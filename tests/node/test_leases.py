from __future__ import annotations

import pytest

from fedmon.node.measure.leases import MAX_LEASES, MAX_LEASES_OF_ONE, LeaseRefusedError, Leases, Pace


def leases(*, default: float = 5.0, minimum: float = 0.2) -> Leases:
    return Leases(default_interval_s=default, min_interval_s=minimum)


def test_without_a_lease_the_owner_s_interval_holds() -> None:
    assert leases(default=7.0).pace(0.0) == Pace(interval_s=7.0, live=False, next_expiry=None)


def test_the_smallest_lease_sets_the_interval_and_the_next_smallest_follows_it() -> None:
    held = leases()

    first = held.start("anna", "main", now=0.0, interval_s=2.0, lease_s=30.0)
    second = held.start("ben", "main", now=0.0, interval_s=0.5, lease_s=10.0)

    assert (first.interval_s, second.interval_s) == (2.0, 0.5)
    assert held.pace(9.9) == Pace(interval_s=0.5, live=True, next_expiry=10.0)
    assert held.pace(10.0) == Pace(interval_s=2.0, live=True, next_expiry=30.0)
    assert held.pace(30.0) == Pace(interval_s=5.0, live=False, next_expiry=None)


@pytest.mark.parametrize(
    ("wanted", "granted"), [(0.01, 1.0), (1.0, 1.0), (3.0, 3.0), (5.0, 5.0), (3600.0, 5.0), (None, 5.0)]
)
def test_a_lease_stays_within_the_owner_s_limits(wanted: float | None, granted: float) -> None:
    held = leases(default=5.0, minimum=1.0)

    answer = held.start("anna", "main", now=0.0, interval_s=wanted)

    assert answer.interval_s == granted
    assert held.pace(0.0).interval_s == granted


def test_a_lease_holds_a_minute_at_most_and_lives_on_when_renewed() -> None:
    held = leases()

    granted = held.start("anna", "main", now=0.0, interval_s=1.0, lease_s=3600.0)
    held.start("anna", "main", now=59.0, interval_s=1.0, lease_s=60.0)

    assert granted.lease_s == 60.0
    assert held.pace(118.9).interval_s == 1.0
    assert held.pace(119.0).interval_s == 5.0


def test_a_renewal_may_change_what_was_asked() -> None:
    held = leases()

    held.start("anna", "main", now=0.0, interval_s=0.5, live=True)
    held.start("anna", "main", now=1.0, interval_s=2.0, live=False)

    assert held.pace(1.0) == Pace(interval_s=2.0, live=False, next_expiry=31.0)
    assert len(held.held(1.0)) == 1


def test_stopping_ends_the_lease_of_that_instance_alone() -> None:
    held = leases()
    held.start("anna", "main", now=0.0, interval_s=1.0)
    held.start("anna", "shell", now=0.0, interval_s=0.5)

    assert held.stop("anna", "shell")

    assert not held.stop("anna", "shell")
    assert held.pace(0.0).interval_s == 1.0


def test_a_lease_that_is_not_live_changes_the_pace_but_wants_no_sample_at_once() -> None:
    held = leases()

    held.start("anna", "main", now=0.0, interval_s=1.0, live=False)

    assert held.pace(0.0) == Pace(interval_s=1.0, live=False, next_expiry=30.0)


def test_one_researcher_cannot_take_every_lease() -> None:
    held = leases()
    for number in range(MAX_LEASES_OF_ONE):
        held.start("anna", f"shell{number}", now=0.0)

    with pytest.raises(LeaseRefusedError, match="researcher anna already holds 100 monitoring leases"):
        held.start("anna", "one-more", now=0.0)

    held.start("anna", "shell0", now=0.0)
    held.start("ben", "main", now=0.0)
    held.start("anna", "one-more", now=30.0)


def test_leases_are_bounded_and_expired_ones_make_room() -> None:
    held = leases()
    for number in range(MAX_LEASES):
        held.start(f"r{number // 50}", f"i{number}", now=0.0)

    with pytest.raises(LeaseRefusedError, match="already holds 1000 monitoring leases"):
        held.start("late", "main", now=29.9)

    assert held.start("late", "main", now=30.0).interval_s == 5.0
