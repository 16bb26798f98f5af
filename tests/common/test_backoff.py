"""The one retry schedule: delays grow up to a bound and begin again after a success."""

from __future__ import annotations

import pytest

from fedmon.common.backoff import Backoff


def test_delays_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, longest_s=3.0)

    delays = [backoff.next_s() for _ in range(4)]
    backoff.reset()

    assert delays == [0.5, 1.0, 2.0, 3.0]
    assert backoff.next_s() == 0.5


def test_jitter_only_shortens_a_delay() -> None:
    delays = [Backoff(8.0, longest_s=10.0, jitter=0.5).next_s() for _ in range(100)]

    assert 4.0 <= min(delays) < max(delays) <= 8.0
    assert max(delays) != pytest.approx(min(delays))
