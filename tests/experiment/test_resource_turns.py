"""One verb of a resource runs at a time; a hook that does not end holds back its own resource, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedmon.experiment.errors import DeadlockError
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.states import ResourceState
from fedmon.experiment.turns import Turn, _waits
from fedmon.experiment.verbs import perform
from tests.experiment.small_experiment import SmallExperiment
from tests.support.waiting import stays, wait_until


@clsinit_copy
class Blocking(ResourceManager):
    _rtype = "test::Blocking"
    _release_patience_s = 0.1

    def __init__(self, ec: Any, guid: int) -> None:
        super().__init__(ec, guid)
        self.before_start: Callable[[], Any] = lambda: None
        self.did: list[str] = []

    def do_start(self) -> None:
        self.did.append("start")
        self.before_start()
        super().do_start()

    def do_stop(self) -> None:
        self.did.append("stop")
        super().do_stop()

    def do_release(self) -> None:
        self.did.append("release")
        super().do_release()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def ready(ec: SmallExperiment) -> Blocking:
    rm: Blocking = ec.add(Blocking)
    rm.set_ready()
    return rm


def test_verbs_of_a_resource_run_one_after_the_other(gate: threading.Event) -> None:
    # given
    ec = SmallExperiment()
    rm = ready(ec)
    rm.before_start = gate.wait
    first = in_thread(rm.start)
    wait_until(lambda: rm.did)

    # when
    second = in_thread(rm.start)
    wait_until(lambda: second.ident in _waits)
    gate.set()
    first.join(5)
    second.join(5)

    # then: the second found it started already
    assert (rm.did, rm.state.name) == (["start"], "STARTED")


def test_a_hook_that_blocks_for_ever_hurts_no_other_resource(gate: threading.Event) -> None:
    ec = SmallExperiment()
    stuck, other = ready(ec), ready(ec)
    stuck.before_start = gate.wait
    thread = in_thread(stuck.start)
    wait_until(lambda: stuck.did)

    other.start()
    stuck.set("hardRelease", False) if stuck.state is ResourceState.NEW else None

    assert (stuck.state.name, other.state.name) == ("READY", "STARTED")
    gate.set()
    thread.join(5)


def test_a_failure_does_not_wait_for_a_hook_that_blocks_and_who_waits_for_it_goes(gate: threading.Event) -> None:
    # given: a hook that blocks, and a verb behind it
    ec = SmallExperiment()
    rm = ready(ec)
    rm.before_start = gate.wait
    first = in_thread(lambda: perform(rm, "start"))
    wait_until(lambda: rm.did)
    second = in_thread(lambda: perform(rm, "start"))
    wait_until(lambda: second.ident in _waits)

    # when
    perform(rm, "fail", "start did not end within 1 s")
    second.join(5)

    # then, and what the hook says when it ends at last is too late
    assert (second.is_alive(), rm.state.name) == (False, "FAILED")
    gate.set()
    first.join(5)
    assert (rm.state.name, rm.did) == ("FAILED", ["start"])


def test_a_release_waits_a_while_for_a_hook_and_then_goes_on(gate: threading.Event) -> None:
    ec = SmallExperiment()
    rm = ready(ec)
    rm.before_start = gate.wait
    first = in_thread(lambda: perform(rm, "start"))
    wait_until(lambda: rm.did)
    second = in_thread(lambda: perform(rm, "stop"))

    perform(rm, "release")

    second.join(5)
    assert (rm.state.name, rm.did) == ("RELEASED", ["start", "release"])
    gate.set()
    first.join(5)
    assert rm.state is ResourceState.RELEASED


def test_a_release_lets_a_hook_end_first(gate: threading.Event) -> None:
    ec = SmallExperiment()
    rm = ready(ec)
    rm._release_patience_s = 10.0  # type: ignore[misc]
    rm.before_start = gate.wait
    first = in_thread(lambda: perform(rm, "start"))
    wait_until(lambda: rm.did)
    release = in_thread(lambda: perform(rm, "release"))

    assert stays(lambda: rm.did == ["start"], 0.05)
    gate.set()
    release.join(5)
    first.join(5)

    assert (rm.state.name, rm.did) == ("RELEASED", ["start", "release"])


def test_hooks_that_wait_for_one_another_in_a_circle_are_told_and_only_one_fails() -> None:
    # given: each starts the other, from within its own start
    ec = SmallExperiment()
    one, two = ready(ec), ready(ec)
    both = threading.Barrier(2)
    errors: list[BaseException] = []

    def start_other(other: Blocking) -> Callable[[], None]:
        def work() -> None:
            if len(both_in) < 2:
                both_in.append(other.guid)
                both.wait(5)
            try:
                other.start()
            except DeadlockError as error:
                errors.append(error)
                raise

        return work

    both_in: list[int] = []
    one.before_start, two.before_start = start_other(two), start_other(one)

    # when
    threads = [in_thread(lambda: perform(one, "start")), in_thread(lambda: perform(two, "start"))]
    for thread in threads:
        thread.join(5)
    ec.work()

    # then
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(ec.states()) == ["FAILED", "STARTED"]
    assert "resource 1 (test::Blocking)" in str(errors[0])
    assert "circle" in str(errors[0])
    assert _waits == {}


def test_the_owner_takes_a_turn_again_and_others_in_order(gate: threading.Event) -> None:
    turn, order = Turn("t"), []
    assert turn.take()
    assert turn.take()
    threads = []
    for number in range(3):

        def work(number: int = number) -> None:
            assert turn.take(timeout_s=5)
            order.append(number)
            turn.give()

        threads.append(in_thread(work))
        wait_until(lambda: len(turn._waiters or ()) == number + 1)  # noqa: B023 - looked at before the next one

    turn.give()
    assert turn.is_mine()
    turn.give()
    for thread in threads:
        thread.join(5)

    assert (order, turn.is_mine(), turn._waiters or []) == ([0, 1, 2], False, [])


def test_a_turn_that_does_not_come_in_time_is_not_had() -> None:
    turn = Turn("t")
    turn.take()
    got: list[bool] = []

    for timeout_s in (0.0, 0.01):
        in_thread(lambda timeout_s=timeout_s: got.append(turn.take(timeout_s=timeout_s))).join(5)  # type: ignore[misc]

    assert got == [False, False]
    assert (turn.is_mine(), turn._waiters or [], _waits) == (True, [], {})


def test_many_threads_never_have_a_turn_at_once() -> None:
    turn, inside, most, failures = Turn("t"), [0], [0], []

    def work() -> None:
        for _ in range(200):
            if not turn.take(timeout_s=10):
                failures.append("late")
                return
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            turn.give()

    threads = [in_thread(work) for _ in range(8)]
    for thread in threads:
        thread.join(20)

    assert (most, inside, failures) == ([1], [0], [])
