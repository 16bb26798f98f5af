"""ParallelRun runs what it is given, keeps what is asked for, and ends, whatever the calls do."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from fedmon.common.clock import Deadline
from fedmon.experiment.errors import InvalidTaskError
from fedmon.experiment.parallel import ParallelRun
from tests.support.waiting import wait_until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fedmon-parallel")]


def test_all_is_run_before_it_is_destroyed() -> None:
    runner, lock, count = ParallelRun(maxthreads=4), threading.Lock(), [0]

    def increase(by: int, *, twice: bool = False) -> None:
        with lock:
            count[0] += by * (2 if twice else 1)

    runner.start()
    for _ in range(10):
        runner.put(increase, 1, twice=True)
    runner.destroy()
    runner.destroy()

    assert count == [20]
    wait_until(lambda: not threads())


def test_calls_that_never_end_do_not_keep_it_from_being_destroyed(gate: threading.Event) -> None:
    # given
    runner = ParallelRun(maxthreads=4)
    ran: list[int] = []

    def block() -> None:
        ran.append(1)
        gate.wait()

    runner.start()
    for _ in range(100):
        runner.put(block)
    wait_until(lambda: len(ran) == 4)
    deadline = Deadline(5)

    # when
    runner.empty()
    runner.destroy()

    # then
    assert not deadline.passed()
    gate.set()
    wait_until(lambda: not threads())
    assert len(ran) == 4


def test_the_first_exception_is_raised_by_sync_once() -> None:
    runner, count = ParallelRun(maxthreads=1), [0]

    def fail(text: str) -> None:
        raise RuntimeError(text)

    runner.start()
    for number in range(4):
        runner.put(lambda: count.append(1))
        runner.put(fail, f"number {number}")
    runner.destroy()

    assert len(count) == 5
    with pytest.raises(RuntimeError, match="number 0"):
        runner.sync()
    runner.sync()


def test_an_exit_in_a_call_ends_no_thread() -> None:
    with ParallelRun(maxthreads=1) as runner:
        runner.put(raise_exit)
        runner.put(lambda: 7)

        assert list(runner) == [7]
        with pytest.raises(SystemExit):
            runner.sync()


def raise_exit() -> None:
    raise SystemExit(1)


def test_results_come_by_iterating_and_once() -> None:
    runner = ParallelRun(maxthreads=3)
    for number in range(20):
        runner.put(pow, number, 2)
    runner.start()

    assert sorted(runner) == [number**2 for number in range(20)]
    assert list(runner) == []
    runner.destroy()
    assert list(runner) == []


def test_without_results_there_are_none() -> None:
    with ParallelRun(maxthreads=2, results=False) as runner:
        runner.put(pow, 2, 2)
        runner.join()

        assert list(runner) == []


def test_what_was_put_waits_until_it_is_started_and_join_starts_it() -> None:
    wait_until(lambda: not threads())  # of tests before
    runner = ParallelRun(maxthreads=2)
    ran: list[int] = []
    runner.put(ran.append, 1)

    assert (threads(), list(runner), ran) == ([], [], [])
    runner.join()
    assert ran == [1]
    runner.destroy()


def test_a_full_queue_makes_put_wait_and_put_nowait_say_so(gate: threading.Event) -> None:
    # given: one call runs, and one waits
    runner = ParallelRun(maxthreads=1, maxqueue=1)
    ran: list[int] = []
    runner.start()
    runner.put(gate.wait)
    wait_until(lambda: not runner._queue)
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


def test_nothing_is_taken_by_one_that_was_destroyed_or_cannot_be_called() -> None:
    runner = ParallelRun()
    with pytest.raises(InvalidTaskError):
        runner.put("nothing")  # type: ignore[arg-type]
    runner.destroy()

    with pytest.raises(InvalidTaskError):
        runner.put(threads)
    with pytest.raises(InvalidTaskError):
        runner.put_nowait(threads)
    with pytest.raises(InvalidTaskError):
        runner.start()


@pytest.mark.parametrize("options", [{"maxthreads": -1}, {"maxqueue": -1}])
def test_negative_limits_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskError):
        ParallelRun(**options)


def test_results_that_nobody_reads_are_not_kept_where_none_are_wanted() -> None:
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
        gc.collect()

        assert len(made) == 50
        assert [ref for ref in made if ref() is not None] == []


def test_there_are_no_more_threads_than_calls_nor_than_allowed(gate: threading.Event) -> None:
    wait_until(lambda: not threads(), what="the end of threads of other tests")
    with ParallelRun(maxthreads=3) as runner:
        runner.put(gate.wait)
        assert len(threads()) == 1
        for _ in range(5):
            runner.put(gate.wait)
        assert len(threads()) == 3
        gate.set()
