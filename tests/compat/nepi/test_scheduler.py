"""HeapScheduler returns tasks in the order of their due times, and each once."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment import HeapScheduler, Task, TaskStatus
from fedmon.experiment.errors import InvalidTaskError, InvalidTimeError


def nothing() -> None:
    pass


def test_tasks_come_by_due_time_and_then_by_id() -> None:
    scheduler = HeapScheduler()
    tasks = [scheduler.schedule(Task(at, nothing)) for at in (3.0, 1.0, 2.0, 1.0)]

    assert [task.id for task in tasks] == [1, 2, 3, 4]
    assert scheduler.pending == [2, 4, 3, 1]
    assert [each and each.id for each in (scheduler.next() for _ in range(5))] == [2, 4, 3, 1, None]


def test_next_works_as_in_nepi() -> None:
    scheduler = HeapScheduler()
    task = scheduler.schedule(Task(1.0, nothing))

    assert next(scheduler) is task
    assert next(scheduler) is None


def test_due_times_may_be_numbers_datetimes_and_texts() -> None:
    scheduler = HeapScheduler()

    scheduler.schedule(Task("20310101000000000000", nothing))
    scheduler.schedule(Task(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), nothing))
    scheduler.schedule(Task(5, nothing))

    assert scheduler.pending == [3, 2, 1]


def test_a_new_task_is_new() -> None:
    task = Task(1.0, nothing)

    assert (task.id, task.status, task.result) == (None, TaskStatus.NEW, None)
    assert (task.callback, task.timestamp) == (nothing, 1)


def test_a_task_that_is_scheduled_again_keeps_its_id_and_comes_once() -> None:
    scheduler = HeapScheduler()
    first, second = scheduler.schedule(Task(1.0, nothing)), scheduler.schedule(Task(2.0, nothing))

    first.timestamp = 3.0
    scheduler.schedule(first)
    assert scheduler.pending == [2, 1]
    scheduler.remove(1)
    scheduler.remove(99)
    scheduler.schedule(first)

    assert [scheduler.next(), scheduler.next(), scheduler.next()] == [second, first, None]
    assert scheduler.schedule(Task(0.0, nothing)).id == 3


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
            found = scheduler.next()
            assert (found and found.id) == first
            pending.pop(first, None)
    assert scheduler.pending == sorted(pending, key=lambda each: (pending[each], each))
    assert len(scheduler) == len(pending)


@pytest.mark.parametrize("timestamp", [None, True, float("nan"), float("inf"), [], b"1"])
def test_a_task_without_due_time_is_refused(timestamp: Any) -> None:
    with pytest.raises(InvalidTaskError):
        Task(timestamp, nothing)


def test_a_task_without_callback_or_date_is_refused() -> None:
    with pytest.raises(InvalidTaskError):
        Task(1.0, "nothing")  # type: ignore[arg-type] # a caller without types may do that
    with pytest.raises(InvalidTimeError):
        Task("tomorrow", nothing)
