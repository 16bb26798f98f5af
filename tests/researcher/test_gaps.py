"""The account of samples: delivered, or counted as lost."""

from __future__ import annotations

import random

from fedmon.researcher.gaps import Arrival, GapAccount


def test_the_first_number_heard_is_where_the_account_begins() -> None:
    account = GapAccount()

    parts = account.arrived(7, 3)

    assert parts == [(0, 3, Arrival.NEXT)]
    assert (account.received, account.lost, account.repeated) == (3, 0, 0)


def test_skipped_numbers_count_as_lost_until_they_arrive() -> None:
    account = GapAccount()
    account.arrived(0, 2)
    account.arrived(10, 2)
    lost_before = account.lost

    parts = account.arrived(4, 3)

    assert lost_before == 8
    assert parts == [(0, 3, Arrival.LATE)]
    assert (account.received, account.lost) == (7, 5)


def test_what_was_there_before_is_repeated_and_counts_for_nothing() -> None:
    account = GapAccount()
    account.arrived(0, 5)

    parts = account.arrived(3, 4)

    assert parts == [(0, 2, Arrival.REPEATED), (2, 2, Arrival.NEXT)]
    assert (account.received, account.lost, account.repeated) == (7, 0, 2)


def test_a_late_batch_over_two_gaps_is_taken_apart() -> None:
    account = GapAccount()
    for first in (0, 3, 6):
        account.arrived(first, 1)

    parts = account.arrived(1, 5)

    assert parts == [(0, 2, Arrival.LATE), (2, 1, Arrival.REPEATED), (3, 2, Arrival.LATE)]
    assert (account.received, account.lost, account.repeated) == (7, 0, 1)


def test_an_empty_batch_changes_nothing() -> None:
    account = GapAccount()

    assert account.arrived(5, 0) == []
    assert account.arrived(9, 1) == [(0, 1, Arrival.NEXT)]


def test_whatever_is_dropped_doubled_or_swapped_every_number_is_received_once_or_lost() -> None:
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
            for offset, count, arrival in account.arrived(first, length):
                numbers = set(range(first + offset, first + offset + count))
                if arrival is Arrival.REPEATED:
                    assert numbers <= received
                else:
                    assert not numbers & received
                    received |= numbers

        assert len(received) == account.received
        assert sum(batches[-1]) == account.received + account.lost
