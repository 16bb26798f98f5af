"""`fedmon job` below a scheduler: its time limit, its silence, and jobs that come later."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.node.job.machine import program
from tests.node.job.tool_runs import FEDMON, fitting, is_measured, logs, start, the
from tests.node.jobs_real import Program, cgroups
from tests.support.environment import plain_environment
from tests.support.waiting import wait_until

AGAIN = "it is looked for again"


@pytest.mark.parametrize(("scheduler", "is_late"), [("slurm", False), ("pbs", True), ("oar", False)])
def test_a_run_ends_before_the_time_limit_of_the_scheduler_also_if_the_job_comes_later(
    tmp_path: Path, scheduler: str, *, is_late: bool
) -> None:
    ends_at, job_id = int(time.time()) + 20, f"{10**9 + os.getpid()}"
    environ = {
        "slurm": plain_environment(SLURM_JOB_ID=job_id, SLURM_JOB_END_TIME=str(ends_at)),
        "pbs": plain_environment(PBS_JOBID=job_id, PBS_WALLTIME="20"),
        "oar": plain_environment(OAR_JOB_ID=job_id, OAR_JOB_WALLTIME_SECONDS="20"),
    }[scheduler]
    with contextlib.ExitStack() as stack:
        if not is_late:
            stack.enter_context(Program(environ=environ))
        tool = stack.enter_context(start(tmp_path / "saved", "-i", "0.2", environ=environ))
        if is_late:
            wait_until(lambda: is_measured(tmp_path / "saved"))
            stack.enter_context(Program(environ=environ))
        tool.wait(60)

    job = the(tmp_path / "saved").job
    assert job["reason"] == "the time limit of the scheduler is near"
    assert datetime.fromisoformat(job["ended"]).timestamp() < ends_at
    assert ("the job is not measured yet, only its host" in logs(tmp_path / "saved")) == is_late


@contextlib.contextmanager
def ended(folder: Path, job_id: str) -> Iterator[None]:
    """Have a run end with the block, whatever happens in it."""
    try:
        yield
    finally:
        folder.mkdir(exist_ok=True)
        (folder / f".ipc-{job_id}").write_text("FINISHED")


@pytest.mark.timeout(180)
def test_a_tool_that_a_scheduler_keeps_looks_for_the_job_until_it_is_stopped(tmp_path: Path) -> None:
    # A host where nothing of the job runs yet, as the second one of a job before its first step
    job_id = str(10**9 + os.getpid())
    daemon, folder, environ = tmp_path / "slurmstepd", tmp_path / "saved", plain_environment(SLURM_JOB_ID=job_id)
    daemon.symlink_to("/bin/sh")
    tool = f'SLURM_JOB_ID={job_id} "{FEDMON}" job -q -i 0.2 -c 0.2 -d "{folder}"'
    with subprocess.Popen([daemon, "-c", f"{tool} & wait $!"], env=plain_environment()) as kept, ended(folder, job_id):
        wait_until(lambda: is_measured(folder))

        # when two steps follow one another
        for number in (1, 2):
            with Program(environ=environ):
                wait_until(lambda number=number: len(starts(folder)) == number)  # type: ignore[misc]
            wait_until(lambda number=number: logs(folder).count(AGAIN) == number)  # type: ignore[misc]

    found = the(folder)
    assert (kept.returncode, found.job["method"]) == (0, "environment")
    assert found.job["reason"] == f".ipc-{job_id}: it says FINISHED"


def test_a_job_whose_first_hierarchy_is_empty_is_measured_by_the_one_that_holds_it(tmp_path: Path) -> None:
    with cgroups("pids", "freezer") as (_empty, own), Program(cgroups=[own]) as program:
        environ = plain_environment(SLURM_JOB_ID=str(10**9 + os.getpid()), FEDMON_JOB_CGROUPS=own.name)
        with start(tmp_path, "-i", "0.2", environ=environ):
            wait_until(lambda: is_measured(tmp_path) and starts(tmp_path))
            program.end()

    found = the(tmp_path)
    assert (found.job["method"], found.job["pids"]) == ("cgroup", [program.pid])
    assert 'job_method_info{of="members",method="cgroup-v1"}' in found.columns


UNKNOWN = {
    "slurm": {
        "scontrol": "echo 'PID      JOBID    STEPID   LOCALID GLOBALID'; echo 'There are no steps for job 999999' >&2",
        "squeue": "echo 'slurm_load_jobs error: Invalid job id specified' >&2",
    },
    "pbs": {"qstat": "echo 'qstat: Unknown Job Id 999999.server' >&2; exit 153"},
}


@pytest.mark.parametrize(
    ("variable", "job_id", "scheduler"), [("SLURM_JOB_ID", "999999", "slurm"), ("PBS_JOBID", "999999.server", "pbs")]
)
def test_a_job_that_its_scheduler_does_not_know_ends_the_run_with_a_word_on_it(
    tmp_path: Path, variable: str, job_id: str, scheduler: str
) -> None:
    environ = plain_environment(**{variable: job_id})
    for name, lines in UNKNOWN[scheduler].items():
        environ |= program(tmp_path / "bin", name, f"{lines}\nexit 1")

    with start(tmp_path / "saved", "-i", "1", environ=environ) as tool:
        said, complained = tool.communicate(timeout=60)

    assert (tool.returncode, said) == (3, b"")
    assert complained.startswith(f"fedmon: {scheduler} job {job_id} not found (".encode())
    assert b"correct its id, or name its processes with --pid" in complained
    assert the(tmp_path / "saved").job["reason"] in complained.decode()


def starts(folder: Path) -> list[int]:
    """Return at which samples the job had processes, and none before."""
    alive = [value > 0 for value in fitting(the(folder).columns.get("job_processes", []))]
    return [at for at, is_alive in enumerate(alive) if is_alive and not (at and alive[at - 1])]
