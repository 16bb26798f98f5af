"""When the roster is settled, from times alone."""

from __future__ import annotations

from fedmon.researcher.roster import CAP_S, QUIET_S, Settling


def test_it_is_settled_when_the_marker_is_back_and_nobody_new_was_heard_for_a_while() -> None:
    settling = Settling()
    settling.begin(100.0)
    settling.marker_back()
    settling.heard_new(100.2)

    too_early = settling.check(100.2 + QUIET_S - 0.01)
    in_time = settling.check(100.2 + QUIET_S)

    assert (too_early, in_time, settling.settled.is_set()) == (False, True, True)


def test_without_the_marker_it_is_settled_at_the_cap() -> None:
    settling = Settling()
    settling.begin(100.0)

    assert settling.due_at() == 100.0 + CAP_S
    assert not settling.check(100.0 + CAP_S - 0.01)
    assert settling.check(100.0 + CAP_S)


def test_news_cannot_put_it_off_for_ever() -> None:
    settling = Settling()
    settling.begin(100.0)
    settling.marker_back()
    for tenth in range(1, 30):
        settling.heard_new(100.0 + tenth / 10)

    assert settling.check(100.0 + CAP_S)


def test_it_becomes_settled_once_and_is_not_when_the_connection_was_lost() -> None:
    settling = Settling()
    settling.begin(100.0)
    settling.marker_back()

    first, second = settling.check(101.0), settling.check(101.0)
    settling.interrupt()

    assert (first, second) == (True, False)
    assert (settling.settled.is_set(), settling.due_at(), settling.check(200.0)) == (False, None, False)
