"""`fedmon job --broker` at a broker as it is shipped: users, TLS, and the access list for jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fedmon.broker.users import Role
from fedmon.researcher.samples.watch import LiveSample
from tests.broker.production import Production, require_names_of_jobs
from tests.node.job.tool_runs import numbers, start
from tests.support.environment import plain_environment
from tests.support.waiting import wait_until

NODE = "job-4711-n1"
USERS = {"alice": Role.RESEARCHER, "cluster-1": Role.JOB, "hospital-a": Role.NODE}


def test_researchers_see_a_job_through_the_shipped_access_list(tmp_path: Path) -> None:
    require_names_of_jobs()
    seen: list[LiveSample] = []
    with Production(tmp_path / "broker", USERS) as production, production.researcher(tmp_path) as federation:
        federation.monitor(seen.append, nodes=[NODE])
        store = federation.record(tmp_path / "store.fmr", nodes=[NODE])
        environ = plain_environment(
            SLURM_JOB_ID="4711",
            SLURM_JOB_NODELIST="n1",
            SLURMD_NODENAME="n1",
            FEDMON_BROKER_USERNAME="cluster-1",
            FEDMON_BROKER_PASSWORD_FILE=str(production.password_file),
            FEDMON_BROKER_CA_FILE=str(production.ca_file),
        )
        words = ("-p", "run", "-i", "0.2", "--broker", production.url("cluster-1"))
        with start(tmp_path / "shared", *words, command=["cat"], environ=environ, stdin=subprocess.PIPE) as tool:
            wait_until(lambda: len(seen) >= 3, what="live samples of the job")
            pong = federation.ping(nodes=[NODE])[NODE]
            tool.communicate(timeout=60)
        wait_until(lambda: federation.nodes()[NODE].state.value == "offline", what="the farewell")
        recorded = numbers(tmp_path / "shared" / "run" / "recordings" / "4711" / "n1.fmr", NODE)
        wait_until(lambda: numbers(tmp_path / "store.fmr", NODE) == recorded, what="every sample in the store")
        store.stop()

    assert pong.ok
    assert tool.returncode == 0
    assert {sample.node_id for sample in seen} == {NODE}
