"""When the roster is settled, from times alone."""

from __future__ import annotations

import pytest

from fedmon.researcher.roster import CAP_S, QUIET_S, Settling


@pytest.mark.parametrize(
    ("has_marker", "news", "settled_at"),
    [(True, [0.2], 0.2 + QUIET_S), (False, [], CAP_S), (True, [tenth / 10 for tenth in range(1, 30)], CAP_S)],
    ids=["the marker is back and a while no node was new", "no marker", "ever new nodes"],
)
def test_it_is_settled_after_a_quiet_while_or_at_the_cap(
    has_marker: bool, news: list[float], settled_at: float
) -> None:
    settling = Settling()
    settling.begin(100.0)
    if has_marker:
        settling.marker_is_back = True
    for at in news:
        settling.news_at = 100.0 + at

    too_early = settling.check(100.0 + settled_at - 0.01)
    in_time = settling.check(100.0 + settled_at)

    assert (too_early, in_time, settling.settled.is_set()) == (False, True, True)


def test_it_becomes_settled_once_and_is_not_when_the_connection_was_lost() -> None:
    settling = Settling()
    settling.begin(100.0)
    settling.marker_is_back = True

    first, second = settling.check(101.0), settling.check(101.0)
    settling.interrupt()

    assert (first, second) == (True, False)
    assert (settling.settled.is_set(), settling.due_at(), settling.check(200.0)) == (False, None, False)
