"""Tasks come in the order of their moments, and once."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmon.experiment.errors import InvalidTaskError, InvalidTimeError
from fedmon.experiment.scheduler import HeapScheduler, Task, TaskStatus


def nothing() -> None:
    pass


def test_tasks_come_by_moment_and_then_by_id() -> None:
    scheduler = HeapScheduler()
    tasks = [scheduler.schedule(Task(at, nothing)) for at in (3.0, 1.0, 2.0, 1.0)]

    assert [task.id for task in tasks] == [1, 2, 3, 4]
    assert scheduler.pending == [2, 4, 3, 1]
    assert [each and each.id for each in (scheduler.next() for _ in range(5))] == [2, 4, 3, 1, None]
    assert scheduler.pending == []


def test_moments_may_be_numbers_datetimes_and_texts() -> None:
    scheduler = HeapScheduler()
    later = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)

    scheduler.schedule(Task("20310101000000000000", nothing))
    scheduler.schedule(Task(later, nothing))
    scheduler.schedule(Task(5, nothing))

    assert scheduler.pending == [3, 2, 1]


def test_a_new_task_is_new() -> None:
    task = Task(1.0, nothing)

    assert (task.id, task.status, task.result, task.callback, task.timestamp) == (
        None,
        TaskStatus.NEW,
        None,
        nothing,
        1,
    )


def test_a_task_that_is_removed_does_not_come() -> None:
    scheduler = HeapScheduler()
    for at in range(3):
        scheduler.schedule(Task(at, nothing))

    scheduler.remove(2)
    scheduler.remove(2)
    scheduler.remove(99)

    assert (scheduler.pending, len(scheduler)) == ([1, 3], 2)
    assert [each and each.id for each in (scheduler.next() for _ in range(3))] == [1, 3, None]


def test_a_task_that_is_scheduled_again_keeps_its_id_and_comes_once() -> None:
    scheduler = HeapScheduler()
    first, second = scheduler.schedule(Task(1.0, nothing)), scheduler.schedule(Task(2.0, nothing))

    first.timestamp = 3.0
    scheduler.schedule(first)
    assert scheduler.pending == [2, 1]
    scheduler.remove(1)
    scheduler.schedule(first)

    assert [scheduler.next(), scheduler.next(), scheduler.next()] == [second, first, None]
    assert scheduler.schedule(Task(0.0, nothing)).id == 3
    assert scheduler.schedule(second).id == 2


def test_removed_tasks_leave_nothing_behind() -> None:
    scheduler = HeapScheduler()

    for at in range(2_000):
        task = scheduler.schedule(Task(1e12 + at, nothing))
        assert task.id is not None
        scheduler.remove(task.id)

    assert len(scheduler._heap) <= 64


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


@pytest.mark.parametrize("timestamp", [None, True, float("nan"), float("inf"), [], b"1"])
def test_a_task_without_moment_is_refused_by_name(timestamp: Any) -> None:
    with pytest.raises(InvalidTaskError):
        Task(timestamp, nothing)


def test_a_task_that_calls_nothing_or_at_no_date_is_refused_by_name() -> None:
    with pytest.raises(InvalidTaskError):
        Task(1.0, "nothing")  # type: ignore[arg-type]
    with pytest.raises(InvalidTimeError):
        Task("tomorrow", nothing)


def test_many_tasks_come_in_order() -> None:
    scheduler, moments = HeapScheduler(), list(range(3_000))
    random.Random(1).shuffle(moments)
    for at in moments:
        scheduler.schedule(Task(at, nothing))

    found = [task.due for task in iter(scheduler.next, None)]

    assert found == sorted(moments)
