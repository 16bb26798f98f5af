"""Commands on this machine: their words, their end, and a crash of the process that began them."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from fedmon.experiment.attributes import TraceAttr
from fedmon.experiment.controller import ExperimentController
from fedmon.experiment.errors import AttributeAccessError, InvalidAttributeValueError
from fedmon.experiment.events import Retry
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import NAME
from fedmon.experiment.states import ECState
from fedmon.experiment.types.base import ResourceFailedError
from fedmon.experiment.types.local_process import LocalProcess, SupervisedCommand
from tests.experiment.own_types import FAILED, READY, RELEASED, STARTED, STOPPED, killed, killed_now, started
from tests.experiment.types.conftest import process, python
from tests.support.full_disk import files_of_at_most
from tests.support.requirements import require
from tests.support.waiting import has_ended, pause, wait_until

SLEEPER = "import signal, sys, time; {}print('up', flush=True); signal.pause()"
STUBBORN = SLEEPER.format("signal.signal(signal.SIGTERM, signal.SIG_IGN); ")


def test_a_folder_is_that_of_the_moment_when_it_was_set(
    local: ExperimentController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    guid = process(local, python("import os; print(os.getcwd())"), cwd="work")
    home = process(local, ["true"], cwd="~/work")
    plan = local.register_resource("fedmon::TrainingPlan", plan="work/plan.py")
    job = local.register_resource("fedmon::Job", inputs="work/given.json")
    monkeypatch.chdir("/")
    local.deploy([guid, home])

    assert local.wait_finished(guid, timeout=60)
    assert local.trace(guid, "stdout") == f"{tmp_path / 'work'}\n"
    assert {local.get(each, "cwd") for each in (guid, home)} == {str(tmp_path / "work")}
    assert local.get(plan, "plan") == str(tmp_path / "work" / "plan.py")
    assert local.get(job, "inputs") == str(tmp_path / "work" / "given.json")


@pytest.mark.parametrize("ends_before_the_retry", [False, True])
def test_a_command_whose_start_took_too_long_is_begun_once(
    local: ExperimentController, ends_before_the_retry: bool
) -> None:
    # given a start that hangs until its timeout
    SupervisedCommand.prepare()
    supervisors = [each for each in psutil.Process().children() if "supervisor.py" in " ".join(each.cmdline())]
    retry = Retry(times=1_000, delay_s=5.0 if ends_before_the_retry else 0.1, factor=1.0)
    words = ["echo", "up"] if ends_before_the_retry else python(SLEEPER.format(""))
    guid = process(local, words, timeouts={"start": 1.0}, retry={"start": retry})
    for each in supervisors:
        pause(each.pid)
    try:
        local.deploy(guid, wait_all_ready=False)
        wait_until(lambda: local.snapshot.resources[guid].attempt >= 1, what="the timeout")

    # when it goes on
    finally:
        for each in supervisors:
            each.resume()

    # then the command was begun once, and the retry follows it
    if ends_before_the_retry:
        record = Path(local.run_dir, str(guid), "process")
        wait_until(lambda: record.exists() and record.read_text().split()[1:] == ["0"])
        with ExperimentController.reconnect(killed_now(local)) as again:
            assert again.wait_finished(guid, timeout=60)
            assert (again.state(guid), again.trace(guid, "stdout")) == (STOPPED, "up\n")
    else:
        assert local.wait_started(guid, timeout=60), local.get_resource(guid).reason
        wait_until(lambda: local.trace(guid, "stdout") == "up\n")
        local.stop(guid)
    assert local.wait_finished(guid, timeout=60)
    assert (local.state(guid), local.trace(guid, "stdout")) == (STOPPED, "up\n")


def test_a_command_runs_again_though_the_first_attempt_to_restart_it_failed(
    local: ExperimentController, tmp_path: Path
) -> None:
    fails = iter([False, True, False])

    class Prepared(LocalProcess):
        _rtype = "test::Prepared"

        def do_start(self) -> None:
            if next(fails):
                raise OSError("not prepared")
            super().do_start()

    ResourceFactory.register_type(Prepared)
    words = ["sh", "-c", f"echo ran >> {tmp_path}/log"]
    guid = local.register_resource("test::Prepared", command=words, retry={"start": Retry(times=1, delay_s=0.1)})
    local.deploy()
    assert local.wait_finished(guid, timeout=60)
    first = local.get_stop_time(guid)

    with pytest.raises(OSError, match="not prepared"):
        local.start(guid)

    wait_until(lambda: local.state(guid) is STOPPED and local.get_stop_time(guid) != first)
    assert ((tmp_path / "log").read_text(), local.get(guid, "exitCode")) == ("ran\nran\n", 0)


def test_a_command_is_killed_when_its_resource_is_removed(local: ExperimentController) -> None:
    guid = process(local, python(STUBBORN))
    started(local, guid)
    pid = local.get(guid, "pid")

    local.remove_resource(guid)

    wait_until(lambda: not psutil.pid_exists(pid))


@pytest.mark.parametrize("verb", ["stop", "release"])
def test_a_command_of_a_run_that_was_given_up_goes_on_until_another_controller_ends_it(
    local: ExperimentController, verb: str
) -> None:
    guid = process(local, python(SLEEPER.format("")))
    started(local, guid)
    wait_until(lambda: local.trace(guid, "stdout") == "up\n")

    local.give_up()
    local.shutdown()

    with ExperimentController.reconnect(local.run_dir) as ec:
        assert ec.state(guid) is STARTED
        if verb == "stop":
            ec.stop(guid)
            assert ec.wait_finished(guid, timeout=60)
            assert ec.state(guid) is STOPPED
    assert (ec.state(guid), ec.get(guid, "exitCode")) == (RELEASED, -signal.SIGTERM)


def test_an_end_comes_to_the_experiment_though_the_disk_is_full(local: ExperimentController) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print('up', flush=True)"
    guid = process(local, python(f"{code}; signal.pause()"))
    started(local, guid)
    wait_until(lambda: local.trace(guid, "stdout") == "up\n")

    with files_of_at_most(Path(local.run_dir, NAME).stat().st_size):
        os.kill(local.get(guid, "pid"), signal.SIGTERM)
        wait_until(lambda: local.state(guid) is STOPPED)

    assert (local.get(guid, "exitCode"), local.ecstate) == (0, ECState.FAILED)


def test_a_command_runs_with_its_words_folder_and_variables(local: ExperimentController, tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.getcwd()); print('oops', file=sys.stderr)"
    guid = process(local, python(code, "$HOME; ls", "*"), cwd=tmp_path, env={"GREETING": "hi"})

    local.deploy()

    assert local.wait_finished(guid, timeout=60)
    assert local.state(guid) is STOPPED
    assert local.trace(guid, "stdout") == f"['$HOME; ls', '*'] hi {tmp_path}\n"
    assert (local.trace(guid, "stderr"), local.trace(guid, "stderr", TraceAttr.SIZE)) == ("oops\n", 5)
    assert local.get(guid, "exitCode") == 0
    with pytest.raises(AttributeAccessError):
        local.set(guid, "exitCode", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (python("import sys; print('no rows', file=sys.stderr); sys.exit(3)"), "exit code 3: no rows"),
        (python("import os; os.kill(os.getpid(), 9)"), "signal SIGKILL"),
        (["sh", "-c", "rm -f stderr; exit 3"], "it ended with exit code 3"),
        (["/no/such/program"], "cannot run /no/such/program in .*No such file"),
    ],
)
def test_a_command_that_fails_says_how(local: ExperimentController, words: object, said: str) -> None:
    guid = process(local, words)
    local.deploy()

    local.wait([guid], FAILED, timeout=60)

    assert local.state(guid) is FAILED
    assert re.search(said, local.get_resource(guid).reason)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls -l", "no shell reads it"), ([], "it is empty"), ([""], "its first word is empty"), (["a\0b"], "zero byte"),
        ([1], "word 1 is 1, of type int"), (["ls", None], "word 2 is None"), (7, "it is of type int"),
    ],
)  # fmt: skip
def test_a_command_is_a_list_of_words(local: ExperimentController, words: object, said: str) -> None:
    with pytest.raises(InvalidAttributeValueError, match=f"'command'.*{said}"):
        process(local, words)


def test_a_stop_ends_the_whole_group_and_kills_what_does_not_hear(local: ExperimentController) -> None:
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); " + SLEEPER.format("")
    polite, stubborn = process(local, python(child)), process(local, python(STUBBORN), grace="50ms")
    local.deploy()
    for guid, lines in ((polite, 2), (stubborn, 1)):
        assert local.wait_started(guid, timeout=60)
        wait_until(lambda guid=guid, lines=lines: str(local.trace(guid, "stdout")).count("up") == lines)  # type: ignore[misc]
    group = [psutil.Process(local.get(polite, "pid")), *psutil.Process(local.get(polite, "pid")).children()]

    local.stop(polite)
    local.stop(stubborn)

    assert local.wait_finished([polite, stubborn], timeout=60)
    assert {local.state(guid) for guid in (polite, stubborn)} == {STOPPED}
    assert (local.get(polite, "exitCode"), local.get(stubborn, "exitCode")) == (-signal.SIGTERM, -signal.SIGKILL)
    assert len(group) == 2
    wait_until(lambda: all(has_ended(one.pid) for one in group))


def test_a_release_ends_what_runs_and_a_process_may_start_again(local: ExperimentController) -> None:
    guid = process(local, python(SLEEPER.format("")))
    started(local, guid)
    local.stop(guid)
    assert local.wait_finished(guid, timeout=60)
    local.start(guid)
    assert (local.state(guid), local.get(guid, "exitCode")) == (STARTED, None)
    pid = local.get(guid, "pid")

    local.shutdown()

    assert local.state(guid) is RELEASED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_late_kill_of_a_stopped_command_does_not_reach_the_one_that_was_started_after_it(tmp_path: Path) -> None:
    record, env = tmp_path / "process", dict(os.environ)
    stopped = SupervisedCommand.begin(record, ["sleep", "60"], cwd=tmp_path, env=env)
    stopped.send(signal.SIGTERM)
    assert stopped.wait() == -signal.SIGTERM
    record.unlink()
    started = SupervisedCommand.begin(record, ["sleep", "60"], cwd=tmp_path, env=env)
    stopped.pid = started.pid  # as if the system had reused it

    stopped.send(signal.SIGKILL)

    assert started.is_running
    started.send(signal.SIGTERM)
    assert started.wait() == -signal.SIGTERM


def test_a_command_of_another_user_fails_to_end(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "only root can drop its rights")
    command = SupervisedCommand.begin(tmp_path / "process", ["sleep", "60"], cwd=tmp_path, env=dict(os.environ))
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            command.send(signal.SIGTERM)
        except ResourceFailedError:
            os._exit(7)
        finally:
            os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    command.send(signal.SIGKILL)


# --- after a crash ----------------------------------------------------------------------------------------------------

CRASH = """
import os, sys
from fedmon.experiment import ExperimentController

folder, first = sys.argv[1:]
ec = ExperimentController("dag", folder)
words = [["sh", "-c", first], ["sh", "-c", "echo two >> log"], ["sh", "-c", "echo three >> log"]]
after = []
for each in words:
    after = [ec.register_resource("local::Process", command=each, cwd=folder, after=after)]
ec.deploy()
assert ec.wait_started(1, timeout=60)
print(ec.run_dir, ec.get(1, "pid"), flush=True)
os.kill(os.getpid(), 9)
"""
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("loses_the_start", [False, True])
def test_a_dag_of_commands_goes_on_after_a_crash(tmp_path: Path, is_over: bool, loses_the_start: bool) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    run_dir, pid = killed(CRASH, tmp_path, f"echo begin >> log; {UNTIL_GO}; echo end >> log")
    wait_until(log.exists, what="the first command")
    if loses_the_start:  # as if it had been killed before it could write down that the first command runs
        journal = Path(run_dir, NAME)
        lines = journal.read_text().splitlines(keepends=True)
        (began,) = (number for number, line in enumerate(lines) if '"name":"pid"' in line)
        journal.write_text("".join(lines[:began]))
    if is_over:
        go.touch()
        wait_until(lambda: has_ended(int(pid)))

    with ExperimentController.reconnect(run_dir) as ec:
        first, second, third = ec.resources
        if not is_over:
            wait_until(lambda: ec.state(first) is STARTED and ec.get(first, "pid") == int(pid))
            assert ec.state(second) is READY
            go.touch()

        assert ec.wait_finished([first, second, third], timeout=60), ec.explain(first)

        assert [ec.state(guid) for guid in ec.resources] == [STOPPED] * 3
        assert ec.get(first, "exitCode") == 0
    assert log.read_text().split() == ["begin", "end", "two", "three"]


def test_the_exit_code_of_a_command_is_kept_without_an_experiment(
    local: ExperimentController, recwarn: pytest.WarningsRecorder
) -> None:
    guid = process(local, ["sh", "-c", f"{UNTIL_GO}; echo no rows >&2; exit 3"], critical=False)
    then = process(local, ["true"])
    local.register_condition(then, "START", guid, STOPPED)
    local.deploy()
    assert local.wait_started(guid, timeout=60)
    local.give_up()
    Path(local.run_dir, str(guid), "go").touch()
    wait_until(lambda: has_ended(local.get(guid, "pid")))

    with ExperimentController.reconnect(local.run_dir) as ec:
        assert ec.wait_finished(then, timeout=60), ec.explain(then)

        assert (ec.state(guid), ec.get(guid, "exitCode")) == (FAILED, 3)
        assert ec.get_resource(guid).reason == "it ended with exit code 3: no rows"
    gc.collect()
    assert not [str(each.message) for each in recwarn if "process" in str(each.message)]  # such as of files left open


def test_the_exit_code_survives_the_death_of_the_supervisor_that_starts_commands(local: ExperimentController) -> None:
    guid = process(local, ["sh", "-c", f"{UNTIL_GO}; exit 3"], critical=False)
    started(local, guid)
    own = psutil.Process(local.get(guid, "pid")).parent()
    assert own is not None
    starter = own.parent()
    assert starter is not None
    assert starter.pid != os.getpid()

    starter.kill()
    starter.wait(60)

    Path(local.run_dir, str(guid), "go").touch()
    wait_until(lambda: local.state(guid) is FAILED)
    assert local.get(guid, "exitCode") == 3
    later = process(local, ["true"])
    local.deploy(later)
    assert local.wait_finished(later, timeout=60)
    assert local.state(later) is STOPPED


def test_a_command_without_a_record_is_not_taken_for_another(local: ExperimentController) -> None:
    guid = process(local, ["sleep", "60"])
    started(local, guid)
    running = psutil.Process(local.get(guid, "pid"))
    local.give_up()
    Path(local.run_dir, str(guid), "process").unlink()

    with ExperimentController.reconnect(local.run_dir) as ec:
        assert ec.wait(guid, FAILED, timeout=60)
        assert ec.get_resource(guid).reason == "no record of its process is left in the run's folder"
    running.kill()


def test_a_start_that_hangs_delays_no_other(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "r+b") as null:
        # Its request does not come, as when a folder on the network does not answer.
        socket.send_fds(
            SupervisedCommand.prepare(anew=True), [b"+"], [null.fileno(), theirs.fileno(), *[null.fileno()] * 2]
        )
        started: list[SupervisedCommand] = []

        def start() -> None:
            started.append(SupervisedCommand.begin(tmp_path / "process", ["true"], cwd=tmp_path, env=dict(os.environ)))

        threading.Thread(target=start, daemon=True).start()

        wait_until(lambda: started)
        assert started[0].wait() == 0


def test_a_command_whose_supervisor_was_killed_fails_and_is_named(local: ExperimentController) -> None:
    guid = process(local, ["sleep", "60"])
    started(local, guid)
    command = psutil.Process(local.get(guid, "pid"))
    local.give_up()
    supervisor = command.parent()
    assert supervisor is not None
    supervisor.kill()
    supervisor.wait(60)

    with ExperimentController.reconnect(local.run_dir) as ec:
        wait_until(lambda: ec.state(guid) is FAILED)
        said = f"its supervisor was killed, so its exit code is not known; process {command.pid}"
        assert said in ec.get_resource(guid).reason
    command.kill()
