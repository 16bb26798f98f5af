"""The account of samples: received, pending, or lost."""

from __future__ import annotations

import random

from fedmon.researcher.samples.resend import GapAccount


def test_the_first_number_heard_is_where_the_account_begins() -> None:
    account = GapAccount()

    parts = account.arrived(7, 10)

    assert parts == [(7, 10, False)]
    assert account.pending == 0


def test_skipped_numbers_are_pending_until_they_arrive() -> None:
    account = GapAccount()
    account.arrived(0, 2)
    account.arrived(10, 12)
    pending_before = account.pending

    parts = account.arrived(4, 7)

    assert pending_before == 8
    assert parts == [(4, 7, True)]
    assert account.missing == [(2, 4), (7, 10)]
    assert account.pending == 5


def test_what_is_given_up_is_lost_and_what_comes_of_it_later_is_repeated() -> None:
    account = GapAccount()
    account.arrived(0, 2)
    account.arrived(10, 12)

    given_up = account.take(0, 5)
    parts = account.arrived(3, 7)

    assert given_up == [(2, 5)]
    assert parts == [(5, 7, True)]
    assert account.pending == 3


def test_numbers_told_of_are_missing_until_they_are_pulled() -> None:
    account = GapAccount()
    account.arrived(5, 6)
    account.exists(9)

    parts = account.take(4, 8)
    again = account.take(4, 8)

    assert (parts, again) == ([(6, 8)], [])
    assert (account.missing, account.pending) == ([(8, 9)], 1)


def test_an_account_can_begin_earlier_than_with_what_was_heard_first() -> None:
    account = GapAccount()
    account.arrived(5, 7)

    account.begin_back(2)
    account.begin_back(4)

    assert (account.missing, account.edge, account.pending) == ([(2, 5)], 2, 3)
    assert account.arrived(1, 3) == [(2, 3, True)]


def test_what_was_there_before_is_repeated_and_counts_for_nothing() -> None:
    account = GapAccount()
    account.arrived(0, 5)

    parts = account.arrived(3, 7)

    assert parts == [(5, 7, False)]
    assert account.pending == 0


def test_a_late_batch_over_two_gaps_is_taken_apart() -> None:
    account = GapAccount()
    for first in (0, 3, 6):
        account.arrived(first, first + 1)

    parts = account.arrived(1, 6)

    assert parts == [(1, 3, True), (4, 6, True)]
    assert account.pending == 0


def test_an_empty_batch_changes_nothing() -> None:
    account = GapAccount()

    assert account.arrived(5, 5) == []
    assert account.arrived(9, 10) == [(9, 10, False)]


def test_whatever_is_dropped_doubled_or_swapped_every_number_is_received_once_or_pending() -> None:
    chance = random.Random(20261121)
    for _ in range(200):
        batches = [(0, 1)]
        while batches[-1][0] < 100:
            first = sum(batches[-1])
            batches.append((first, chance.randint(1, 7)))
        sent = [batch for batch in batches[1:-1] if chance.random() > 0.3] * 2
        chance.shuffle(sent)
        sent = [batches[0], *sent, batches[-1]]
        account = GapAccount()
        received: set[int] = set()
        for first, length in sent:
            for begin, end, _ in account.arrived(first, first + length):
                numbers = set(range(begin, end))
                assert numbers <= set(range(first, first + length))
                assert not numbers & received
                received |= numbers

        pending = account.pending
        given_up = account.take(0, account.next)

        assert sum(batches[-1]) == len(received) + pending
        assert (sum(end - first for first, end in given_up), account.pending) == (pending, 0)
