"""The launcher, its keepers and the daemon: each may end at any moment, and no job runs on unknown."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.errors import ConflictError
from fedmon.common.wire.runs import JobState, Level
from fedmon.node.cgroup import left_folders
from fedmon.node.collectors.job.process import find_birth
from fedmon.node.runs.folder import TMP, JobFolder, Known, Reported, send
from fedmon.node.runs.launcher import READY, LauncherError
from tests.node.runs.kept_jobs import KeptJobs, left_of
from tests.support.full_disk import files_of_at_most
from tests.support.waiting import has_ended, pause, wait_until

FOREVER = "while True: signal.pause()"
FORKS_NOTHING = """
import errno, os, runpy, sys

def fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

os.fork, sys.argv[1:] = fork, sys.argv[-2:]
runpy.run_module("fedmon.node.runs.keeper", run_name="__main__")
"""
HIDES = """
context.report(ready=1)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        hidden = "import os, signal; os.write(1, str(os.getpid()).encode()); signal.pause()"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", hidden], {})
    os._exit(0)
while True:
    signal.pause()
"""
REPORTS = f"\ncontext.report(ready=1)\n{FOREVER}"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptJobs]:
    with KeptJobs(tmp_path_factory.mktemp("jobs")) as running:
        yield running


def wait_reported(folder: JobFolder) -> None:
    wait_until(lambda: any(isinstance(each, Reported) for each, _ in folder.events()), what="a report")


def stop(jobs: KeptJobs, folder: JobFolder) -> None:
    folder.stop(JobState.STOPPED, "the test is over")
    jobs.ending(folder)


def test_a_launcher_that_was_stopped_before_it_began_never_begins(tmp_path: Path) -> None:
    with KeptJobs(tmp_path) as stopped:
        order = stopped.order("late")

    with pytest.raises(LauncherError, match="was stopped"):
        stopped.launch(FOREVER, order)

    assert not Path(order.folder).exists()


def test_a_plan_that_does_not_fit_into_memory_leaves_no_descriptor(tmp_path: Path) -> None:
    with KeptJobs(tmp_path) as full:
        order, before = full.order("large"), os.listdir("/proc/self/fd")
        with files_of_at_most(65_536), pytest.raises(OSError, match="File too large"):
            full.launch(f"'{'x' * 70_000}'", order)

        assert set(os.listdir("/proc/self/fd")) <= set(before)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "cannot start"),
        ("exit 1", "did not come up"),
        (f'printf "{READY.decode()}" >&"${{@: -2:1}}"', "it ended twice"),
        ('printf "ready 0.0.1" >&"${@: -2:1}"', "was updated while this node runs"),
    ],
)
def test_a_launcher_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/bash\n{script}\n")
        python.chmod(0o700)
    with KeptJobs(tmp_path / "jobs") as broken:
        order = broken.order("never")
        monkeypatch.setattr(sys, "executable", str(python))
        with pytest.raises(LauncherError, match=says):
            broken.launch(FOREVER, order)


def test_a_keeper_that_cannot_be_forked_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{FORKS_NOTHING}' \"$@\"\n")
    python.chmod(0o700)
    with KeptJobs(tmp_path / "jobs") as full:
        order = full.order("never")
        monkeypatch.setattr(sys, "executable", str(python))
        ending = full.ending(full.launch(FOREVER, order))

    said = "no process could be started for it: Resource temporarily unavailable"
    assert (ending.state, ending.reason) == (JobState.NOT_STARTED, said)


def test_a_stop_says_who_asked_for_it(jobs: KeptJobs) -> None:
    folder = jobs.launch(FOREVER, jobs.order("job-1"))
    wait_until(folder.started, what="the plan")

    assert folder.stop(JobState.PLAN_REJECTED, "the owner took the approval back")
    folder.stop(JobState.STOPPED, "asked again")
    ending = jobs.ending(folder)

    assert (ending.state, ending.reason) == (JobState.PLAN_REJECTED, "the owner took the approval back")
    assert left_of("job-1") == []
    wait_until(lambda: not folder.is_alive())
    assert not folder.stop(JobState.STOPPED, "too late")


def test_a_stop_that_comes_before_the_keeper_is_there_is_heard(jobs: KeptJobs) -> None:
    folder = jobs.launch(FOREVER, jobs.order("job-2"))

    folder.stop(JobState.STOPPED, "at once")

    assert jobs.ending(folder).state is JobState.STOPPED
    assert left_of("job-2") == []


def test_a_job_is_kept_once(jobs: KeptJobs) -> None:
    order = jobs.order("job-4")
    folder = jobs.launch(FOREVER, order)

    with pytest.raises(ConflictError, match="kept already"):
        jobs.launch(FOREVER, order)
    stop(jobs, folder)
    wait_until(lambda: not folder.is_alive())
    with pytest.raises(ConflictError, match="over"):
        jobs.launch(FOREVER, order)


def test_a_keeper_that_is_told_to_end_ends_the_job_as_lost(jobs: KeptJobs) -> None:
    folder = jobs.launch(FOREVER, jobs.order("job-5"))
    wait_until(folder.started, what="the plan")

    os.kill(wait_until(folder.keeper, what="a keeper").pid, signal.SIGHUP)
    ending = jobs.ending(folder)

    assert ending.state is JobState.LOST
    assert "SIGHUP" in ending.reason
    assert left_of("job-5") == []


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
def test_a_plan_ends_with_a_keeper_that_is_killed_and_is_not_begun_again(jobs: KeptJobs, level: Level) -> None:
    body = "child = os.fork()\nif child == 0: os.setsid()\nelse: context.report(ready=1)\n" + FOREVER
    order = jobs.order(f"job-7-{level}", level=level)
    folder = jobs.launch(body, order)
    first = wait_until(folder.started, what="the plan")
    wait_reported(folder)

    os.kill(wait_until(folder.keeper, what="a keeper").pid, signal.SIGKILL)

    wait_until(lambda: not folder.is_alive())
    wait_until(lambda: has_ended(first.pid), what="the end of the first process")
    with pytest.raises(ConflictError, match="begun before"):
        jobs.launch(body, order)
    if level == "bubblewrap":
        wait_until(lambda: not left_of(order.job_id), what="the end of the sandbox")
    folder.kill_leftovers()
    assert left_of(order.job_id) == []
    assert folder.ending() is None


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
def test_a_job_of_the_same_id_on_another_node_of_this_machine_is_left_alone(
    jobs: KeptJobs, level: Level, tmp_path: Path
) -> None:
    # given two nodes that run the same job, as in a federation on one machine
    with KeptJobs(tmp_path) as others:
        lost, other = (each.launch(REPORTS, each.order(f"same-{level}", level=level)) for each in (jobs, others))
        first = [wait_until(each.started, what="the plan") for each in (lost, other)]
        for each in (lost, other):
            wait_reported(each)

        # when one of them loses its keeper
        os.kill(wait_until(lost.keeper, what="a keeper").pid, signal.SIGKILL)
        wait_until(lambda: not lost.is_alive())
        lost.kill_leftovers()

        # then the other goes on, in a cgroup of its own
        assert (other.is_alive(), other.ending(), has_ended(first[1].pid)) == (True, None, False)
        assert first[0].cgroup is None or first[0].cgroup != first[1].cgroup
        assert left_folders(lost.cgroup) == []
        stop(others, other)


@pytest.mark.parametrize("is_removed", [False, True])
def test_leftovers_that_hid_where_they_come_from_are_killed(jobs: KeptJobs, *, is_removed: bool) -> None:
    # given a process that left its family and its environment
    folder = jobs.launch(HIDES, jobs.order(f"hidden-{is_removed}"))
    hidden = int(wait_until(lambda: folder.trace("stdout", 0, 100).text, what="the hidden process"))
    os.kill(wait_until(folder.keeper, what="a keeper").pid, signal.SIGKILL)
    wait_until(lambda: not folder.is_alive())
    assert not has_ended(hidden)

    # when what is left is looked for, also without its folder
    if is_removed:
        shutil.rmtree(folder.path)
    killed = folder.kill_leftovers()

    # then it is known by its mark
    assert (hidden in killed, has_ended(hidden)) == (True, True)
    assert not (folder.path / TMP).exists()
    assert left_folders(folder.cgroup) == []


def test_a_process_that_got_the_number_of_another_gets_no_signal_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        now = find_birth(stranger.pid)
        assert now is not None

        assert not send(Known(now.pid, now.start - 1), signal.SIGKILL)
        assert stranger.poll() is None
        assert send(Known(now.pid, now.start), signal.SIGKILL)


def test_a_job_that_a_dying_launcher_took_is_kept_by_the_next_one(jobs: KeptJobs) -> None:
    folder = jobs.launch("return {}", jobs.order("first"))
    wait_until(lambda: not folder.is_alive())
    first = jobs.launcher._process
    assert first is not None
    pause(first.pid)
    after = threading.Thread(target=lambda: jobs.launch("return {}", jobs.order("second")))

    after.start()
    waiting = JobFolder(folder.path.with_name("second"))
    wait_until(waiting.is_alive, what="the order, which the launcher does not take")
    first.kill()
    after.join(60)

    wait_until(lambda: not waiting.is_alive())
    assert jobs.ending(waiting).state is JobState.SUCCEEDED


def test_a_plan_that_ended_in_time_keeps_its_result_though_its_keeper_sees_that_late(jobs: KeptJobs) -> None:
    body = """
    context.report(ready=1)
    time.sleep(2)
    return {"n": 1}
    """
    folder = jobs.launch(body, jobs.order("late", wall_s=6.0))
    wait_reported(folder)
    keeper, first = wait_until(folder.keeper, what="a keeper"), wait_until(folder.started, what="the plan")

    pause(keeper.pid)
    wait_until(lambda: has_ended(first.pid), what="the end of the plan")
    wait_until(lambda: time.time() > first.t + 7.0, what="the end of its wall limit")
    os.kill(keeper.pid, signal.SIGCONT)

    wait_until(lambda: not folder.is_alive())
    assert jobs.ending(folder).state is JobState.SUCCEEDED


def test_launcher_and_keeper_are_small_named_and_know_no_environment(jobs: KeptJobs) -> None:
    folder = jobs.launch(FOREVER, jobs.order("job-12"))
    wait_until(folder.started, what="the plan")
    launcher, keeper = jobs.launcher._process, wait_until(folder.keeper, what="a keeper").pid
    assert launcher is not None

    for pid, name in ((launcher.pid, "fedmon-launcher"), (keeper, "fedmon-keeper")):
        assert Path(f"/proc/{pid}/comm").read_text().strip() == name
        environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        assert [each.partition(b"=")[0] for each in environment] == [b"PYTHONPATH"]
        status = Path(f"/proc/{pid}/status").read_text()
        assert int(status.partition("VmRSS:")[2].split()[0]) < 40_000, "kilobytes"
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    stop(jobs, folder)
