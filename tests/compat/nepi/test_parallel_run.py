"""ParallelRun runs its calls, keeps their results, and ends, whatever the calls do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fedmon.experiment import ParallelRun
from fedmon.experiment.errors import InvalidTaskError
from tests.support.waiting import wait_until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fedmon-parallel")]


@pytest.fixture(autouse=True)
def no_threads_of_others() -> None:
    wait_until(lambda: not threads())


def test_all_calls_run_before_it_is_destroyed() -> None:
    runner, ran = ParallelRun(maxthreads=4), list[int]()
    runner.put(ran.append, 10)
    assert ran == []
    runner.join()  # which starts it
    assert ran == [10]
    for number in range(10):
        runner.put(ran.append, number)
    runner.destroy()
    runner.destroy()

    assert sorted(ran) == list(range(11))
    wait_until(lambda: not threads())


@pytest.mark.parametrize("error", [RuntimeError("number 0"), SystemExit("number 0")])
def test_sync_raises_the_first_exception_once_and_no_call_ends_a_thread(error: BaseException) -> None:
    def fail(raised: BaseException) -> None:
        raise raised

    with ParallelRun(maxthreads=1) as runner:
        for each in (error, ValueError("another")):
            runner.put(fail, each)
        runner.put(lambda: 7)

        assert list(runner) == [7]
        with pytest.raises(type(error), match="number 0"):
            runner.sync()
        runner.sync()


def test_results_come_by_iterating_and_once() -> None:
    runner = ParallelRun(maxthreads=3)
    for number in range(20):
        runner.put(pow, number, 2)
    assert list(runner) == []
    runner.start()

    assert sorted(runner) == [number**2 for number in range(20)]
    runner.destroy()
    assert list(runner) == []
    with ParallelRun(results=False) as silent:
        silent.put(pow, 2, 2)
        assert list(silent) == []


def test_a_full_queue_makes_put_wait_and_put_nowait_raise(gate: threading.Event) -> None:
    # given: one call runs, and one waits
    runner, begun, ran = ParallelRun(maxthreads=1, maxqueue=1), threading.Barrier(2), list[int]()
    runner.start()
    runner.put(lambda: (begun.wait(10), gate.wait()))
    begun.wait(10)
    runner.put(ran.append, 0)

    # then
    with pytest.raises(queue.Full):
        runner.put_nowait(ran.append, 2)
    runner.empty()
    runner.put(ran.append, 1)
    patient = threading.Thread(target=lambda: runner.put(ran.append, 3))
    patient.start()
    gate.set()
    patient.join(60)
    runner.destroy()
    assert ran == [1, 3]


def test_after_its_end_nothing_is_taken() -> None:
    runner = ParallelRun()
    runner.destroy()

    for put in (runner.put, runner.put_nowait):
        with pytest.raises(InvalidTaskError, match="destroyed"):
            put(threads)
    with pytest.raises(InvalidTaskError, match="destroyed"):
        runner.start()


@pytest.mark.parametrize("options", [{"maxthreads": -1}, {"maxqueue": -1}])
def test_numbers_with_which_no_call_could_run_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskError, match="must not be negative"):
        ParallelRun(**options)
