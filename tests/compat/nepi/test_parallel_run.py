"""ParallelRun runs its calls, keeps their results, and ends, whatever the calls do."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Iterator

import pytest

from fedmon.common.clock import Deadline
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


def test_all_calls_run_before_it_is_destroyed() -> None:
    runner = ParallelRun(maxthreads=4)
    ran: list[int] = []
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
    # given
    runner, deadline = ParallelRun(maxthreads=4), Deadline(5)
    ran: list[int] = []

    def block() -> None:
        ran.append(1)
        gate.wait()

    runner.start()
    for _ in range(100):
        runner.put(block)
    wait_until(lambda: len(ran) == 4)

    # when
    runner.empty()
    runner.destroy()

    # then
    assert not deadline.passed()
    gate.set()
    wait_until(lambda: not threads())
    assert len(ran) == 4


def test_sync_raises_the_first_exception_once() -> None:
    runner = ParallelRun(maxthreads=1)
    count: list[int] = []

    def fail(text: str) -> None:
        raise RuntimeError(text)

    for number in range(4):
        runner.put(count.append, number)
        runner.put(fail, f"number {number}")
    runner.start()
    runner.destroy()

    assert len(count) == 4
    with pytest.raises(RuntimeError, match="number 0"):
        runner.sync()
    runner.sync()


def test_an_exit_in_a_call_ends_no_thread() -> None:
    def leave() -> None:
        raise SystemExit(1)

    with ParallelRun(maxthreads=1) as runner:
        runner.put(leave)
        runner.put(lambda: 7)

        assert list(runner) == [7]
        with pytest.raises(SystemExit):
            runner.sync()


def test_results_come_by_iterating_and_once() -> None:
    runner = ParallelRun(maxthreads=3)
    for number in range(20):
        runner.put(pow, number, 2)
    assert list(runner) == []
    runner.start()

    assert sorted(runner) == [number**2 for number in range(20)]
    assert list(runner) == []
    runner.destroy()
    assert list(runner) == []


def test_a_full_queue_makes_put_wait_and_put_nowait_raise(gate: threading.Event) -> None:
    # given: one call runs, and one waits
    runner, begun = ParallelRun(maxthreads=1, maxqueue=1), threading.Event()
    ran: list[int] = []

    def block() -> None:
        begun.set()
        gate.wait()

    runner.start()
    runner.put(block)
    assert begun.wait(10)
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


def test_wrong_calls_and_limits_are_refused() -> None:
    runner = ParallelRun()
    with pytest.raises(InvalidTaskError, match="cannot be called"):
        runner.put("nothing")  # type: ignore[arg-type] # a caller without types may do that
    runner.destroy()

    for put in (runner.put, runner.put_nowait):
        with pytest.raises(InvalidTaskError, match="destroyed"):
            put(threads)
    with pytest.raises(InvalidTaskError, match="destroyed"):
        runner.start()
    with pytest.raises(InvalidTaskError, match="negative"):
        ParallelRun(maxthreads=-1)
    with pytest.raises(InvalidTaskError, match="negative"):
        ParallelRun(maxqueue=-1)


def test_without_results_none_are_kept() -> None:
    class Result:
        pass

    made: list[weakref.ref[Result]] = []

    def make() -> Result:
        result = Result()
        made.append(weakref.ref(result))
        return result

    with ParallelRun(maxthreads=2, results=False) as runner:
        for _ in range(50):
            runner.put(make)
        runner.join()
        assert list(runner) == []
    gc.collect()
    wait_until(lambda: [ref for ref in made if ref() is not None] == [])


def test_there_are_no_more_threads_than_calls_and_than_allowed(gate: threading.Event) -> None:
    wait_until(lambda: not threads(), what="the end of threads of other tests")
    with ParallelRun(maxthreads=3) as runner:
        runner.put(gate.wait)
        assert len(threads()) == 1
        for _ in range(5):
            runner.put(gate.wait)
        assert len(threads()) == 3
        gate.set()
