"""Jobs of real processes: what the finder makes of trees, orphans, zombies and numbers that are given again."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.node.job.finders import JobNotFoundError, JobSearch, look_up
from fedmon.node.job.identity import named
from fedmon.node.job.processes import is_overhead_now
from tests.node.job.machine import TOOL, Commands, Machine, program
from tests.node.jobs_real import Program, Watch, cgroups
from tests.support.waiting import wait_until

JOB_ID = f"77{os.getpid()}"
MARKER = {"SLURM_JOB_ID": JOB_ID}
NOBODY = {"PATH": "/nowhere"}


def test_a_scontrol_that_hangs_is_given_up_and_the_job_is_found(tmp_path: Path) -> None:
    environ = program(tmp_path, "scontrol", "sleep 600")
    with Program(environ=MARKER) as job:
        identity = named(JOB_ID, "slurm", hostname="n")
        got = JobSearch(identity, environ=environ, command_s=0.3).find()

    assert (got.pids, got.method) == ((job.pid,), "environment")
    assert dict(got.tried)["scheduler"] == "scontrol did not end within 0.3 s"


def test_a_number_that_was_given_again_is_never_the_jobs(machine: Machine) -> None:
    machine.put(50, "slurmstepd", command=f"slurmstepd: [{JOB_ID}.0]")
    machine.put(60, parent=50, start=100)
    machine.put(61, parent=50, start=100)

    def meanwhile(_argv: Sequence[str], _timeout_s: float) -> str:
        machine.take(60)
        machine.put(60, environ={}, start=500)
        rows = "".join(f"{pid} {JOB_ID} 0 0 0\n" for pid in (60, 61))
        return f"PID JOBID STEPID LOCALID GLOBALID\n{rows}"

    got = machine.search({}, meanwhile, job_id=JOB_ID).find()

    assert got.starts == {61: 100}


def test_a_search_outlives_a_moment_when_processes_cannot_be_listed(machine: Machine) -> None:
    machine.put(60, environ=MARKER)
    search, away = machine.search(MARKER), machine.roots.proc.with_name("away")
    machine.roots.proc.rename(away)
    with pytest.raises(JobNotFoundError):
        search.find()

    away.rename(machine.roots.proc)
    assert search.find().pids == (60,)


def test_a_tool_that_is_named_as_a_job_is_refused(machine: Machine) -> None:
    with pytest.raises(InvalidInputError, match="is this tool itself"):
        machine.search({}, pids=(60, TOOL)).find()


@pytest.mark.parametrize("service", ["sshd", "tmux: server", "screen", "containerd-shim", "supervisord"])
def test_a_tool_that_nobody_of_a_job_started_finds_none(machine: Machine, service: str) -> None:
    machine.put(50, service)
    machine.put(60, "other", parent=50)
    machine.put(TOOL, "fedmon", parent=50)
    with pytest.raises(JobNotFoundError, match="no program of the job started this tool"):
        machine.search({}).find(is_last=True)


def test_an_id_is_looked_for_with_the_scheduler_that_writes_it_and_is_there(machine: Machine, tmp_path: Path) -> None:
    machine.put(60, environ={"OAR_JOB_ID": "7"})
    machine.put(61, environ={"PBS_JOBID": "7.server"})
    look = functools.partial(look_up, scheduler=None, hostname="n", run=Commands(), roots=machine.roots)

    commands = {}
    for name in ("scontrol", "oarstat"):
        commands[name] = program(tmp_path / name, name, "") | {"PATH": str(tmp_path / name)}

    pbs, got = look("7.server", environ=commands["scontrol"])
    oar, _ = look("7", environ=commands["oarstat"])
    assert (pbs.scheduler, pbs.key, got.pids, oar.scheduler) == ("pbs", "7-server", (61,), "oar")
    with pytest.raises(JobNotFoundError, match="slurm job 7"):
        look("7", environ=NOBODY)
    with pytest.raises(InvalidInputError, match=r"'seven' is not the id of a batch job, such as .* --pid"):
        look("seven", environ=NOBODY)


def test_a_job_is_watched_on_though_some_of_its_processes_ended_since_it_was_found() -> None:
    with Program(environ=MARKER) as job, Watch() as watch:
        with Program(environ=MARKER) as short:
            identity = named(JOB_ID, "slurm", hostname="n")
            got = JobSearch(identity, environ=NOBODY).find()
        watch.watches.add("a", pids=got.pids, starts=got.starts, marker=got.marker)

        assert {short.pid, job.pid} == {*got.pids}
        assert watch.value("job_processes") == 1


def names_in_session(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-o", "comm=", "-s", str(session)], capture_output=True, text=True)
    return sorted(listed.stdout.split())


@pytest.mark.parametrize("kept", ["tree", "cgroup"])
def test_a_launcher_that_comes_after_the_find_is_not_counted_but_what_it_starts_is(tmp_path: Path, kept: str) -> None:
    (tmp_path / "srun").symlink_to(shutil.which("sh") or "")
    script = 'read go; "$0" -c "sleep 600 & wait"; :'
    with contextlib.ExitStack() as stack:
        folders = stack.enter_context(cgroups("freezer")) if kept == "cgroup" else []
        watch = stack.enter_context(Watch())
        words = ["sh", "-c", script, str(tmp_path / "srun")]
        job = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True))
        stack.callback(os.killpg, job.pid, signal.SIGKILL)
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(job.pid))
        wish: dict[str, Any] = {"cgroup": folders[0].name} if folders else {"pids": [job.pid]}
        watch.watches.add("a", **wish, is_overhead_now=is_overhead_now)
        assert watch.value("job_processes") == 1
        assert job.stdin is not None
        os.write(job.stdin.fileno(), b"go\n")
        wait_until(lambda: names_in_session(job.pid) == ["sh", "sleep", "srun"], what="the job's processes")

        assert watch.value("job_processes") == 2
