"""HeapScheduler returns tasks in the order of their due times, and each once."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment import HeapScheduler, Task
from fedmon.experiment.errors import InvalidTimeError


def test_due_times_may_be_numbers_datetimes_and_texts() -> None:
    scheduler = HeapScheduler()

    for due in ("20310101000000000000", datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), 5):
        scheduler.schedule(Task(due, print))

    assert scheduler.pending == [3, 2, 1]
    first = next(scheduler)
    assert first is not None
    first.timestamp = 1.9e9  # in 2030, too
    scheduler.schedule(scheduler.schedule(first))  # also one that is scheduled
    assert scheduler.pending == [2, 3, 1]
    with pytest.raises(InvalidTimeError, match="'tomorrow' is not a time: write 20 digits"):
        Task("tomorrow", print)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["add", "remove", "again", "next"])), max_size=60))
def test_it_does_what_a_sorted_list_does(moves: list[tuple[int, str]]) -> None:
    scheduler, tasks, pending = HeapScheduler(), {}, {}
    for number, move in moves:
        if move == "add":
            task = scheduler.schedule(Task(number, print))
            tasks[task.id], pending[task.id] = task, number
        elif move == "remove":
            scheduler.remove(number)
            pending.pop(number, None)
        elif move == "again" and number in tasks:
            tasks[number].timestamp = float(20 - number)
            scheduler.schedule(tasks[number])
            pending[number] = 20 - number
        elif move == "next":
            first = min(pending, key=lambda each: (pending[each], each), default=None)
            assert next(scheduler) is (None if first is None else tasks[first])
            pending.pop(first, None)
    assert scheduler.pending == sorted(pending, key=lambda each: (pending[each], each))
    assert len(scheduler) == len(pending)
