"""`fedmon node job` at a running node, and at one that is stopped."""

from __future__ import annotations

import os
from pathlib import Path

from fedmon.node.folder import NodeFolder
from fedmon.node.owner.cli.shell import connected
from tests.node.job.test_commands import program
from tests.node.jobs_real import Program
from tests.node.owner.owner_desks import events, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.node_process import NO_RUNS, NodeProcess
from tests.support.waiting import wait_until


def is_open(folder: Path) -> bool:
    client = connected(NodeFolder.open(folder))
    if client is None:
        return False
    with client:
        return True


def test_a_stopped_node_watches_no_jobs_and_says_so(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")

    said = refused(folder, "job", "watch", "a", "--pid", "1", code=5)

    assert "is not running, and only a running node watches jobs" in said
    # Nor is a batch job looked for.
    assert "is not running" in refused(folder, "job", "watch", "4711", code=5)


def test_a_running_node_watches_a_batch_job_by_the_id_of_its_scheduler(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", runs=NO_RUNS, metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    slurm_id, pbs_id = f"88{os.getpid()}", f"89{os.getpid()}.server"
    with (
        NodeProcess(folder),
        Program(environ={"SLURM_JOB_ID": slurm_id}) as first,
        Program(environ={"PBS_JOBID": pbs_id}) as second,
    ):
        wait_until(lambda: is_open(folder), what="the node's door")
        listed = (
            f"echo PID JOBID STEPID LOCALID GLOBALID; for pid in {first.pid} 1; do echo $pid {slurm_id} 0 - -; done"
        )
        environ = program(tmp_path / "bin", "scontrol", listed)
        shown = node(folder, "job", "watch", slurm_id, "--scheduler", "slurm", environ=environ).stdout
        other = told(folder, "job", "watch", pbs_id, environ={"PATH": "/nowhere"})["job"]
        missing = refused(folder, "job", "watch", f"{slurm_id}9", "--scheduler", "slurm", code=3, environ=environ)
        hostile = refused(folder, "job", "watch", "../../etc", code=2)
        screen = node(folder, "job", "list", environ={"COLUMNS": "80"}).stdout

    assert f"batch job    {slurm_id} of slurm" in shown
    assert f"stream       job-{slurm_id}" in shown
    assert "found by     scheduler (confidence: high)" in shown
    assert (other["job_id"], other["pids"]) == (pbs_id.replace(".", "-"), [second.pid])
    assert other["origin"] == {
        "scheduler": "pbs", "job_id": pbs_id, "method": "environment", "confidence": "medium",
    }  # fmt: skip
    assert f"no process of slurm job {slurm_id}9 is on this host" in missing
    assert "is not the id of a batch job" in hostile
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert {"scheduler", "environment"} <= {*screen.split()}


def test_a_running_node_watches_a_job_until_it_ends(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", runs=NO_RUNS, metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    with NodeProcess(folder) as process, Program() as program:
        wait_until(lambda: is_open(folder), what="the node's door")
        shown = node(folder, "job", "watch", "fit", "--pid", str(program.pid), "--name", "a fit").stdout
        again = refused(folder, "job", "watch", "fit", "--pid", str(program.pid), code=4)
        program.end()
        wait_until(lambda: events(folder)[-1:] == ["job-ended"], what="the end in the audit")
        listed = told(folder, "job", "list")["jobs"]
        screen = node(folder, "job", "list", environ={"COLUMNS": "80"}).stdout
        stopped = process.stop()

    assert "stream       job-fit" in shown
    assert "cpu: tree" in shown
    assert "'fit' is watched already" in again
    assert [(job["job_id"], job["state"], job["reason"]) for job in listed] == [
        ("fit", "ended", "all of its processes have ended")
    ]
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "a fit" in screen
    assert stopped == 0
    assert "job-watch" in events(folder)
