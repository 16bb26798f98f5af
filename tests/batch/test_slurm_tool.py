"""`fedmon job` inside jobs of a real SLURM, from batch scripts as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch.daemons import processes
from tests.batch.loads import Loads
from tests.batch.results import Results, is_whole
from tests.batch.slurm import Slurm

pytestmark = [pytest.mark.batch, pytest.mark.timeout(120)]
EXAMPLE = Path("docs/examples/job_slurm.sh")
CPU = "job_cpu_seconds_total"
PEAK = "job_memory_peak_bytes"
ONLY_CGROUP = pytest.mark.parametrize("running_slurm", ["cgroup"], indirect=True)
ONLY_LINUXPROC = pytest.mark.parametrize("running_slurm", ["linuxproc"], indirect=True)


def work(slurm: Slurm, *lines: str) -> str:
    """Write a program of these lines and return its path."""
    file = slurm.work / "work.sh"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return str(file)


def results(slurm: Slurm, job: str, *, key: str | None = None, prefix: str | None = None) -> Results:
    folder = slurm.work / (prefix or f"job-metrics-{key or job}")
    assert folder.is_dir(), output(slurm, job)
    return Results(folder, key or job)


def output(slurm: Slurm, job: str) -> str:
    return (slurm.work / f"{job}.out").read_text()


def test_the_script_of_the_documentation_measures_what_the_work_used(slurm: Slurm) -> None:
    # given
    loads = Loads(slurm.work)
    program = work(slurm, loads.hold(80, slurm.work / "there", 2), loads.burn(3))

    # when
    job = slurm.submit(EXAMPLE.read_text(), environ={"WORK": program})
    assert slurm.wait_ended(job, timeout_s=60) == "COMPLETED", output(slurm, job)

    # then
    assert output(slurm, job) == ""
    run = results(slurm, job)
    told = run.job("node1")
    assert told["job_id"] == job
    assert told["name"] == "fit"
    assert told["nodes"] == ["node1"]
    assert (told["method"], told["confidence"]) == {
        "linuxproc": ("scheduler", "high"),
        "cgroup": ("cgroup", "certain"),
    }[slurm.variant]
    assert 3.0 <= run.last(f"{CPU}", "node1") <= 3.6, run.log()
    assert 80e6 <= run.last(PEAK, "node1") <= 130e6, run.log()
    assert not run.lost
    assert is_whole(run.recording)
    for name in (f"job-report-{job}.pdf", f"job-report-{job}.html"):
        assert (run.folder / name).stat().st_size > 10_000, run.log()
    assert list(run.folder.rglob("*.csv")), run.log()
    assert not [pid for pid in processes() if _is_the_tool_of(pid, job)]


def _is_the_tool_of(pid: int, job: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"SLURM_JOB_ID={job}".encode() in environ
    except OSError:
        return False
