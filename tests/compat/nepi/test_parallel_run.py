"""ParallelRun runs its calls, keeps their results, and ends, whatever the calls do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def no_threads_left() -> Iterator[None]:
    """Have no further thread start, because none has room for its stack."""
    before = threading.stack_size(2**46)
    try:
        yield
    finally:
        threading.stack_size(before)


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


def test_calls_that_never_end_do_not_keep_it_from_being_destroyed(gate: threading.Event) -> None:
    runner, begun = ParallelRun(maxthreads=4), threading.Barrier(5)
    runner.start()
    runner.put(lambda: (begun.wait(10), gate.wait()))
    assert len(threads()) == 1
    for _ in range(99):
        runner.put(lambda: (begun.wait(10), gate.wait()))
    begun.wait(10)
    assert len(threads()) == 4

    runner.empty()
    runner.destroy()

    gate.set()
    wait_until(lambda: not threads())


def test_a_thread_that_cannot_start_is_an_error_of_the_caller_and_counts_for_nothing(gate: threading.Event) -> None:
    runner, ran = ParallelRun(maxthreads=2), list[int]()
    runner.put(ran.append, 1)
    with no_threads_left():
        with pytest.raises(RuntimeError, match="thread"):
            runner.start()
        with pytest.raises(RuntimeError, match="thread"):
            runner.join()

    runner.start()
    with no_threads_left():
        runner.join()
        with pytest.raises(RuntimeError, match="thread"):
            runner.put(ran.append, 2)
    runner.destroy()

    assert ran == [1]


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
    runner.put(ran.append, 1)

    # then
    with pytest.raises(queue.Full):
        runner.put_nowait(ran.append, 2)
    patient = threading.Thread(target=lambda: runner.put(ran.append, 3))
    patient.start()
    gate.set()
    patient.join(5)
    runner.destroy()
    assert ran == [1, 3]


def test_after_its_end_nothing_is_taken_and_wrong_limits_never() -> None:
    runner = ParallelRun()
    runner.destroy()

    for put in (runner.put, runner.put_nowait):
        with pytest.raises(InvalidTaskError, match="destroyed"):
            put(threads)
    with pytest.raises(InvalidTaskError, match="destroyed"):
        runner.start()
    for limits in ((-1, 0), (1, -1)):
        with pytest.raises(InvalidTaskError, match="negative"):
            ParallelRun(*limits)
