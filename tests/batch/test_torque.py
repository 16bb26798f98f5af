"""Jobs that are submitted with Torque's commands; real SLURM runs them, with the variables of PBS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch.loads import burn
from tests.batch.results import merged
from tests.batch.slurm import Slurm
from tests.node.job.tool_runs import logs

pytestmark = [pytest.mark.batch, pytest.mark.timeout(180)]
EXAMPLE = Path("docs/examples/job_pbs.sh")


def qsub(torque: Slurm, script: str, **environ: str) -> str:
    """Submit a script and return the id of its job."""
    file = torque.work / "job.sh"
    file.write_text(script)
    submitted = torque.run("qsub", "-V", "-j", "oe", "-o", str(torque.work / "output"), str(file), environ=environ)
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()


def test_the_script_of_the_documentation_measures_a_job_of_pbs(torque: Slurm) -> None:
    job = qsub(torque, EXAMPLE.read_text(), WORK=burn(torque.work, 2))
    torque.wait_ended(job, timeout_s=100)

    told = (torque.work / "output").read_text()
    assert [line.split()[1] for line in told.splitlines()] == ["measuring", "results"]
    folder = torque.work / f"job-metrics-{job}"
    run = merged(folder, job)
    assert run.job["job_id"] == job
    assert 0.9 <= run.cpu_s <= 2.4, logs(torque.work)
    assert (folder / f"job-report-{job}.html").stat().st_size > 10_000, logs(torque.work)
