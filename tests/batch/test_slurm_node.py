"""A node daemon that watches jobs of a real SLURM for its researchers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.batch.slurm import Slurm
from tests.end_to_end.test_measuring import heard
from tests.support.brokers import Broker
from tests.support.node_process import NodeProcess, fedmon, write_node_folder
from tests.support.shell_here import document
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.batch, pytest.mark.timeout(120)]


def test_a_researcher_sees_a_batch_job_live_until_it_ends(slurm: Slurm, mosquitto: Broker, tmp_path: Path) -> None:
    folder = write_node_folder(tmp_path / "ward", url=mosquitto.url, metrics={"interval_s": 0.5})
    job = slurm.submit("#!/bin/sh\nsleep 300 &\nsrun --overlap sleep 302\n")
    slurm.running("/usr/bin/sleep 302")
    with NodeProcess(folder, environ=slurm.environ), mosquitto.researcher(tmp_path) as federation:
        wait_until(lambda: federation.ping(timeout_s=1.0).ok, what="the node")

        watched = _verb(slurm, folder, "watch", job)
        with federation.monitor() as watch:
            heard(
                watch,
                lambda sample: sample.stream == f"job-{job}" and (sample.values.get("job_processes") or 0) >= 3,
                what=f"three processes of job {job}",
            )
            slurm.run("scancel", job)
            slurm.wait_ended(job)
            wait_until(lambda: _states(slurm, folder) == ["ended"], what="the end of the watch")

        words = ("node", "job", "watch", job, "--scheduler", "slurm", "--dir", str(folder))
        gone = fedmon(*words, environ=slurm.environ)

    assert watched["job"]["job_id"] == job
    assert gone.returncode == 3
    assert "has ended" in gone.stderr
    assert "does not exist" in gone.stderr


def _verb(slurm: Slurm, folder: Path, *words: str) -> Any:
    return document(fedmon("node", "job", *words, "--dir", str(folder), "--json", environ=slurm.environ))


def _states(slurm: Slurm, folder: Path) -> list[str]:
    return [job["state"] for job in _verb(slurm, folder, "list")["jobs"]]
