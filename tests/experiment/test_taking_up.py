"""Runs whose process was killed at any point are taken up: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.experiment import (
    Attribute,
    ExperimentController,
    FailureLevel,
    Flags,
    OptionalFailures,
    ResourceFactory,
    ResourceManager,
    ResourceState,
    clsinit_copy,
)
from fedmon.experiment.calls import ResultLostError
from fedmon.experiment.errors import InvalidExperimentError, UnknownGuidError, UnknownTypeError
from fedmon.experiment.events import Fired, SetWanted, Timer
from fedmon.experiment.journal import NAME, Journal
from tests.experiment.own_types import added, blocking, deployed, killed_now, own, started
from tests.support.waiting import stays, wait_until

MARK = Path("/nonexistent")


def put_off() -> None:
    """A task that another process finds by its name."""
    MARK.write_text("done")


def test_a_hook_in_whose_midst_the_process_was_killed_runs_again(ec: ExperimentController) -> None:
    gate, ran = threading.Event(), []

    def do_start(self: ResourceManager) -> None:
        ran.append(self.ec)
        self.set_started()
        gate.wait(60)
        self.set_stopped()

    added(ec, own("test::Long", do_start=do_start))
    started(ec)
    left = killed_now(ec)
    gate.set()

    with ExperimentController.reconnect(left) as again:
        assert again.wait_finished(timeout=60)
    assert ran == [ec, again]


@pytest.mark.parametrize("rtype", ["local::Process", "python::Function"])
@pytest.mark.parametrize("lost", ['"verb":"start"', '"verb":"start"|"state":6'])
def test_what_ended_before_the_hook_of_its_start_had_returned_does_not_start_again(
    rtype: str, lost: str, ec: ExperimentController, tmp_path: Path
) -> None:
    if rtype == "local::Process":
        ec.register_resource(rtype, command=["sh", "-c", f"echo ran >> {tmp_path}/log"])
    else:
        ec.call(lambda: print("ran", file=(tmp_path / "log").open("a")))
    ec.deploy()
    assert ec.wait_finished(timeout=60)
    wait_until(lambda: ec.snapshot.resources[1].calling is None)

    with ExperimentController.reconnect(killed_now(ec, without=lost)) as again:
        assert again.wait_finished(timeout=60)
        wait_until(lambda: again.snapshot.resources[1].calling is None)
        assert (again.state(1), again.abort) == (ResourceState.STOPPED, False)
    assert (tmp_path / "log").read_text() == "ran\n"


def test_what_is_not_taken_up_is_said(ec: ExperimentController, caplog: pytest.LogCaptureFixture) -> None:
    added(ec, own("test::Countdown", do_start=ResourceManager.set_started))
    started(ec)
    wait_until(lambda: ec.snapshot.resources[1].calling is None)
    left = killed_now(ec)

    for _ in range(2):
        again = ExperimentController.reconnect(left)
        assert "it was not taken up again: its type has no do_reconnect" in again.explain(1).reason
        assert "its type has no do_reconnect" in caplog.text
        assert "its type has no do_reconnect" in again.wait_finished(1, timeout=0.05).reason
        again.give_up()
    with ExperimentController.reconnect(left) as again:
        assert again.get_start_time(1) == ec.get_start_time(1)
        again.stop(1)
        assert "taken up" not in again.explain(1).reason


def test_what_was_put_off_goes_on_once(ec: ExperimentController) -> None:
    ran = []

    def do_deploy(self: ResourceManager) -> None:
        if self.ec is ec:
            self.ec.schedule("20ms", self.deploy)
        else:
            ran.append(self.ec)
            self.set_ready()

    added(ec, own("test::Polling", do_deploy=do_deploy, own_attributes=(Attribute("note", "Set by a condition."),)))
    ec.set_with_conditions("note", "on", 1, 1, "READY")
    ec.deploy()
    wait_until(lambda: ec.snapshot.resources[1].scheduled)

    with ExperimentController.reconnect(killed_now(ec)) as again:
        assert again.wait_started(1, timeout=60)
        wait_until(lambda: again.get(1, "note") == "on")
        left = killed_now(again, without='"event":"attribute"')
    with ExperimentController.reconnect(left) as third:
        wait_until(lambda: third.get(1, "note") == "on")
    assert ran == [again]


def test_a_run_is_taken_up_though_that_crashed_before(ec: ExperimentController) -> None:
    gate, called, ran = threading.Event(), threading.Semaphore(0), []

    def do_start(self: ResourceManager) -> None:
        ran.append("start")
        self.set_started()
        gate.wait(60)

    def do_reconnect(self: ResourceManager, verb: str | None) -> None:
        ran.append(f"reconnect {verb}")
        called.release()
        gate.wait(60)
        self.set_stopped()

    added(ec, own("test::Crashing", do_start=do_start, do_reconnect=do_reconnect))
    started(ec)
    left = killed_now(ec)
    for _ in range(2):
        again = ExperimentController.reconnect(left)
        assert called.acquire(timeout=60)
        again.give_up()
    gate.set()

    with ExperimentController.reconnect(left) as again:
        assert again.wait_finished(timeout=60)
    assert ran == ["start", *["reconnect start"] * 3]


def test_a_task_that_has_a_name_runs_in_the_next_process(
    ec: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.experiment.test_taking_up.MARK", tmp_path / "mark")
    for date, task in (("2s", put_off), ("1h", put_off), ("1h", lambda: None)):
        ec.schedule(date, task)
    left = killed_now(ec)
    ec.shutdown()

    with ExperimentController.reconnect(left) as again:
        wait_until((tmp_path / "mark").exists)
        assert again.schedule("0s", lambda: None) > 2
    assert '"task-done"' in (left / NAME).read_text()


def test_a_task_that_a_shutdown_dropped_does_not_run_in_the_next_process(
    ec: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.experiment.test_taking_up.MARK", tmp_path / "mark")
    ec.schedule("2s", put_off)
    ec.shutdown()

    with ExperimentController.reconnect(ec.run_dir):
        assert stays(lambda: not (tmp_path / "mark").exists(), 2.5)


def test_timers_retries_and_numbers_go_on(ec: ExperimentController) -> None:
    failing = ec.register_resource("local::Process", command=["false"], critical=False)
    later = ec.register_resource("local::Process", command=["true"])
    ec.register_condition(later, "START", failing, "FAILED", "1s")
    ec.deploy()
    assert ec.wait(failing, "FAILED", timeout=60)

    with ExperimentController.reconnect(killed_now(ec)) as again:
        assert again.wait_finished(later, timeout=60)
        failed, began = again.get_failed_time(failing), again.get_start_time(later)
        assert failed is not None
        assert began is not None
        assert (began - failed).total_seconds() >= 1
        assert again.register_resource("local::Process", command=["true"]) == 3


def test_the_next_process_tells_the_names_of_resources_in_their_order(ec: ExperimentController) -> None:
    for name in "hgfedcba":
        ec.register_resource("test::Plain", name=name)

    again = ExperimentController.reconnect(killed_now(ec))
    with again, pytest.raises(UnknownGuidError, match="known: 1-8, h, g, f, e, d, c, b, a"):
        again.get_resource("i")


def test_a_failure_is_judged_once_and_what_it_meant_stays(ec: ExperimentController) -> None:
    ec.get_resource(ec.register_resource("test::Plain")).fail("lost")
    left = killed_now(ec)

    with ExperimentController.reconnect(left) as again:
        assert again.failure_level is FailureLevel.RM_FAILURE
        assert "which is critical, failed" in again.wait_finished(1).reason
    with ExperimentController.reconnect(left, fm=OptionalFailures()) as again:
        assert (again.abort, again.fm.abort) == (True, True)


def test_a_failure_that_was_not_judged_is_judged_by_the_next_process(ec: ExperimentController) -> None:
    ec.get_resource(ec.register_resource("test::Plain")).fail("lost")

    with ExperimentController.reconnect(killed_now(ec, without='"level"')) as again:
        assert again.failure_level is FailureLevel.RM_FAILURE


def test_an_error_of_the_machine_ends_an_experiment_that_can_still_be_released_and_reconnected(tmp_path: Path) -> None:
    gate = threading.Event()
    with deployed(tmp_path, do_start=blocking(gate)) as ec:
        wait_until(lambda: ec.snapshot.resources[1].calling == "start")

        ec.engine.note(SetWanted(guids=(1,), name="critical", value=False))
        ec.engine.note(Fired(timer=Timer(guid=1, purpose="verb-timeout", want="start")))  # which has no timeout

        reason, run = ec.snapshot.level_reason, killed_now(ec)
        assert (ec.failure_level, reason[:27]) == (FailureLevel.EC_FAILURE, "the machine failed on Fired")
        assert reason in repr(ec.plan())
        gate.set()
        assert ec.release()
    with ExperimentController.reconnect(run) as again:
        assert (again.failure_level, again.snapshot.level_reason) == (FailureLevel.EC_FAILURE, reason)
    assert again.state(1) is ResourceState.RELEASED


def test_a_reconnect_that_is_refused_lets_the_run_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ec = ExperimentController("test", tmp_path)
    ec.give_up()
    monkeypatch.setenv("NEPI_LOGLEVEL", "loud")
    with pytest.raises(InvalidExperimentError) as refused:
        ExperimentController.reconnect(ec.run_dir)
    monkeypatch.delenv("NEPI_LOGLEVEL")

    ExperimentController.reconnect(ec.run_dir).shutdown()

    assert "'loud'" in str(refused.value)  # a notebook keeps the error, too, with all that it refers to


def test_a_run_goes_on_with_credentials_that_are_given_and_with_changed_code(tmp_path: Path) -> None:
    ran, members = [], {"own_attributes": (Attribute("token", "", flags=Flags.Credential),)}

    def do_start(self: ResourceManager) -> None:
        ran.append(self.get("token"))
        self.set_started()

    ResourceFactory.register_type(clsinit_copy(own("test::Changed", **members)))
    ec = ExperimentController("test", tmp_path)
    ec.register_resource("test::Changed", token="secret")
    ec.give_up()
    path = Path(ec.run_dir, NAME)
    whole = path.read_text()
    path.write_text(whole.replace("test::Changed", "test::Unknown"))
    with pytest.raises(UnknownTypeError, match="test::Unknown"):
        ExperimentController.reconnect(ec.run_dir)
    path.write_text(whole)  # which was let go

    ResourceFactory.register_type(clsinit_copy(own("test::Changed", do_start=do_start, **members)))
    with ExperimentController.reconnect(ec.run_dir, attributes={1: {"token": "secret"}}) as again:
        started(again)

    assert ran == ["secret"]


def test_results_of_functions_are_kept_where_they_can_be_written(ec: ExperimentController) -> None:
    gate = threading.Event()
    done = [ec.call(sum, [1, 2]), ec.call(object), ec.call(tuple, [1, 2])]
    running = ec.call(gate.wait, 60, after=done)
    started(ec, running)
    left = killed_now(ec)
    gate.set()

    with ExperimentController.reconnect(left) as again:
        assert again.result(1) == 3
        for lost in (2, 3):  # which is not [1, 2]
            with pytest.raises(ResultLostError):
                again.result(lost)
        assert again.wait(running, "FAILED", timeout=60)
        assert "wait is in no file: make it by ec.call" in again.get_resource(running).reason


def test_two_never_have_one_run(tmp_path: Path) -> None:
    with ExperimentController("test", tmp_path) as ec:
        with pytest.raises(FolderInUseError, match="this process has the experiment"):
            ExperimentController.reconnect(ec.run_dir)
        run = ec.run_dir
    with pytest.raises(StorageError, match="it has no journal"):
        ExperimentController.reconnect(tmp_path)
    with ExperimentController.reconnect(run) as again:
        assert again.run_dir == run


def test_a_file_system_without_locks_is_not_told_as_a_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)

    with pytest.raises(StorageError, match="No locks available"):
        ExperimentController("test", tmp_path)


@pytest.mark.parametrize(("torn", "is_read"), [(b'{"event":"reg', True), (b'{"event":"nothing"}\n', False)])
def test_a_last_line_that_was_cut_off_is_none(torn: bytes, is_read: bool, tmp_path: Path) -> None:
    with ExperimentController("test", tmp_path) as ec:
        path = Path(ec.run_dir) / NAME
    with path.open("ab") as file:
        file.write(torn)

    if is_read:
        with ExperimentController.reconnect(path.parent):
            assert torn not in path.read_bytes()
    else:
        with pytest.raises(StorageError, match="is not an event of an experiment"):
            ExperimentController.reconnect(path.parent)
        Journal(path).close()  # which was let go


def test_a_journal_that_cannot_be_written_ends_the_experiment(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with ExperimentController("test", tmp_path) as ec:
        guid = ec.register_resource("local::Process", command=["sleep", "60"])
        started(ec, guid)
        wait_until(lambda: ec.snapshot.resources[guid].calling is None)
        monkeypatch.setattr("fedmon.experiment.journal.os.write", full)
        with pytest.raises(StorageError, match="No space left"):
            ec.set(guid, "grace", "1s")

        assert (ec.ecstate.name, ec.abort) == ("FAILED", True)
        assert "No space left" in ec.wait_finished(guid, timeout=1).reason
    assert ec.state(guid) is ResourceState.RELEASED
