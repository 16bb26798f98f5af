"""HeapScheduler returns tasks in the order of their due times, and each once."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment import HeapScheduler, Task
from fedmon.experiment.errors import InvalidTaskError, InvalidTimeError


def nothing() -> None:
    pass


def test_due_times_may_be_numbers_datetimes_and_texts() -> None:
    scheduler = HeapScheduler()

    scheduler.schedule(Task("20310101000000000000", nothing))
    scheduler.schedule(Task(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), nothing))
    scheduler.schedule(Task(5, nothing))

    assert scheduler.pending == [3, 2, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["add", "remove", "again", "next"])), max_size=60))
def test_it_does_what_a_sorted_list_does(moves: list[tuple[int, str]]) -> None:
    scheduler, tasks, pending = HeapScheduler(), {}, {}
    for number, move in moves:
        if move == "add":
            task = scheduler.schedule(Task(number, nothing))
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
            found = next(scheduler)
            assert (found and found.id) == first
            pending.pop(first, None)
            assert first is None or found is tasks[first]
    assert scheduler.pending == sorted(pending, key=lambda each: (pending[each], each))
    assert len(scheduler) == len(pending)


@pytest.mark.parametrize("timestamp", [None, True, float("nan"), float("inf"), [], b"1", "tomorrow"])
def test_a_task_without_due_time_or_callback_is_refused(timestamp: Any) -> None:
    with pytest.raises((InvalidTaskError, InvalidTimeError)):
        Task(timestamp, nothing)
    with pytest.raises(InvalidTaskError):
        Task(1.0, timestamp)
