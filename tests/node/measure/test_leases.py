"""Leases set the pace of measuring, within the owner's limits and for a time."""

from __future__ import annotations

from typing import Any

import pytest

from fedmon.common.wire.messages import Monitor
from fedmon.node.measure.leases import MAX_LEASES, MAX_LEASES_OF_ONE, LeaseTable
from fedmon.node.requests.dialect import DeclinedError
from tests.support.envelopes import envelope


def lease(researcher_id: str, instance: str = "main", **fields: Any) -> Monitor:
    """Return a researcher's request for a lease."""
    return Monitor(action="start", instance=instance, **envelope(researcher_id), **fields)


class Held:
    """Leases whose clock is moved by hand, and the pace that they set."""

    def __init__(self, *, default: float = 5.0, minimum: float = 0.2) -> None:
        self.now = 0.0
        self.pace: tuple[float, bool] | None = None
        self.table = LeaseTable(
            default_interval_s=default,
            min_interval_s=minimum,
            follow=lambda *pace: setattr(self, "pace", pace),
            monotonic=lambda: self.now,
        )

    def pace_at(self, now: float) -> tuple[float, bool] | None:
        """Return interval and liveness as the table sets them at that moment."""
        self.now = now
        self.table.apply()
        return self.pace


def test_the_smallest_lease_sets_the_interval_and_without_one_the_owner_s_holds() -> None:
    held = Held()
    paces = [held.pace_at(0.0)]

    held.table.start(lease("anna", interval_s=2.0))
    held.table.start(lease("ben", interval_s=0.5, lease_s=10.0))

    paces += [held.pace_at(now) for now in (9.9, 10.0, 30.0)]
    assert paces == [(5.0, False), (0.5, True), (2.0, True), (5.0, False)]


@pytest.mark.parametrize(
    ("wanted", "granted"), [(0.01, 1.0), (1.0, 1.0), (3.0, 3.0), (5.0, 5.0), (3600.0, 5.0), (None, 5.0)]
)
def test_a_lease_stays_within_the_owner_s_limits(wanted: float | None, granted: float) -> None:
    held = Held(default=5.0, minimum=1.0)

    held.table.start(lease("anna", interval_s=wanted))

    assert held.pace == (granted, True)


def test_a_renewal_may_ask_for_something_else() -> None:
    held = Held()

    held.table.start(lease("anna", interval_s=1.0))
    held.now = 29.0
    held.table.start(lease("anna", interval_s=2.0, lease_s=60.0, live=False))

    assert held.pace_at(88.9) == (2.0, False)
    assert held.pace_at(89.0) == (5.0, False)


def test_stopping_ends_the_lease_of_that_instance_alone_and_a_refused_researcher_has_none() -> None:
    held = Held()
    held.table.start(lease("anna", interval_s=1.0))
    held.table.start(lease("anna", "shell", interval_s=0.5))

    for _ in range(2):
        held.table.stop(lease("anna", "shell"))
    assert held.pace == (1.0, True)

    held.table.end_refused(lambda researcher_id: researcher_id == "anna")
    assert held.pace_at(0.0) == (5.0, False)


@pytest.mark.parametrize(
    ("most", "researchers", "said"),
    [(MAX_LEASES_OF_ONE, 1, "researcher r0 already holds 100"), (MAX_LEASES, 20, "this node already holds 1000")],
)
def test_leases_are_bounded_and_expired_ones_make_room(most: int, researchers: int, said: str) -> None:
    held = Held()
    for number in range(most):
        held.table.start(lease(f"r{number % researchers}", f"i{number}"))

    held.now = 29.9
    with pytest.raises(DeclinedError, match=f"{said} monitoring leases"):
        held.table.start(lease("r0", "one-more"))
    held.table.start(lease("r0", "i0"))

    held.now = 30.0
    held.table.start(lease("r0", "one-more"))
