"""Jobs of a real OAR, in namespaces of its own."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import psutil
import pytest

from fedmon.node.job.finders import JobSearch
from fedmon.node.job.identity import identify
from tests.batch.loads import burn
from tests.batch.oar import CGROUPS, USER, Oar
from tests.batch.results import merged
from tests.node.job.tool_runs import logs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.batch, pytest.mark.timeout(120)]
EXAMPLE = Path("docs/examples/job_oar.sh")


def test_a_job_is_found_by_its_cgroup_without_what_oar_runs_beside_it(oar: Oar) -> None:
    job = oar.submit("sleep 300 & (setsid sh -c 'sleep 301 &'); sleep 302; wait", "-l", "/resource_id=1,walltime=0:5:0")
    procs = CGROUPS / "freezer" / "oar" / f"{USER}_{job}" / "cgroup.procs"
    pids = wait_until(lambda: six if len(six := _pids(procs)) == 6 else [], what="the job's processes")
    environ = psutil.Process(pids[-1]).environ()

    identity = identify(environ, hostname=socket.gethostname(), pid=pids[-1])
    found = JobSearch(identity, environ=environ).find()
    oar.run("oardel", job)
    oar.wait_state(job, "Error", "Terminated")

    assert (identity.scheduler, identity.job_id, identity.user) == ("oar", job, USER)
    assert identity.time_limit_s == 300
    assert (found.method, found.confidence.value, found.cgroup) == ("cgroup", "certain", f"/oar/{USER}_{job}")
    assert sorted(found.pids) == sorted(pids[2:])
    assert set(found.overhead) == set(pids[:2])


def test_the_script_of_the_documentation_measures_a_job_of_oar(oar: Oar) -> None:
    bin_folder = Path(sys.executable).parent
    script = oar.work / "job.sh"
    lines = EXAMPLE.read_text().splitlines()
    lines.insert(1, f"export PATH={bin_folder}:$PATH WORK='{burn(oar.work, 2)}'")
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)

    job = oar.submit(str(script), "-l", "/resource_id=1,walltime=0:5:0")
    oar.wait_state(job, "Error", "Terminated", timeout_s=90)

    assert (oar.work / f"OAR.{job}.stdout").read_text() == ""
    run = merged(oar.work / f"job-metrics-{job}", job, host=None)
    assert (run.job["method"], run.job["confidence"]) == ("cgroup", "certain")
    assert 2.0 <= run.cpu_s <= 3.2, logs(oar.work)


def _pids(file: Path) -> list[int]:
    try:
        return [int(pid) for pid in file.read_text().split()]
    except OSError:
        return []
