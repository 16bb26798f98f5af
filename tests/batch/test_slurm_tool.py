"""`fedmon job` inside jobs of a real SLURM, from batch scripts as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch.daemons import with_environment
from tests.batch.loads import burn, hold
from tests.batch.results import merged
from tests.batch.slurm import NODES, Slurm
from tests.node.job.tool_runs import fitting, logs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.batch, pytest.mark.timeout(180)]
EXAMPLE = Path("docs/examples/job_slurm.sh")
ONLY_CGROUP = pytest.mark.parametrize("running_slurm", ["cgroup"], indirect=True)
ONLY_LINUXPROC = pytest.mark.parametrize("running_slurm", ["linuxproc"], indirect=True)


def work(slurm: Slurm, *lines: str) -> str:
    """Write a program of these lines and return its path."""
    file = slurm.work / "work.sh"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return str(file)


def measuring(slurm: Slurm, job: str) -> None:
    """Wait until a job's processes have been found."""
    logs = slurm.work / f"job-metrics-{job}" / "logs"

    def found() -> bool:
        return any("the job was found by" in file.read_text() for file in logs.rglob("*.log"))

    wait_until(found, what=f"the measuring of job {job}")


def test_the_script_of_the_documentation_measures_what_the_work_used(slurm: Slurm) -> None:
    program = work(slurm, hold(slurm.work, 80, 8), burn(slurm.work, 3))

    job = slurm.submit(EXAMPLE.read_text(), environ={"WORK": program})
    assert slurm.wait_ended(job, timeout_s=100) == "COMPLETED", slurm.output(job)

    assert [line.split()[:2] for line in slurm.output(job).splitlines()] == [
        ["fedmon:", "measuring"], ["fedmon:", "results"],
    ]  # fmt: skip
    assert not (slurm.work / f".ipc-{job}").exists()
    folder = slurm.work / f"job-metrics-{job}"
    run = merged(folder, job)
    assert (run.job["job_id"], run.job["name"], run.job["nodes"]) == (job, "fit", ["node1"])
    assert run.job["method"] in {"scheduler", "cgroup", "environment"}
    # A job without a cgroup loses what its processes used since the last sample, which is 1 s before their end at most;
    # a cgroup holds the start of the monitor, too.
    least, most = {"linuxproc": (1.9, 3.3), "cgroup": (3.0, 4.2)}[slurm.variant]
    assert least <= run.cpu_s <= most, logs(slurm.work)
    assert 80e6 <= run.last("job_memory_peak_bytes") <= 160e6, logs(slurm.work)
    assert "samples_lost" not in run.document["tool"]
    assert (folder / f"job-report-{job}.html").stat().st_size > 10_000, logs(slurm.work)
    assert list(folder.rglob("*.csv")), logs(slurm.work)
    assert not with_environment("SLURM_JOB_ID", job)


def test_a_command_in_a_step_is_measured_exactly_and_keeps_its_exit_code_and_output(slurm: Slurm) -> None:
    program = work(slurm, "echo done", hold(slurm.work, 80, 1.5), burn(slurm.work, 2), "exit 7")

    job = slurm.submit(f"#!/bin/sh\nsrun fedmon job -i 0.5 -p wrapped --name run-7 -- {program}\n")
    assert slurm.wait_ended(job, timeout_s=100) == "FAILED", slurm.output(job)

    assert "done" in slurm.output(job).splitlines()
    assert "ExitCode=7:0" in slurm.run("scontrol", "show", "job", job).stdout
    run = merged(slurm.work / "wrapped", job)
    assert (run.job["method"], run.job["confidence"], run.job["exit_code"]) == ("command", "certain", 7)
    assert run.document["labels"]["name"] == "run-7"
    assert 2.0 <= run.cpu_s <= 2.6, logs(slurm.work)
    assert 80e6 <= run.last("job_memory_peak_bytes") <= 110e6, logs(slurm.work)


@ONLY_CGROUP
def test_two_hosts_measure_a_job_and_the_last_one_merges_by_itself(slurm: Slurm) -> None:
    program = work(slurm, "exec sleep 3")
    script = EXAMPLE.read_text().replace("--nodes=1", "--nodes=2").replace("srun --overlap ${", "srun --overlap -n2 ${")

    job = slurm.submit(script.replace("--gen_report --export csv", ""), environ={"WORK": program})
    assert slurm.wait_ended(job, timeout_s=100) == "COMPLETED", slurm.output(job)

    folder = slurm.work / f"job-metrics-{job}"
    assert {path.stem for path in folder.glob("recordings/*/*")} == {*NODES}
    for host in NODES:
        run = merged(folder, job, host)
        assert run.job["nodes"] == [*NODES]
        assert len([*fitting(run.columns["job_processes"])]) >= 2
        # Each host counts its own: the batch script runs on the first only.
        assert run.job["cgroup"] == f"/slurm_{host}/uid_0/job_{job}"
    assert not (slurm.work / f".ipc-{job}").exists()


@pytest.mark.parametrize("how", ["scancel", "SIGUSR1"])
@ONLY_CGROUP
def test_a_job_that_is_cancelled_leaves_a_complete_recording_and_what_was_asked_for(slurm: Slurm, how: str) -> None:
    script = EXAMPLE.read_text() if how == "scancel" else EXAMPLE.read_text().replace("--gen_report", "")
    started = slurm.work / f"started-{how}"
    job = slurm.submit(script, environ={"WORK": work(slurm, f"sleep 5; touch {started}; exec sleep 300")})
    measuring(slurm, job)
    wait_until(started.exists, timeout_s=60, what="work that lasted some samples")

    slurm.run("scancel", *(["--signal=USR1"] if how == "SIGUSR1" else []), job)
    slurm.wait_ended(job, timeout_s=100)

    folder = slurm.work / f"job-metrics-{job}"
    last = f"job-report-{job}.html" if how == "scancel" else "all_metrics.csv"
    wait_until((folder / last).exists, timeout_s=80, what=last)
    run = merged(folder, job)
    assert run.job["reason"] == f"received {'SIGTERM' if how == 'scancel' else how}"
    assert [*fitting(run.columns["job_processes"])]


@ONLY_LINUXPROC
def test_a_number_that_no_job_has_ends_the_run_and_says_what_to_do(slurm: Slurm) -> None:
    ended = slurm.run("fedmon", "job", "-i", "1", environ={"SLURM_JOB_ID": "999999"})

    assert (ended.returncode, ended.stdout) == (3, "")
    assert "slurm job 999999 not found (squeue: Invalid job id specified)" in ended.stderr
    assert "correct its id, or name its processes with --pid" in ended.stderr
