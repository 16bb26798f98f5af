"""Runs whose process was killed at any point are taken up: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
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
from fedmon.experiment.errors import InvalidExperimentError, UnknownTypeError
from fedmon.experiment.events import Fired, SetWanted, Timer
from fedmon.experiment.journal import NAME, Journal
from tests.experiment.own_types import added, blocking, deployed, killed, killed_now, own, started
from tests.support.waiting import stays, wait_until

MARK = Path(os.environ.get("TAKEN_UP_MARK", "/nonexistent"))


class Long(ResourceManager):
    """Says STARTED, notes that it began, and goes on for long in its hook."""

    _rtype = "test::Long"

    def do_start(self) -> None:
        super().do_start()
        log(self, "start")
        if "killed" in os.environ:
            time.sleep(60)
        self.set_stopped()


class Countdown(ResourceManager):
    """Goes on after its hook has returned, in this process alone."""

    _rtype = "test::Countdown"

    def do_start(self) -> None:
        super().do_start()
        log(self, "start")


class Polling(ResourceManager):
    """Puts its deploy off until it is allowed, as types of NEPI do."""

    _rtype = "test::Polling"

    @classmethod
    def _register_attributes(cls) -> None:
        cls._register_attribute(Attribute("note", "Set by a condition."))

    def do_deploy(self) -> None:
        if "killed" in os.environ:
            self.ec.schedule("20ms", self.deploy)
        else:
            log(self, "deploy")
            super().do_deploy()


class Crashing(ResourceManager):
    """Ends the process that takes it up, once."""

    _rtype = "test::Crashing"

    def do_start(self) -> None:
        super().do_start()
        log(self, "start")
        if "killed" in os.environ:
            time.sleep(60)

    def do_reconnect(self, verb: str | None) -> None:
        log(self, f"reconnect {verb}")
        if "crashes" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        self.set_stopped()


for each in (Long, Countdown, Polling, Crashing):
    ResourceFactory.register_type(each)


def log(rm: ResourceManager, what: str) -> None:
    with (Path(rm.ec.run_dir) / "log").open("a") as file:
        file.write(f"{rm.guid} {what}\n")


def put_off() -> None:
    """A task that another process finds by its name."""
    MARK.write_text("done")


OTHER = "from tests.experiment import test_taking_up as t\nfrom fedmon.experiment import *\nimport time\n"
"""How the code of another process begins."""


def killed_at(folder: Path, code: str, until: str, **environment: str) -> Path:
    """Run code in another process until its run has logged something; kill that, and return the run's folder."""
    script = f"{OTHER}folder = {str(folder)!r}\n{code}\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **environment})
    try:
        wait_until(lambda: any(until in path.read_text() for path in folder.glob("test/*/[jl]*")))
    finally:
        process.kill()
        process.wait()
    return next(folder.glob("test/*"))


def begun(*lines: str) -> str:
    return "ec = ExperimentController('test', folder)\n" + "\n".join(lines) + "\nec.deploy()"


def said(run: Path) -> list[str]:
    return (run / "log").read_text().splitlines()


def test_a_hook_in_whose_midst_the_process_was_killed_runs_again(tmp_path: Path) -> None:
    run = killed_at(tmp_path, begun("ec.register_resource('test::Long')"), "1 start", killed="1")

    with ExperimentController.reconnect(run) as ec:
        assert ec.wait_finished(timeout=60)
    assert said(run) == ["1 start", "1 start"]


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


def test_what_is_not_taken_up_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = killed_at(tmp_path, begun("ec.register_resource('test::Countdown')"), '"verb-returned"', killed="1")

    for _ in range(2):
        ec = ExperimentController.reconnect(run)
        assert "it was not taken up again: its type has no do_reconnect" in ec.explain(1).reason
        assert "its type has no do_reconnect" in caplog.text
        assert "its type has no do_reconnect" in ec.wait_finished(1, timeout=0.05).reason
        ec.give_up()
    with ExperimentController.reconnect(run) as ec:
        ec.stop(1)
        assert "taken up" not in ec.explain(1).reason
    assert said(run) == ["1 start"]


def test_what_was_put_off_goes_on_once(tmp_path: Path) -> None:
    lines = ("ec.register_resource('test::Polling')", "ec.set_with_conditions('note', 'on', 1, 1, 'READY')")
    run = killed_at(tmp_path, begun(*lines), '"verb-returned"', killed="1")

    with ExperimentController.reconnect(run) as ec:
        assert ec.wait_started(1, timeout=60)
        wait_until(lambda: ec.get(1, "note") == "on")
    assert said(run) == ["1 deploy"]


def test_a_run_is_taken_up_though_that_crashed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = killed_at(tmp_path, begun("ec.register_resource('test::Crashing')"), "1 start", killed="1")
    monkeypatch.setenv("crashes", "1")
    for _ in range(2):
        killed(f"{OTHER}ec = ExperimentController.reconnect({str(run)!r})\ntime.sleep(30)")
    monkeypatch.delenv("crashes")

    with ExperimentController.reconnect(run) as ec:
        assert ec.wait_finished(timeout=60)
    assert said(run) == ["1 start", *["1 reconnect start"] * 3]


def test_a_task_that_has_a_name_runs_in_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.experiment.test_taking_up.MARK", tmp_path / "mark")
    lines = ("ec.schedule('5s', t.put_off)", "ec.schedule('1h', t.put_off)", "ec.schedule('1h', lambda: None)")
    run = killed_at(tmp_path, "ec = ExperimentController('test', folder)\n" + "\n".join(lines), '"number":2')

    with ExperimentController.reconnect(run) as ec:
        wait_until((tmp_path / "mark").exists)
        assert ec.schedule("0s", lambda: None) > 2
    assert [event for event in (run / NAME).read_text().splitlines() if '"task-done"' in event] != []


def test_a_task_that_a_shutdown_dropped_does_not_run_in_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.experiment.test_taking_up.MARK", tmp_path / "mark")
    with ExperimentController("test", tmp_path) as ec:
        ec.schedule("2s", put_off)

    with ExperimentController.reconnect(ec.run_dir):
        assert stays(lambda: not (tmp_path / "mark").exists(), 2.5)


def test_timers_retries_and_numbers_go_on(tmp_path: Path) -> None:
    code = begun(
        "ec.register_resource('local::Process', command=['false'], critical=False)",
        "ec.register_resource('local::Process', command=['true'])",
        "ec.register_condition(2, 'START', 1, 'FAILED', '1s')",
    )
    run = killed_at(tmp_path, code, '"guids":[1],"state":7')

    with ExperimentController.reconnect(run) as ec:
        assert ec.wait_finished([2], timeout=60)
        failed, began = ec.get_failed_time(1), ec.get_start_time(2)
        assert failed is not None
        assert began is not None
        assert (began - failed).total_seconds() >= 1
        assert ec.register_resource("local::Process", command=["true"]) == 3


def test_a_failure_is_judged_once_and_what_it_meant_stays(tmp_path: Path) -> None:
    run = killed_at(tmp_path, begun("ec.register_resource('local::Process', command=['false'])"), '"level":2')

    with ExperimentController.reconnect(run) as ec:
        assert (ec.failure_level, "which is critical, failed" in ec.wait_finished(1).reason) == (
            FailureLevel.RM_FAILURE,
            True,
        )
    with ExperimentController.reconnect(run, fm=OptionalFailures()) as ec:
        assert ec.abort


def test_a_failure_that_was_not_judged_is_judged_by_the_next_process(ec: ExperimentController) -> None:
    added(ec, Countdown).fail("lost")

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


def test_results_of_functions_are_kept_where_they_can_be_written(tmp_path: Path) -> None:
    code = begun(
        "a = ec.call(sum, [1, 2])",
        "b = ec.call(object)",
        "d = ec.call(tuple, [1, 2])",
        "c = ec.call(time.sleep, 60, after=[a, b, d])",
    )
    run = killed_at(tmp_path, code, '"guids":[4],"state":5')

    with ExperimentController.reconnect(run) as ec:
        assert ec.result(1) == 3
        with pytest.raises(ResultLostError):
            ec.result(2)
        with pytest.raises(ResultLostError):  # not [1, 2]
            ec.result(3)
        assert ec.wait(4, "FAILED", timeout=60)
        assert "sleep is in no file: make it by ec.call" in ec.get_resource(4).reason


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
