"""The engine around the machine: what is asked for is done, in threads that come and go, and nobody waits in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.engine import Engine, SteadyClock, Timers
from fedmon.experiment.events import (
    Became,
    ConditionAdded,
    DeployAsked,
    Leveled,
    Registered,
    ReleaseAsked,
    Removed,
    SetWanted,
    Verb,
)
from fedmon.experiment.journal import Journal, read_journal
from fedmon.experiment.machine import step
from fedmon.experiment.pool import Pool
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState
from tests.support.requirements import require
from tests.support.waiting import wait_until

READY, STARTED, STOPPED, FAILED, RELEASED = (
    ResourceState.READY,
    ResourceState.STARTED,
    ResourceState.STOPPED,
    ResourceState.FAILED,
    ResourceState.RELEASED,
)


class Doing:
    """Resources whose verbs come to their states in a thread, where they are slow; see `registered` for others."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.assigned: list[tuple[int, str, Any]] = []
        self.failures: list[int] = []
        self.ended: list[int] = []
        self.threads: set[str] = set()

    def call(self, guid: int, verb: Verb, reason: str) -> None:
        assert self.engine is not None
        self.threads.add(threading.current_thread().name)
        state = {"deploy": READY, "start": STARTED, "stop": STOPPED, "release": RELEASED, "fail": FAILED}[verb]
        self.engine.note(Became(t=self.engine.now(), guids=(guid,), state=state, reason=reason))

    def assign(self, guid: int, name: str, value: Any) -> None:
        self.assigned.append((guid, name, value))

    def failed(self, guid: int) -> None:
        self.failures.append(guid)

    def over(self, guids: Iterable[int]) -> None:
        self.ended.extend(guids)


def opened(doing: Doing, journal: Journal | None = None) -> Engine:
    doing.engine = Engine(doing, journal)
    return doing.engine


@pytest.fixture
def doing() -> Doing:
    return Doing()


@pytest.fixture
def engine(doing: Doing) -> Iterator[Engine]:
    engine = opened(doing)
    yield engine
    assert engine.close(timeout_s=5) == 0


SLOW = 2


def registered(engine: Engine, *guids: int) -> None:
    """Register resources without code, but for number 2."""
    for guid in guids:
        plain: tuple[Verb, ...] = () if guid == SLOW else ("deploy", "start", "stop", "release", "fail")
        engine.post(Registered(t=engine.now(), guid=guid, rtype="app", plain=plain))


def deployed(engine: Engine, *guids: int) -> None:
    engine.post(DeployAsked(t=engine.now(), guids=guids, group=1))


def after(engine: Engine, guid: int, *group: int, delay_s: float = 0.0, timeout_s: float | None = None) -> None:
    condition = StateCondition(number=guid, group=group, state=STARTED, delay_s=delay_s, timeout_s=timeout_s)
    engine.post(ConditionAdded(t=engine.now(), guids=(guid,), action=ResourceAction.START, condition=condition))


def test_what_does_nothing_is_done_before_the_call_returns(engine: Engine) -> None:
    registered(engine, 1, 3)

    deployed(engine, 1, 3)

    assert [engine.state.resources[guid].state for guid in (1, 3)] == [STARTED, STARTED]
    assert engine.pool.threads == 0


def test_what_takes_time_is_done_in_threads_and_may_be_waited_for(engine: Engine, doing: Doing) -> None:
    registered(engine, 1, 2)
    deployed(engine, 1, 2)

    found = engine.wait([1, 2], STARTED, timeout_s=5)

    assert (found.reached, found.failed, found.timed_out, found.aborted) == ((1, 2), (), (), False)
    assert found
    assert all(name.startswith("fedmon-experiment-") for name in doing.threads)


def test_a_delay_ends_in_time_and_not_before(engine: Engine) -> None:
    registered(engine, 1, 3)
    after(engine, 1, 3, delay_s=0.2)
    deployed(engine, 1, 3)
    assert engine.state.resources[1].state is READY

    assert engine.wait([1], STARTED, timeout_s=5)

    times = {guid: dict(engine.state.resources[guid].times)[STARTED] for guid in (1, 3)}
    assert 0.2 <= times[1] - times[3] < 1.0


def test_a_wait_tells_who_was_late_who_failed_and_what_ended_it(engine: Engine) -> None:
    registered(engine, 1, 2, 3)
    engine.note(Became(t=1.0, guids=(1,), state=STARTED), Became(t=1.0, guids=(2,), state=FAILED))
    late = engine.wait([1, 2, 3], STARTED, timeout_s=0.01)
    assert (late.reached, late.failed, late.timed_out, bool(late)) == ((1,), (2,), (3,), False)
    results = []

    with_abort = threading.Thread(target=lambda: results.append(engine.wait([3], STARTED, timeout_s=None)))
    with_abort.start()
    wait_until(lambda: engine._waits._all)
    engine.post(Leveled(t=1.0, level=FailureLevel.RM_FAILURE, reason="resource 2 failed"))
    with_abort.join(5)

    assert [(one.aborted, one.reason, one.reached) for one in results] == [(True, "resource 2 failed", ())]
    assert engine.wait([3], STARTED, timeout_s=None).aborted
    assert engine.wait([], STARTED, timeout_s=None)
    assert not engine._waits._all
    assert not engine._waits._by_guid


def test_a_wait_for_what_is_removed_ends(engine: Engine) -> None:
    registered(engine, 1)
    results = []
    waiting = threading.Thread(target=lambda: results.append(engine.wait([1], STARTED, timeout_s=None)))
    waiting.start()
    wait_until(lambda: engine._waits._all)

    engine.post(Removed(t=1.0, guids=(1,)))
    waiting.join(5)

    assert [one.reached for one in results] == [(1,)]


def test_attributes_are_set_and_failures_looked_at(engine: Engine, doing: Doing) -> None:
    registered(engine, 1, 3)
    engine.post(SetWanted(t=1.0, guids=(1,), name="rate", value=5))
    deployed(engine, 1)
    wait_until(lambda: doing.assigned == [(1, "rate", 5)])

    engine.note(Became(t=1.0, guids=(3,), state=FAILED))

    assert doing.failures == [3]


# --- the journal -----------------------------------------------------------------------------------------------------


def test_the_journal_alone_gives_the_state_again(tmp_path: Path) -> None:
    engine = opened(Doing(), Journal(tmp_path / "journal.jsonl"))
    registered(engine, 1, 2, 3)
    after(engine, 1, 2, delay_s=0.01)
    deployed(engine, 1, 2, 3)
    assert engine.wait([1, 2, 3], STARTED, timeout_s=5)
    engine.post(ReleaseAsked(t=engine.now(), guids=(3,)))
    engine.close(timeout_s=5)

    state = State()
    for event in read_journal(tmp_path / "journal.jsonl"):
        state, _ = step(state, event)

    assert state == engine.state


def test_a_last_line_that_was_cut_is_none_and_another_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.write([Registered(t=1.0, guid=1, rtype="app")])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-5])
    assert len(list(read_journal(path))) == 1

    path.write_bytes(whole + b"{junk}\n" + whole)

    with pytest.raises(StorageError, match=r"line 2 of .*journal\.jsonl is no event"):
        list(read_journal(path))


def test_one_process_alone_has_a_run(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(FolderInUseError, match="this process has the experiment"):
        Journal(tmp_path / "journal.jsonl")
    first.close()
    Journal(tmp_path / "journal.jsonl").close()


def test_a_full_disk_fails_the_experiment_by_name_and_leaves_it_to_be_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require(Path("/dev/full").exists(), "no /dev/full")
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    engine = opened(Doing(), Journal(tmp_path / "journal.jsonl"))

    with pytest.raises(StorageError, match=r"cannot write to the journal .*No space left"):
        registered(engine, 1)

    assert 1 not in engine.state.resources
    assert engine.state.level is FailureLevel.EC_FAILURE
    assert "can only be released" in caplog.text
    registered(engine, 1, 2)
    engine.post(ReleaseAsked(t=1.0, guids=(1, 2)))
    assert engine.wait([1, 2], RELEASED, timeout_s=5, heeds_abort=False).reached == (1, 2)
    engine.close(timeout_s=5)


# --- threads and timers ----------------------------------------------------------------------------------------------


def test_threads_come_when_all_are_stuck_and_go_when_nothing_is_to_be_done() -> None:
    pool, gate, done = Pool(max_threads=64), threading.Event(), threading.Semaphore(0)

    def stuck() -> None:
        gate.wait(30)
        done.release()

    for _ in range(200):
        pool.put(stuck)
    wait_until(lambda: pool.busy == 64, 30.0)
    assert pool.threads == 64
    gate.set()
    for _ in range(200):
        assert done.acquire(timeout=10)

    wait_until(lambda: pool.threads == 0, 10.0)
    assert pool.close(timeout_s=1) == 0


def test_what_moves_on_takes_few_threads() -> None:
    pool, done = Pool(), threading.Semaphore(0)
    for _ in range(5000):
        pool.put(done.release)
    for _ in range(5000):
        assert done.acquire(timeout=10)

    assert pool.threads < 128  # of 512: on a busy machine a moment without progress looks as if all were stuck
    pool.close(timeout_s=5)


def test_what_blocks_for_ever_does_not_keep_the_rest_and_is_counted_at_the_end() -> None:
    pool, gate, done = Pool(), threading.Event(), threading.Event()

    def stuck() -> None:
        gate.wait(30)

    pool.put(stuck)
    pool.put(done.set)

    assert done.wait(5)
    assert pool.close(timeout_s=0.05) == 1
    gate.set()


def test_moments_come_in_order_and_those_taken_back_never() -> None:
    clock, fired = SteadyClock(), list[object]()
    timers = Timers(clock, fired.append)
    now = clock()
    for name, after_s in (("c", 0.06), ("a", 0.02), ("b", 0.04), ("never", 0.03), ("later", 0.01), ("far", 1e9)):
        timers.set(name, now + after_s)
    timers.set("never", None)
    timers.set("later", now + 0.08)

    wait_until(lambda: "later" in fired)

    assert fired == ["a", "b", "c", "later"]
    timers.close()


def test_moments_keep_time() -> None:
    clock, late = SteadyClock(), list[float]()
    timers = Timers(clock, lambda key: late.append(clock() - float(str(key))))
    now = clock()
    for number in range(50):
        timers.set(now + 0.05 + number / 1000, now + 0.05 + number / 1000)

    wait_until(lambda: len(late) == 50)

    assert min(late) >= 0
    assert time.monotonic() > 0
    timers.close()
