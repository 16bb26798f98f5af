"""Whatever is killed, and whenever: each job begins once at most, ends once, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from fedmon.common.ids import new_id
from fedmon.common.wire.runs import JobState
from fedmon.node.runs.folder import JobFolder, Started
from tests.end_to_end.run_sites import SHA256, Site, made
from tests.node.runs.kept_jobs import left_of
from tests.support.brokers import Broker
from tests.support.chance import seeded
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess, audited
from tests.support.raw_researcher import RawResearcher
from tests.support.waiting import wait_until

KILLS = 30
VICTIMS = ("daemon", "launcher", "keeper", "first", "launcher daemon", "keeper daemon", "launcher keeper first daemon")
PAUSES_S = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3)


def is_back(researcher: RawResearcher) -> bool:
    """Tell whether the node answers and takes jobs; what it takes is a job as others."""
    asked = researcher.message("run", job_id=new_id(), sha256=SHA256, tags=["cells"])
    researcher.send(asked)
    with contextlib.suppress(pytest.fail.Exception):
        return bool(researcher.reply_to(asked, 2.0)["command"] == "run")
    return False


def below(pid: int, name: str) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [each.pid for each in psutil.Process(pid).children() if each.name() == name or not name]
    return []


def kill(node: NodeProcess, victims: str) -> None:
    launchers = below(node.pid, "fedmon-launcher")
    keepers = [pid for each in launchers for pid in below(each, "fedmon-keeper")]
    chosen = {"launcher": launchers, "keeper": keepers, "first": [pid for each in keepers for pid in below(each, "")]}
    for victim in victims.split():
        if victim == "daemon":
            node.kill()
        for pid in chosen.get(victim, ()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_kills_at_any_moment_lose_no_outcome_and_begin_nothing_twice(mosquitto: Broker, tmp_path: Path) -> None:
    # given a node, and a researcher who asks each time twice, and again after what was killed is back
    chance, pause = seeded(), threading.Event()
    folder = made(tmp_path / "north", mosquitto, metrics={"interval_s": 0.2}, runs={"max_jobs": 64})
    with NodeProcess(folder) as node, RawResearcher(mosquitto) as researcher:
        wait_until(lambda: is_back(researcher), what="the node")

        # when parts of it are killed
        for _ in range(KILLS):
            arguments = {"seconds": chance.choice((0, 0.1, 0.5))}
            words = {"job_id": new_id(), "sha256": SHA256, "tags": ["cells"], "arguments": arguments}
            request = researcher.message("run", **words)
            researcher.send(request)
            researcher.send(researcher.message("run", **words))
            pause.wait(chance.choice(PAUSES_S))
            kill(node, chance.choice(VICTIMS))
            if not node.alive():
                node.start()
                wait_until(lambda: is_back(researcher), what="the node")
                researcher.send(request)
                researcher.send(researcher.message("run", **words))

        # then whatever was taken in ended, once
        def unended() -> set[str]:
            researcher.send(researcher.message("ping"))
            taken = {each["job"]["job_id"] for each in researcher.heard("run")}
            return taken - {each["job"]["job_id"] for each in researcher.heard("job-outcome")}

        wait_until(lambda: is_back(researcher), what="the node")
        wait_until(lambda: not unended(), what="the end of all jobs")
        ends = {(each["id"], each["job"]["state"]) for each in researcher.heard("job-outcome")}
        jobs = {each["job"]["job_id"] for each in researcher.heard("run")}
        node.stop()
    assert {f"job-{job_id}" for job_id in jobs} <= {each for each, _ in ends}
    assert len(ends) == len({each for each, _ in ends})
    for event in ("run", "run-outcome"):
        assert set(Counter(line["job"] for line in audited(folder, event)).values()) == {1}
    folders = [JobFolder(folder / "runs" / job_id) for job_id in jobs]
    for each in folders:
        assert len([event for event, _ in each.events() if isinstance(event, Started)]) <= 1
    assert [each for job_id in jobs for each in left_of(job_id)] == []
    assert not any(each.is_alive() for each in folders)


@pytest.mark.soak
def test_the_same_job_on_two_nodes_of_one_machine_is_measured_apart(mosquitto: Broker, tmp_path: Path) -> None:
    # given two nodes on one machine
    folders = [made(tmp_path / name, mosquitto, metrics={"interval_s": 0.2}) for name in ("north", "south")]
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(NodeProcess(folder)) for folder in folders]
        researcher = stack.enter_context(RawResearcher(mosquitto))
        listener = stack.enter_context(Listener(mosquitto))
        wait_until(lambda: is_back(researcher), what="a node")
        wait_until(lambda: len({each["node_id"] for each in researcher.heard("run")}) == 2, what="both nodes")

        def measured(job_id: str, node_id: str) -> list[int]:
            batches = [each for each in listener.batches(f"job-{job_id}") if each["node_id"] == node_id]
            return [int(number) for each in batches for number in each["m"]["job_processes"]]

        # when they run one job
        job_id = Site(mosquitto, nodes[0], researcher).run(seconds=60)
        for name in ("north", "south"):
            # The first one may come before the sandbox has all of its processes.
            wait_until(lambda name=name: len(measured(job_id, name)) > 3, what=f"samples of {name}")  # type: ignore[misc]

        # then each has its own processes in its stream, and has them again when its daemon is another
        alone = max(measured(job_id, "south"))
        assert alone == max(measured(job_id, "north")) <= 3
        nodes[0].kill()
        before = len(measured(job_id, "north"))
        nodes[0].start()
        wait_until(lambda: len(measured(job_id, "north")) > before, what="samples after a new start")
        assert max(measured(job_id, "north")) == alone

        # and the streams end with it
        for each in folders:
            JobFolder(each / "runs" / job_id).stop(JobState.STOPPED, "the test is over")
        wait_until(
            lambda: len({each["node_id"] for each in researcher.heard("job-outcome") if job_id in each["id"]}) == 2,
            what="both ends",
        )
