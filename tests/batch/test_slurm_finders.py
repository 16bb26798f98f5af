"""Finding the processes of jobs of a real SLURM."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from fedmon.node.job.finders import Confidence, Found, JobSearch, look_up
from fedmon.node.job.identity import identify
from tests.batch.daemons import command
from tests.batch.slurm import Slurm

pytestmark = pytest.mark.batch


def names(found: Found) -> list[str]:
    """Return the command lines of what was found."""
    return sorted(command(pid) for pid in found.pids)


def asked(slurm: Slurm, job_id: str) -> Found:
    """Find a job from outside, as a node does."""
    host = socket.gethostname()
    _, found = look_up(job_id, scheduler="slurm", environ=slurm.environ, hostname=host, exclude=[os.getpid()])
    return found


def inside(slurm: Slurm, pid: int) -> Found:
    """Find the job which a process belongs to with that process's own environment."""
    environ = psutil.Process(pid).environ()
    identity = identify(environ, hostname=socket.gethostname(), pid=pid)
    return JobSearch(identity, environ=environ, exclude=[os.getpid()]).find()


def test_a_job_is_found_with_its_steps_and_without_launchers_and_daemons(slurm: Slurm) -> None:
    job = slurm.submit("#!/bin/sh\nsleep 300 &\nsrun --overlap sleep 302 &\nwait\n")
    slurm.running("sleep 300")
    slurm.running("/usr/bin/sleep 302")

    found = asked(slurm, job)

    method = {"linuxproc": ("scheduler", Confidence.HIGH), "cgroup": ("cgroup", Confidence.CERTAIN)}[slurm.variant]
    assert method == (found.method, found.confidence)
    assert [name for name in names(found) if "slurm_script" not in name] == ["/usr/bin/sleep 302", "sleep 300"]
    assert len(found.pids) == 3
    beside = {command(pid).split()[0] for pid in found.overhead}
    assert "srun" in beside
    assert {f"SLURM_JOB_ID={job}"} == {found.marker}


def test_an_orphan_that_left_its_session_is_found_by_cgroup_or_known_by_the_mark(slurm: Slurm) -> None:
    job = slurm.submit("#!/bin/sh\n(setsid sh -c 'sleep 301 &')\nsleep 300\n")
    slurm.running("sleep 300")
    (orphan,) = slurm.running("sleep 301")

    found = asked(slurm, job)

    if slurm.variant == "cgroup":
        assert orphan in found.pids
    else:
        name, _, value = (found.marker or "").partition("=")
        assert psutil.Process(orphan).environ()[name] == value


def test_each_task_of_an_array_is_found_alone_by_either_of_its_names(slurm: Slurm) -> None:
    array = slurm.submit("#!/bin/sh\nexec sleep 31$SLURM_ARRAY_TASK_ID\n", "--array=3-7:2")
    for index in (3, 5, 7):
        slurm.running(f"sleep 31{index}")
    listed = slurm.run("squeue", "--noheader", "--array", f"--jobs={array}", "--format=%A %K").stdout.splitlines()

    by_index = {index: names(asked(slurm, f"{array}_{index}")) for index in (3, 5, 7)}
    by_raw_id = {int(index): names(asked(slurm, raw)) for raw, index in (line.split() for line in listed)}

    assert {index: [f"sleep 31{index}"] for index in (3, 5, 7)} == by_index == by_raw_id


def test_two_nodes_on_one_machine_keep_their_processes_apart(slurm: Slurm) -> None:
    slurm.submit("#!/bin/sh\nsrun sleep 303\n", "--nodes=2", "--ntasks=2")
    tasks = slurm.running("/usr/bin/sleep 303", count=2)

    found = [inside(slurm, pid) for pid in tasks]

    for pid, one in zip(tasks, found, strict=True):
        assert [pid] == [each for each in one.pids if command(each) == "/usr/bin/sleep 303"], one


def test_a_job_of_another_user_is_found(slurm: Slurm) -> None:
    job = slurm.submit("#!/bin/sh\nexec sleep 304\n", "--uid=nobody", "--output=/dev/null")
    slurm.running("sleep 304")

    found = asked(slurm, job)

    assert names(found) == ["sleep 304"]
    assert Path(f"/proc/{found.pids[0]}").owner() == "nobody"
