"""A stop that lay there when a run began: heard where it is for this run, replaced where it is of an earlier one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import JobIdentity, identify
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.limit import asked_at, is_of_this_run
from tests.node.job.tool_runs import FEDMON, environment, left, recordings
from tests.support.waiting import wait_until

SLURM = {"SLURM_JOB_ID": "4711"}


def slurm(**more: str) -> JobIdentity:
    return identify(SLURM | more, hostname="n1", pid=1)


class Job:
    """The shared folder of a job, and its hosts; each begins after what was written before."""

    def __init__(self, save_dir: Path) -> None:
        self.folder = JobFolder(save_dir, None, "4711")
        self._open: list[Membership] = []

    def host(self, name: str, **document: object) -> Membership:
        host = Membership(self.folder, host=name)
        host.begin(document)
        self._open.append(host)
        return host

    def ends(self, host: Membership) -> None:
        host.end({})
        host.close()

    def stop(self) -> float:
        """Write FINISHED, and return when."""
        self.folder.ipc.write_text("FINISHED\n")
        return self.folder.ipc.stat().st_mtime

    def close(self) -> None:
        for host in self._open:
            host.close()


@pytest.fixture
def job(tmp_path: Path) -> object:
    job = Job(tmp_path)
    yield job
    job.close()


def is_meant(
    job: Job,
    changed: float,
    host: Membership,
    identity: JobIdentity | None = None,
    *,
    expected: int | None = None,
    environ: Mapping[str, str] = environment(),
) -> bool:
    identity = identity or identify({}, hostname="n1", pid=1)
    return is_of_this_run(changed, job.folder, identity, host.others(), expected=expected, environ=environ)


def test_a_host_that_comes_late_hears_the_stop_of_the_run_of_the_others(job: Job) -> None:
    job.host("n1")
    changed = job.stop()
    late = job.host("n2")

    assert is_meant(job, changed, late)
    assert is_meant(job, changed, late, expected=2)
    assert not is_meant(job, changed, late, expected=1)


def test_hosts_that_begin_together_do_not_hear_the_stop_of_an_earlier_run(job: Job) -> None:
    changed = job.stop()
    os.utime(job.folder.ipc, (changed - 1, changed - 1))
    first, second = job.host("n1"), job.host("n2")

    assert not is_meant(job, changed - 1, first, expected=2)
    assert not is_meant(job, changed - 1, second, expected=2)


def test_a_host_that_begins_again_alone_does_not_hear_the_stop_of_the_run_before(job: Job) -> None:
    both = [job.host("n1"), job.host("n2")]
    changed = job.stop()
    for host in both:
        job.ends(host)
    again = job.host("n2")

    assert not is_meant(job, changed, again, expected=2)


@pytest.mark.parametrize(("step", "expected"), [("0", True), ("1", False)])
def test_a_host_of_another_step_begins_a_run_of_its_own(job: Job, *, step: str, expected: bool) -> None:
    job.host("n1", step="0")
    changed = job.stop()
    other = job.host("n2")

    assert expected == is_meant(job, changed, other, slurm(SLURM_STEP_ID=step), expected=2)


@pytest.mark.parametrize(
    ("begin", "where", "expected"),
    [(0, None, True), (5000, None, False), (0, "job-metrics-4711", False), (0, "first-run", False)],
    ids=["in the job", "before the job", "measured before", "measured before under another prefix"],
)
def test_a_stop_that_was_faster_than_a_launcher_is_heard_where_slurm_knows_one_run_alone(
    job: Job, tmp_path: Path, begin: int, where: str | None, *, expected: bool
) -> None:
    changed = job.stop()
    if where is not None:
        earlier = tmp_path / where / "recordings" / "4711" / "n1.fmr"
        earlier.parent.mkdir(parents=True)
        earlier.touch()
    host = job.host("n1")
    environ = environment(SLURM_JOB_START_TIME=str(int(changed) - 60 + begin))

    assert expected == is_meant(job, changed, host, slurm(), expected=1, environ=environ)


@pytest.mark.parametrize(
    ("said", "expected"), [("1999-12-31T23:59:59", True), ("2199-01-01T00:00:00", False), ("N/A", False), (None, False)]
)
def test_squeue_is_asked_where_slurm_does_not_tell_the_jobs_begin(
    job: Job, tmp_path: Path, said: str | None, *, expected: bool
) -> None:
    changed, host = job.stop(), job.host("n1")
    tools = tmp_path / "tools"
    tools.mkdir()
    if said is not None:
        (tools / "squeue").write_text(f'#!/bin/sh\n[ "$3" = "--format=%S" ] && echo {said}\n')
        (tools / "squeue").chmod(0o755)
    environ = {"PATH": f"{tools}:/usr/bin:/bin"}

    assert expected == is_meant(job, changed, host, slurm(), expected=1, environ=environ)


def test_a_process_was_asked_for_when_the_launcher_was_that_waits_for_it(tmp_path: Path) -> None:
    ask = [sys.executable, "-c", f"import os; from {asked_at.__module__} import asked_at; print(asked_at(os.getpid()))"]
    for name in ("mpirun", "somebody"):
        (tmp_path / name).write_text('#!/bin/sh\n"$0-slow" -c pass; "$@"; exit\n')
        (tmp_path / name).chmod(0o755)
        (tmp_path / f"{name}-slow").symlink_to(sys.executable)

    took = {}
    for name in ("mpirun", "somebody"):
        with subprocess.Popen([tmp_path / name, *ask], stdout=subprocess.PIPE, text=True) as launcher:
            begun = asked_at(launcher.pid)
            took[name] = float(launcher.communicate()[0]) - begun

    assert abs(took["mpirun"]) < 0.001
    assert took["somebody"] >= 0.01


def test_a_job_that_was_done_before_its_monitor_was_there_is_ended_and_the_next_run_goes_on(tmp_path: Path) -> None:
    # The kernel counts the begin of a process in hundredths of a second.
    tick = f"'{sys.executable}' -c pass"
    script = f"{tick}; echo FINISHED > .ipc-4711; {tick}; '{FEDMON}' job -i 0.2"
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "mpirun").chmod(0o755)
    environ = environment(FEDMON_JOB_ID="4711")

    first = subprocess.run([tmp_path / "mpirun"], cwd=tmp_path, env=environ, capture_output=True, timeout=30)
    (recording,) = recordings(tmp_path)
    reason = left(recording).job["reason"]
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environ) as second:
        wait_until(lambda: (tmp_path / ".ipc-4711").read_text() == "INPROGRESS\n", what="the second run")
        (tmp_path / ".ipc-4711").write_text("FINISHED\n")
        second.wait(30)

    assert (first.returncode, first.stdout, first.stderr, second.returncode) == (0, b"", b"", 0)
    assert reason == ".ipc-4711: it says FINISHED"
