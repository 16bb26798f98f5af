from __future__ import annotations

import pytest

from fedmon.node.measure.leases import MAX_LEASES, MAX_LEASES_OF_ONE, LeaseRefusedError, LeaseTable


class Held:
    """Leases whose clock is moved by hand, and the pace that they set."""

    def __init__(self, *, default: float = 5.0, minimum: float = 0.2) -> None:
        self.now = 0.0
        self.pace: tuple[float, bool] | None = None
        self.table = LeaseTable(
            default_interval_s=default, min_interval_s=minimum, follow=self._follow, monotonic=lambda: self.now
        )

    def _follow(self, interval_s: float, live: bool) -> None:  # the shape of the callback
        self.pace = interval_s, live

    def pace_at(self, now: float) -> tuple[float, bool] | None:
        """Return interval and liveness as the table sets them at that moment."""
        self.now = now
        self.table.apply()
        return self.pace


def test_without_a_lease_the_owner_s_interval_holds() -> None:
    assert Held(default=7.0).pace_at(0.0) == (7.0, False)


def test_the_smallest_lease_sets_the_interval_and_the_next_smallest_follows_it() -> None:
    held = Held()

    first = held.table.start("anna", "main", interval_s=2.0, lease_s=30.0)
    second = held.table.start("ben", "main", interval_s=0.5, lease_s=10.0)

    assert (first.interval_s, second.interval_s) == (2.0, 0.5)
    assert held.pace == (0.5, True)
    assert held.pace_at(9.9) == (0.5, True)
    assert held.pace_at(10.0) == (2.0, True)
    assert held.pace_at(30.0) == (5.0, False)


@pytest.mark.parametrize(
    ("wanted", "granted"), [(0.01, 1.0), (1.0, 1.0), (3.0, 3.0), (5.0, 5.0), (3600.0, 5.0), (None, 5.0)]
)
def test_a_lease_stays_within_the_owner_s_limits(wanted: float | None, granted: float) -> None:
    held = Held(default=5.0, minimum=1.0)

    answer = held.table.start("anna", "main", interval_s=wanted)

    assert answer.interval_s == granted
    assert held.table.interval_s() == granted


def test_a_lease_holds_a_minute_at_most_and_lives_on_when_renewed() -> None:
    held = Held()

    granted = held.table.start("anna", "main", interval_s=1.0, lease_s=3600.0)
    held.now = 59.0
    held.table.start("anna", "main", interval_s=1.0, lease_s=60.0)

    assert granted.lease_s == 60.0
    assert held.pace_at(118.9) == (1.0, True)
    assert held.pace_at(119.0) == (5.0, False)


def test_a_renewal_may_change_what_was_asked() -> None:
    held = Held()

    held.table.start("anna", "main", interval_s=0.5, live=True)
    held.now = 1.0
    held.table.start("anna", "main", interval_s=2.0, live=False)

    assert held.pace == (2.0, False)
    assert [lease.until for lease in held.table.held()] == [31.0]


def test_stopping_ends_the_lease_of_that_instance_alone() -> None:
    held = Held()
    held.table.start("anna", "main", interval_s=1.0)
    held.table.start("anna", "shell", interval_s=0.5)

    assert held.table.stop("anna", "shell")

    assert not held.table.stop("anna", "shell")
    assert held.pace == (1.0, True)


def test_a_lease_that_is_not_live_changes_the_pace_but_wants_no_sample_at_once() -> None:
    held = Held()

    held.table.start("anna", "main", interval_s=1.0, live=False)

    assert held.pace == (1.0, False)


def test_one_researcher_cannot_take_every_lease() -> None:
    held = Held()
    for number in range(MAX_LEASES_OF_ONE):
        held.table.start("anna", f"shell{number}")

    with pytest.raises(LeaseRefusedError, match="researcher anna already holds 100 monitoring leases"):
        held.table.start("anna", "one-more")

    held.table.start("anna", "shell0")
    held.table.start("ben", "main")
    held.now = 30.0
    held.table.start("anna", "one-more")


def test_leases_are_bounded_and_expired_ones_make_room() -> None:
    held = Held()
    for number in range(MAX_LEASES):
        held.table.start(f"r{number // 50}", f"i{number}")

    held.now = 29.9
    with pytest.raises(LeaseRefusedError, match="already holds 1000 monitoring leases"):
        held.table.start("late", "main")

    held.now = 30.0
    assert held.table.start("late", "main").interval_s == 5.0
