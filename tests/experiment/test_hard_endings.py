"""Experiments end, and release what they have, whatever resources, callers, disks and processes do."""

from __future__ import annotations

import datetime
import multiprocessing
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedmon.common.clock import Deadline
from fedmon.common.errors import FedmonError, FolderInUseError, StorageError
from fedmon.compat.nepi.scheduler import HeapScheduler
from fedmon.experiment import machine
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import (
    DeadlockError,
    ExperimentAbortedError,
    InvalidExperimentError,
    InvalidPolicyError,
    InvalidStateError,
    InvalidTaskError,
    InvalidTimeError,
    InvalidTypeError,
    UnknownGuidError,
    UnknownTraceError,
    UnknownTypeError,
    UnwritableEventError,
)
from fedmon.experiment.events import AnyEvent, Became, Registered, Retry
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.failure import FailureManager, QuorumFailures
from fedmon.experiment.journal import NAME, Journal
from fedmon.experiment.pool import Pool
from fedmon.experiment.resource import ResourceManager, clsinit_copy
from fedmon.experiment.situation import State
from fedmon.experiment.states import ECState, FailureLevel, ResourceState
from fedmon.experiment.step_safely import step_safely
from fedmon.experiment.types.local_process import LocalProcess
from tests.support.waiting import wait_until

R = ResourceState


def _nothing(_rm: Any) -> None:
    """Do nothing."""


@clsinit_copy
class Plain(ResourceManager):
    _rtype = "endings::Plain"


@clsinit_copy
class Script(ResourceManager):
    """Does what a test says in its hooks."""

    _rtype = "endings::Script"
    at_deploy: ClassVar[Callable[[Any], Any]] = staticmethod(_nothing)
    at_start: ClassVar[Callable[[Any], Any]] = staticmethod(_nothing)
    at_release: ClassVar[Callable[[Any], Any]] = staticmethod(_nothing)
    has_parent_release: ClassVar[bool] = True
    released: ClassVar[list[int]] = []

    def do_deploy(self) -> None:
        type(self).at_deploy(self)
        super().do_deploy()

    def do_start(self) -> None:
        type(self).at_start(self)
        super().do_start()

    def do_release(self) -> None:
        Script.released.append(self.guid)
        type(self).at_release(self)
        if type(self).has_parent_release:
            super().do_release()


@clsinit_copy
class Rude(ResourceManager):
    """Cannot be asked for anything."""

    _rtype = "endings::Rude"

    def get(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture(autouse=True)
def types() -> Iterator[None]:
    kept = ResourceFactory._resource_types
    for rclass in (Plain, Script, Rude):
        ResourceFactory.register_type(rclass)
    yield
    Script.at_deploy = Script.at_start = Script.at_release = staticmethod(_nothing)
    Script.has_parent_release = True
    Script.released.clear()
    ResourceFactory._resource_types = kept


@pytest.fixture
def ec(tmp_path: Path, types: None) -> Iterator[ExperimentController]:
    with ExperimentController("endings", tmp_path) as made:
        yield made


def begun(ec: ExperimentController, rtype: str = "endings::Script", **options: Any) -> int:
    guid = ec.register_resource(rtype, **options)
    ec.deploy(guid)
    assert ec.wait_started(guid, timeout=10)
    return guid


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def killed_in(folder: Path, body: str) -> Path:
    """Run a script that makes ``ec`` in a process of its own, kill that, and return the folder of its run."""
    script = f"""
import multiprocessing, os, signal, time
from fedmon.experiment import *
from fedmon.experiment import events
ResourceState
@clsinit_copy
class Plain(ResourceManager):
    _rtype = "endings::Plain"
ResourceFactory.register_type(Plain)
{textwrap.dedent(body)}
print(ec.run_dir, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    return Path(done.stdout.split()[-1])


# --- what a type does ------------------------------------------------------------------------------------------------


def test_everything_is_released_whatever_a_type_does_when_it_is_asked(ec: ExperimentController) -> None:
    rude, script = begun(ec, "endings::Rude"), begun(ec)

    ec.shutdown()

    assert [ec.state(guid) for guid in (rude, script)] == [R.RELEASED] * 2
    assert Script.released == [script]


def test_a_resource_that_fails_and_cannot_be_asked_is_judged_all_the_same(ec: ExperimentController) -> None:
    rude = begun(ec, "endings::Rude")

    ec.get_resource(rude).fail("on purpose")

    assert ec.failure_level is FailureLevel.RM_FAILURE
    assert ec.register_resource("endings::Plain")


@pytest.mark.parametrize("name", ["critical", "hardRelease"])
def test_no_type_gives_up_what_every_resource_has(name: str) -> None:
    class Less(ResourceManager):
        _rtype = "endings::Less"

        @classmethod
        def _register_attributes(cls) -> None:
            cls._remove_attribute(name)

    with pytest.raises(InvalidTypeError, match=name):
        clsinit_copy(Less)


def test_who_waits_for_a_busy_resource_goes_when_it_is_over(ec: ExperimentController, gate: threading.Event) -> None:
    class Blocks(ResourceManager):
        _rtype = "endings::Blocks"

        def do_deploy(self) -> None:
            is_in.set()
            gate.wait(30)

    is_in = threading.Event()
    ResourceFactory.register_type(clsinit_copy(Blocks))
    failing = ec.register_resource("endings::Blocks", timeouts={"deploy": 0.1}, critical=False)
    removed = ec.register_resource("endings::Blocks", critical=False)
    callers = []
    for guid in (failing, removed):
        is_in.clear()
        ec.deploy(guid)
        assert is_in.wait(5)
        callers.append(in_thread(lambda guid=guid: ec.provision(guid)))  # type: ignore[misc]
    wait_until(lambda: ec.get_resource(removed).turn._waiters)

    ec.remove_resource(removed)
    for caller in callers:
        caller.join(5)

    assert not any(caller.is_alive() for caller in callers)
    assert ec.state(failing) is R.FAILED


def test_who_takes_a_run_up_waits_for_its_turn_though_the_resource_is_over(
    ec: ExperimentController, gate: threading.Event
) -> None:
    Script.at_start = staticmethod(lambda _rm: gate.wait(30))
    rm = ec.get_resource(ec.register_resource("endings::Script", critical=False))
    ec.deploy()
    wait_until(lambda: rm.turn.owner)
    again = in_thread(lambda: rm.reconnect(None))
    wait_until(lambda: rm.turn._waiters)

    rm.fail("on purpose")
    gate.set()
    again.join(5)

    assert not again.is_alive()
    wait_until(lambda: rm.turn.owner is None)
    assert rm.turn._depth == 0


def test_a_release_that_put_nothing_off_is_done(ec: ExperimentController) -> None:
    Script.has_parent_release = False
    guid = begun(ec)
    deadline = Deadline(3)

    assert ec.release(guid).reached == (guid,)

    assert not deadline.passed()


@pytest.mark.parametrize("how", ["release", "shutdown", "itself"])
@pytest.mark.parametrize("hook", ["at_start", "at_release"])
def test_a_hook_that_ends_its_own_experiment_takes_no_time(ec: ExperimentController, hook: str, how: str) -> None:
    def end(rm: Any) -> None:
        if how == "itself":
            rm.ec.release(rm.guid)
        else:
            getattr(rm.ec, how)()

    guids = [ec.register_resource("endings::Script") for _ in range(3)]
    deadline = Deadline(4)
    if hook == "at_release":
        ec.deploy()
        assert ec.wait_started(guids, timeout=5)
    setattr(Script, hook, staticmethod(end))

    if hook == "at_release":
        ec.release()
    else:
        ec.deploy()
    wait_until(lambda: {ec.state(guid) for guid in guids} == {R.RELEASED}, 10)
    ec.shutdown()

    assert not deadline.passed()


def test_hooks_of_releases_that_wait_for_one_another_go_on(
    ec: ExperimentController,
) -> None:
    def release(rm: Any) -> None:
        if rm.guid == 1:
            rm.ec.release()
        elif rm.ec.state(1) < R.RELEASED:  # as NEPI's nodes, which outlast what runs on them
            rm.ec.schedule("10ms", rm.release)

    Script.has_parent_release = False
    Script.at_release = staticmethod(release)
    ec._life.own_patience_s = 0.2
    guids = [begun(ec), begun(ec)]
    deadline = Deadline(5)

    assert ec.release().reached == tuple(guids)

    assert not deadline.passed()


def test_a_hook_that_waits_for_itself_is_told_so(ec: ExperimentController) -> None:
    Script.at_start = staticmethod(lambda rm: rm.ec.wait_started(rm.ec.resources))
    other = begun(ec, "endings::Plain")
    guid = ec.register_resource("endings::Script", critical=False)

    ec.deploy(guid)

    assert ec.wait_started([guid, other], timeout=5).failed == (guid,)
    assert f"resource {guid}" in ec.get_resource(guid).reason
    assert "of its own to be STARTED" in ec.get_resource(guid).reason


def test_a_release_hook_cannot_wait_for_its_own_end(ec: ExperimentController) -> None:
    errors: list[DeadlockError] = []

    def wait(rm: Any) -> None:
        try:
            rm.ec.wait_released(rm.guid)
        except DeadlockError as error:
            errors.append(error)

    Script.at_release = staticmethod(wait)

    assert ec.release(begun(ec))

    assert len(errors) == 1


def test_hooks_that_fill_the_pool_keep_nothing_from_release_and_failure(tmp_path: Path, gate: threading.Event) -> None:
    Script.at_start = staticmethod(lambda rm: gate.wait(30) if rm.guid > 1 else None)
    with ExperimentController("endings", tmp_path, nthreads=2) as ec:
        good = begun(ec)
        rest = [ec.register_resource("endings::Script", critical=False, timeouts={"start": 1.0}) for _ in range(6)]
        ec.deploy(rest)
        wait_until(lambda: ec._engine.pool.busy == 2)
        deadline = Deadline(3)

        assert ec.release(good).reached == (good,)
        assert not deadline.passed()
        wait_until(lambda: R.FAILED in {ec.state(guid) for guid in rest})
        gate.set()


def test_what_is_urgent_does_not_raise_the_limit_for_good(gate: threading.Event) -> None:
    pool, done = Pool(max_threads=1), threading.Event()
    pool.put(lambda: _nothing(gate.wait(30)))
    wait_until(lambda: pool.busy == 1)

    pool.put(done.set, is_urgent=True)

    assert done.wait(5)
    wait_until(lambda: pool._limit == 1)  # once the thread that did it is through
    gate.set()
    assert pool.close(timeout_s=5) == 0


# --- what callers say ------------------------------------------------------------------------------------------------


class Odd:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "call",
    [
        lambda ec, _: ec.deploy(wait_all_ready=1),
        lambda ec, _: ec.deploy(wait_all_ready=None),
        lambda ec, _: ec.deploy(wait_all_ready="no"),
        lambda _, rm: rm.fail(5),
        lambda _, rm: rm.fail(None),
        lambda _, rm: rm.fail(Odd()),
        lambda _, rm: rm.fail(ValueError("x\udc80")),
        lambda _, rm: rm.fail("\udc80"),
        lambda _, rm: rm.set_failed(time.time()),
        lambda _, rm: rm.set_failed(datetime.datetime.now(datetime.UTC)),
        lambda _, rm: rm.set_failed(None, time=1.0),
        lambda _, rm: rm.set_started(time=datetime.datetime.now(datetime.UTC)),
        lambda ec, _: ec.fm.give_up(5),
        lambda ec, _: ec.fm.give_up(ValueError("\udc80")),
        lambda ec, _: ec.fm.set_ec_failure(Odd()),
    ],
)
def test_whatever_is_said_is_read_back_from_the_journal(
    ec: ExperimentController, call: Callable[[Any, Any], Any]
) -> None:
    guid = ec.register_resource("endings::Plain")

    call(ec, ec.get_resource(guid))
    seen = ec.snapshot
    ec._give_up()

    with ExperimentController.reconnect(ec.run_dir) as again:
        assert again.snapshot == seen


def test_a_time_of_nepis_is_no_reason(ec: ExperimentController) -> None:
    guid = ec.register_resource("endings::Plain")

    ec.get_resource(guid).set_failed(time.time())

    assert (ec.state(guid), ec.get_resource(guid).reason) == (R.FAILED, "")


def test_states_are_set_as_in_nepi(ec: ExperimentController) -> None:
    rm = ec.get_resource(ec.register_resource("endings::Plain"))

    rm.set_state(R.READY, "_ready_time")
    rm.set_state_time(R.STARTED, "_start_time", datetime.datetime.now(datetime.UTC))
    with pytest.raises(InvalidStateError):
        rm.set_state(99)  # type: ignore[arg-type] # what scripts may do

    assert (rm.state, rm.ready_time is not None) == (R.STARTED, True)


@pytest.mark.parametrize("retry", [Retry(times=1.5), Retry(times=2**70), Retry(times=1, delay_s=10**400)])  # type: ignore[arg-type]
def test_a_retry_that_nobody_could_read_back_is_refused(ec: ExperimentController, retry: Retry) -> None:
    with pytest.raises(InvalidPolicyError):
        ec.register_resource("endings::Plain", retry={"deploy": retry})
    with pytest.raises(InvalidPolicyError):
        ec.register_resource("endings::Plain", timeouts={"deploy": 10**400})


def test_what_cannot_be_written_down_did_not_happen_and_the_journal_goes_on(ec: ExperimentController) -> None:
    with pytest.raises(UnwritableEventError, match="Registered cannot be written down"):
        ec._engine.post(Registered(t=1.0, guid=9, rtype="endings::Plain", attributes={"x": object()}))

    assert 9 not in ec.snapshot.resources
    assert not ec.abort
    assert begun(ec, "endings::Plain") == 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda ec: (ec.register_resource("endings::Plain", guid=2**63 - 1), ec.register_resource("endings::Plain")),
         InvalidExperimentError),
        (lambda ec: ec.get_resource(1.0), UnknownGuidError),
        (lambda ec: ec.get_resource(True), UnknownGuidError),
        (lambda ec: ec.inform_failure(99), UnknownGuidError),
        (lambda ec: ec.wait_started(1, timeout=True), InvalidTimeError),
        (lambda ec: ec.wait_started(1, timeout=10**400), InvalidTimeError),
        (lambda ec: ec.wait(1, R.STARTED, 5), InvalidTaskError),
        (lambda ec: ec.enable_trace(1, []), UnknownTraceError),
        (lambda _: ExperimentController.load(None), InvalidExperimentError),  # type: ignore[arg-type]
        (lambda _: ExperimentController.reconnect(None), InvalidExperimentError),  # type: ignore[arg-type]
        (lambda _: ExperimentController.reconnect("a\0b"), InvalidExperimentError),
        (lambda _: ExperimentController("e", "a\0b"), InvalidExperimentError),
        (lambda _: HeapScheduler().schedule(5), InvalidTaskError),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_cannot_be_meant_has_a_name(
    ec: ExperimentController, call: Callable[[Any], Any], expected: type[FedmonError]
) -> None:
    ec.register_resource("endings::Plain")

    with pytest.raises(expected):
        call(ec)


def test_after_an_abort_nothing_is_deployed_silently(ec: ExperimentController) -> None:
    first = begun(ec, "endings::Plain")
    ec.get_resource(first).fail("on purpose")
    before = ec.resources

    with pytest.raises(ExperimentAbortedError, match=r"resource 1 .*failed: on purpose; release it"):
        ec.deploy()
    with pytest.raises(ExperimentAbortedError):
        ec.register_resource("endings::Plain", autoDeploy=True)

    assert ec.resources == before
    assert ec.register_resource("endings::Plain") == 2


def test_a_wait_says_whether_the_experiment_was_aborted(ec: ExperimentController) -> None:
    first, second = begun(ec, "endings::Plain"), ec.register_resource("endings::Plain")
    done = iter([False, True])

    quitted = ec.wait(second, R.STARTED, lambda: next(done))
    ec.get_resource(first).fail("on purpose")
    failed, left, reached = ec.wait_finished(first), ec.wait_started(second), ec.wait(first, R.FAILED)

    assert (quitted.aborted, quitted.left, bool(quitted)) == (False, (second,), False)
    assert (failed.aborted, failed.failed) == (True, (first,))
    assert (left.aborted, left.left, left.timed_out, bool(left)) == (True, (second,), (), False)
    assert (reached.aborted, reached.reached, bool(reached)) == (True, (first,), True)


# --- the failure manager ---------------------------------------------------------------------------------------------


def test_a_failure_manager_is_heard_whenever_it_speaks(ec: ExperimentController) -> None:
    waiting = ec.register_resource("endings::Plain")
    found: list[Any] = []
    wait = in_thread(lambda: found.append(ec.wait_started(waiting)))
    wait_until(lambda: ec._engine._waits._all)

    threading.Timer(0.0, lambda: ec.fm.set_ec_failure("the mains failed")).start()
    wait.join(5)

    assert [(one.aborted, one.reason) for one in found] == [(True, "the mains failed")]
    assert (ec.failure_level, ec.ecstate, ec.abort) == (FailureLevel.EC_FAILURE, ECState.FAILED, True)


def test_a_manager_of_nepis_kind_ends_waits_with_a_reason(tmp_path: Path) -> None:
    class Own(FailureManager):
        def __init__(self) -> None:  # as NEPI's did, without its parent's
            pass

        def eval_failure(self, guid: int) -> None:  # noqa: ARG002
            self._failure_level = FailureLevel.RM_FAILURE
            self._abort = True

    with ExperimentController("endings", tmp_path, fm=Own()) as ec:
        first, second = begun(ec, "endings::Plain"), ec.register_resource("endings::Plain")
        ec.get_resource(first).fail("on purpose")

        found = ec.wait_started(second, timeout=5)

    assert (found.aborted, found.reason) == (True, "Own aborts")


def test_a_manager_that_asks_the_experiment_about_itself_is_answered(tmp_path: Path) -> None:
    class Curious(FailureManager):
        @property
        def abort(self) -> bool:
            return self.ec.abort  # type: ignore[attr-defined, no-any-return] # of a controller

    with ExperimentController("endings", tmp_path, fm=Curious()) as ec:
        assert not ec.abort
        assert ec.failure_level is FailureLevel.OK


def test_a_manager_that_releases_all_when_it_gives_up_stalls_nobody(tmp_path: Path) -> None:
    class Tidy(FailureManager):
        def give_up(self, reason: object) -> None:
            super().give_up(reason)
            self.ec.release()  # type: ignore[attr-defined] # of a controller

    with ExperimentController("endings", tmp_path, fm=Tidy()) as ec:
        first, second = begun(ec), begun(ec)
        deadline = Deadline(3)

        ec.get_resource(first).fail("on purpose")

        wait_until(lambda: ec.state(second) is R.RELEASED)
        assert not deadline.passed()


def test_an_overridden_inform_failure_is_asked(tmp_path: Path) -> None:
    told: list[int] = []

    class Own(ExperimentController):
        def inform_failure(self, guid: int) -> None:
            told.append(guid)
            if len(told) == 2:
                raise ValueError(guid)

    with Own("endings", tmp_path) as ec:
        for count in (1, 2):
            guid = begun(ec, "endings::Plain")
            ec.get_resource(guid).fail("on purpose")
            wait_until(lambda: len(told) == count)  # noqa: B023 - looked at before the next one
            assert ec.abort is (count == 2) or count == 2
        wait_until(lambda: ec.abort)  # it raised, so the failure was judged without it


# --- the journal and its lock ----------------------------------------------------------------------------------------


def test_a_run_whose_disk_was_full_is_nobody_elses_before_its_end(ec: ExperimentController) -> None:
    begun(ec, "endings::Plain")
    ec._engine._lose_journal(StorageError("no space left"))

    with pytest.raises(FolderInUseError):
        ExperimentController.reconnect(ec.run_dir)

    assert ec.ecstate is ECState.FAILED
    ec.shutdown()
    ExperimentController.reconnect(ec.run_dir).shutdown()


def test_a_run_is_locked_before_it_is_read(ec: ExperimentController) -> None:
    path = Path(ec.run_dir) / NAME
    with path.open("ab") as file:
        file.write(b"no event\n")

    with pytest.raises(FolderInUseError):  # what is not ours is not even looked at
        ExperimentController.reconnect(ec.run_dir)


def test_a_reconnect_that_fails_leaves_the_run_to_others(tmp_path: Path) -> None:
    ec = ExperimentController("endings", tmp_path)
    guid = begun(ec, "endings::Plain")
    ec._give_up()
    ResourceFactory._resource_types = {
        name: each for name, each in ResourceFactory._resource_types.items() if name != "endings::Plain"
    }

    with pytest.raises(UnknownTypeError):
        ExperimentController.reconnect(ec.run_dir)
    ResourceFactory.register_type(Plain)
    with pytest.raises(FedmonError):
        ExperimentController.reconnect(ec.run_dir, attributes={guid: {"nothing": 1}})

    with ExperimentController.reconnect(ec.run_dir) as again:
        assert again.state(guid) is R.STARTED


def test_no_fork_keeps_a_run_or_writes_to_it(tmp_path: Path) -> None:
    def stay(is_there: Any, may_go: Any) -> None:
        with pytest.raises(StorageError):
            journals[0].write([Became(t=1.0, guids=(1,), state=R.READY)])
        is_there.set()
        may_go.wait(30)

    fork = multiprocessing.get_context("fork")
    journals = [Journal(tmp_path / NAME)]
    is_there, may_go = fork.Event(), fork.Event()
    child = fork.Process(target=stay, args=(is_there, may_go))
    child.start()
    try:
        assert is_there.wait(20)
        journals[0].close()

        Journal(tmp_path / NAME).close()  # while the child lives
    finally:
        may_go.set()
        child.join(20)
    assert child.exitcode == 0


def test_what_was_judged_before_the_crash_is_not_judged_again(tmp_path: Path) -> None:
    run_dir = killed_in(
        tmp_path,
        """
        import sys
        ec = ExperimentController("endings", sys.argv[1], fm=QuorumFailures(1, [1, 2]), nthreads=7, persist=True)
        for _ in range(3):
            ec.register_resource("endings::Plain")
        ec.deploy()
        ec.get_resource(1).fail("on purpose")
        assert not ec.abort
        """,
    )

    with ExperimentController.reconnect(run_dir, fm=QuorumFailures(1, [1, 2])) as ec:
        assert not ec.abort
        assert (ec.state(1), ec.nthreads, ec.persist) == (R.FAILED, 7, True)
        ec.get_resource(3).fail("on purpose")
        assert ec.failure_level is FailureLevel.RM_FAILURE
    assert list(run_dir.glob("*.xml"))


def test_a_failure_that_nobody_had_judged_is_and_its_reason_survives(tmp_path: Path) -> None:
    run_dir = killed_in(
        tmp_path,
        """
        import sys
        class Dies(ResourceManager):
            _rtype = "endings::Script"
            def fail(self, reason=""):
                print(self.ec.run_dir, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            def do_deploy(self):
                raise ValueError("no such disk")
        ResourceFactory.register_type(Dies)
        ec = ExperimentController("endings", sys.argv[1])
        ec.register_resource("endings::Script")
        ec.deploy()
        time.sleep(30)
        """,
    )

    with ExperimentController.reconnect(run_dir) as ec:
        wait_until(lambda: ec.state(1) is R.FAILED)
        assert "no such disk" in ec.get_resource(1).reason
        wait_until(lambda: ec.abort)


def test_names_of_a_document_survive(tmp_path: Path) -> None:
    document = tmp_path / "e.toml"
    document.write_text('[experiment]\nid = "named"\n[[resource]]\nname = "a"\ntype = "endings::Plain"\n')
    ec = ExperimentController.load(document, local_dir=tmp_path)
    names = dict(ec._book.names)
    ec._give_up()

    with ExperimentController.reconnect(ec.run_dir) as again:
        assert again._book.names == names == {1: "a"}


# --- a machine that breaks -------------------------------------------------------------------------------------------


@pytest.fixture
def broken(ec: ExperimentController) -> Iterator[ExperimentController]:
    """A machine with a handler that raises on each event of a kind."""

    def raises(*_: object) -> None:
        raise ZeroDivisionError

    kind: Any = machine._HANDLERS
    kept = kind[Became]
    kind[Became] = raises
    yield ec
    kind[Became] = kept


def test_a_step_that_cannot_be_made_fails_the_experiment_and_leaves_it_to_be_released(
    broken: ExperimentController, caplog: pytest.LogCaptureFixture
) -> None:
    guid = broken.register_resource("endings::Plain")

    broken.get_resource(guid).set_ready()

    assert (broken.ecstate, broken.state(guid)) == (ECState.FAILED, R.NEW)
    assert "the machine failed on Became" in broken.snapshot.level_reason
    assert "Became" in caplog.text
    assert broken.release(guid).reached == (guid,)
    broken.shutdown()
    with ExperimentController.reconnect(broken.run_dir) as again:
        assert (again.ecstate, again.state(guid)) == (ECState.FAILED, R.RELEASED)


def test_a_step_that_stumbles_over_what_is_wanted_is_made_without_that() -> None:
    def stumbles(change: Any, event: AnyEvent) -> None:
        if change.level is FailureLevel.OK:
            raise ZeroDivisionError
        kept(change, event)

    handlers: Any = machine._HANDLERS
    kept = handlers[Became]
    begun, _ = step_safely(State(), Registered(t=1.0, guid=1, rtype="app"))
    handlers[Became] = stumbles
    try:
        state, _ = step_safely(begun, Became(t=1.0, guids=(1,), state=R.READY))
    finally:
        handlers[Became] = kept

    assert (state.level, state.resources[1].state) == (FailureLevel.EC_FAILURE, R.READY)


# --- somebody who loses patience -------------------------------------------------------------------------------------

IMPATIENT = """
import signal, sys, threading
from fedmon.experiment.controller import ExperimentController
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
ec = ExperimentController("endings", sys.argv[1])
guid = ec.register_resource("local::Process", command=["sh", "-c", "trap '' TERM; sleep 600; sleep 600"], grace="50s")
ec.deploy()
ec.wait_started(guid)
def interrupt():
    while ec.snapshot.resources[guid].calling != "release":
        pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
try:
    with ec:
        print(ec.get(guid, "pid"), flush=True)
        threading.Thread(target=interrupt, daemon=True).start()
        raise KeyboardInterrupt
finally:
    print(ec.state(guid, hr=True), flush=True)
"""


def test_a_second_interrupt_hurries_the_end_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert LocalProcess.end_at_once is not ResourceManager.end_at_once
    deadline = Deadline(15)

    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip

    pid, state = done.stdout.split()
    assert not deadline.passed()
    assert (done.returncode, state) == (-signal.SIGINT, "RELEASED"), done.stderr
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
