"""`fedmon node job` at a running node, and at one that is stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.job.machine import program
from tests.node.jobs_real import Program
from tests.node.owner.owner_desks import events, made_folder
from tests.node.owner.owner_shell import node, refused, told
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running node; it stops as it should after all that it watched."""
    folder = made_folder(tmp_path_factory.mktemp("watching") / "n", metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    with NodeProcess(folder) as process:
        wait_until(process.live, what="the node's door")
        yield folder
        assert process.stop() == 0


def jobs(folder: Path) -> dict[str, Any]:
    """Return the jobs that are listed, by their ids."""
    return {job["job_id"]: job for job in told(folder, "job", "list")["jobs"]}


def test_a_stopped_node_watches_no_jobs_takes_no_values_and_says_so(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")

    said = refused(folder, "job", "watch", "a", "--pid", "1", code=5)

    assert "is not running, and only a running node watches jobs" in said
    # Nor is a batch job looked for, nor is there anything to list.
    assert "is not running" in refused(folder, "job", "watch", "4711", code=5)
    assert "is not running" in refused(folder, "job", "list", code=5)
    assert "is not running" in refused(folder, "add-scalar", "accuracy", "0.5", code=5)
    assert "only a running node stops jobs" in refused(folder, "runs", "stop", "0190", code=5)


def test_a_running_node_watches_a_batch_job_by_the_id_of_its_scheduler(watching: Path, tmp_path: Path) -> None:
    slurm_id, pbs_id = f"88{os.getpid()}", f"89{os.getpid()}.server"
    with (
        Program(environ={"SLURM_JOB_ID": slurm_id}) as first,
        Program(environ={"PBS_JOBID": pbs_id}) as second,
    ):
        listed = (
            f"echo PID JOBID STEPID LOCALID GLOBALID; for pid in {first.pid} 1; do echo $pid {slurm_id} 0 - -; done"
        )
        environ = program(tmp_path / "bin", "scontrol", listed)
        shown = node(watching, "job", "watch", slurm_id, "--scheduler", "slurm", environ=environ).stdout
        other = told(watching, "job", "watch", pbs_id, environ={"PATH": "/nowhere"})["job"]
        missing = refused(watching, "job", "watch", f"{slurm_id}9", "--scheduler", "slurm", code=3, environ=environ)
        hostile = refused(watching, "job", "watch", "../../etc", code=2, environ=environ)
        screen = node(watching, "job", "list", environ={"COLUMNS": "80"}).stdout
        during = jobs(watching)
        forgotten = [told(watching, "job", "forget", each)["job"] for each in (slurm_id, pbs_id)]
        unknown = refused(watching, "job", "forget", f"{slurm_id}9", code=3)
        answers = [each.tell("burn 0") for each in (first, second)]

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
    assert [during[job_id]["state"] for job_id in (slurm_id, other["job_id"])] == ["watched", "watched"]
    assert [each["job_id"] for each in forgotten] == [slurm_id, other["job_id"]]
    assert {(each["state"], each["reason"]) for each in forgotten} == {("ended", "its owner had it forgotten")}
    assert (f"no watched job '{slurm_id}9' here" in unknown, answers) == (True, ["", ""])
    assert "job-forget" in events(watching)


def test_a_running_node_watches_a_job_until_it_ends(watching: Path) -> None:
    first, second = ids = ["fit-of-a-large-model-1", "fit-of-a-large-model-2"]
    with Program() as program, Program() as other:
        shown = node(watching, "job", "watch", first, "--pid", str(program.pid), "--name", "a fit").stdout
        for words in (("watch", second, "--pid", str(other.pid)), ("forget", second)) * 2:
            told(watching, "job", *words)
        again = refused(watching, "job", "watch", first, "--pid", str(program.pid), code=4)
        wrong = refused(watching, "add-scalar", "accuracy", "high", code=2)
        program.end()
        wait_until(lambda: "job-ended" in events(watching), what="the end in the audit")
        wait_until(lambda: jobs(watching)[first]["state"] == "ended", what="the end in the list")
        screen = node(watching, "job", "list", environ={"COLUMNS": "80"}).stdout

    assert f"stream       job-{first}" in shown
    assert "cpu: tree" in shown
    assert f"'{first}' is watched already" in again
    assert "the value of 'accuracy' is 'high', not a number" in wrong
    assert jobs(watching)[first]["reason"] == "all of its processes have ended"
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert {*ids} <= {*screen.split()}
    assert "\n  a fit\n" in screen
    assert "job-watch" in events(watching)
