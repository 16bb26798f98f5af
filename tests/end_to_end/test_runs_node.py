"""Approved plans on a real node behind a real broker: they survive what happens to either, and all of them end."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmon.common.ids import new_id
from fedmon.node.collectors.job.process import find_birth
from fedmon.node.runs.folder import JobFolder
from tests.end_to_end.bad_runs import NodeElsewhere
from tests.end_to_end.run_sites import SHA256, Site, made, running
from tests.node.runs.kept_jobs import left_of
from tests.support.brokers import Broker
from tests.support.listener import Listener
from tests.support.node_process import NodeProcess
from tests.support.raw_researcher import RawResearcher
from tests.support.requirements import require
from tests.support.shell_here import fedmon_here
from tests.support.waiting import has_ended, wait_until


@pytest.fixture(scope="module")
def site(lasting_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site") / "north"
    made(folder, lasting_broker, metrics={"interval_s": 0.2}, runs={"max_jobs": 4})
    with running(NodeProcess(folder), lasting_broker) as made_site:
        yield made_site


def reported(site: Site, job_id: str) -> JobFolder:
    """Wait until the plan of a job has reported."""
    folder = JobFolder(site.folder / "runs" / job_id)
    wait_until(lambda: len(list(folder.events())) >= 3, what="a report of the plan")
    return folder


def test_a_job_outlives_its_daemon_and_its_broker_and_what_is_lost_is_said(site: Site) -> None:
    # given a job that ends in a moment, one that goes on, and one that will lose its keeper
    ends, goes_on, lost = site.run(seconds=1.5), site.run(seconds=60), site.run(seconds=60)
    folders = {job_id: reported(site, job_id) for job_id in (ends, goes_on, lost)}
    keeper = folders[lost].keeper()
    assert keeper is not None
    born = find_birth(keeper.pid)
    assert born is not None
    launcher = born.parent

    # when daemon and broker are killed, and a keeper while nobody looks
    site.node.kill()
    site.broker.kill()
    os.kill(keeper.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(launcher), what="the launcher's end")
    wait_until(lambda: folders[ends].ending() is not None, what="the end of the first job")
    site.broker.start()
    site.node.start()

    # then the new daemon has the end of the first, goes on with the second, and tells that the third is lost
    with RawResearcher(site.broker) as researcher:
        wait_until(lambda: researcher.answered("pong"), what="the node")
        again = Site(site.broker, site.node, researcher)
        assert again.outcome(ends)["result"]["json"] == '{"rows":3}'
        assert again.outcome(lost)["job"]["state"] == "lost"
        assert again.state(goes_on) == "running"
        repeated = researcher.ask("run", job_id=ends, sha256=SHA256, tags=["cells"], arguments={"seconds": 1.5})
        assert repeated["job"]["state"] == "succeeded"

        # and the owner ends what goes on
        stop = ("node", "runs", "stop", goes_on[:13], "--dir", str(site.node.folder))
        stopped = fedmon_here(*stop).stdout
        assert again.outcome(goes_on)["job"]["state"] == "stopped-by-owner"
        assert [stopped, fedmon_here(*stop).stdout] == [
            f"Job {goes_on} is stopped; see: fedmon node runs show {goes_on}\n",
            f"Job {goes_on} was over already: stopped-by-owner.\n",
        ]
        assert [left_of(job_id) for job_id in folders] == [[], [], []]
        told = [line["job"] for line in again.audit("run-outcome")]
        assert [told.count(job_id) for job_id in folders] == [1, 1, 1]
        assert again.outcome(again.run())["job"]["state"] == "succeeded"


def test_a_job_is_a_stream_beside_its_scalars_and_its_words_stay_here(site: Site) -> None:
    # given somebody who hears all that passes the broker
    with Listener(site.broker) as listener:
        # when one job runs for a while and another fails
        job_id, fails = site.run(seconds=1.5), site.run(fail=True)
        outcome, failed = site.outcome(job_id), site.outcome(fails)

        # then resources and scalars are there, and nothing that the plan said in words
        wait_until(lambda: listener.batches(f"job-{job_id}"), what="samples of the job")
        messages = [each.message for each in listener.heard if each.message["command"] == "run-scalars"]
        scalars = [each for message in messages for each in message["scalars"]]
        assert {(each["job_id"], each["number"], each["values"]["loss"]) for each in scalars} == {
            (job_id, 0, 0.5),
            (fails, 0, 0.5),
        }
        assert (outcome["job"]["state"], failed["job"]["state"]) == ("succeeded", "failed")
        assert failed["job"]["problem"]["type"] == "ValueError"
        told = site.researcher.ask("job-status", job_id=fails, stdout_from=0, stderr_from=0, scalars_from=0)
        assert (told["stdout"], told["stderr"], len(told["scalars"])) == (None, None, 1)
        assert "job_output" in told["withheld"]
        assert not [each for each in listener.heard if "CANARY" in json.dumps(each.message)]
    assert "CANARY-ERROR" in json.dumps(site.owner("runs", "show", fails))


def test_a_job_is_read_at_its_begin_and_end_between_which_its_energy_counts(mosquitto: Broker, tmp_path: Path) -> None:
    folder = made(tmp_path / "east", mosquitto, metrics={"interval_s": 600})
    with running(NodeProcess(folder), mosquitto) as site, Listener(mosquitto) as listener:
        job_id = site.run(seconds=10)
        site.outcome(job_id)

        def samples() -> int:
            return sum(len(batch["t"]) for batch in listener.batches(f"job-{job_id}"))

        wait_until(lambda: samples() == 2, what="the first and the last sample of the job")


def test_where_the_minimum_cannot_be_had_nothing_runs_and_everybody_is_told(mosquitto: Broker, tmp_path: Path) -> None:
    # given a machine on which bubblewrap cannot be run, and an owner who asks for it
    folder = made(tmp_path / "west", mosquitto, runs={"sandbox": "bubblewrap"})
    require(shutil.which("bwrap") and os.geteuid() == 0, "only root can hide bubblewrap from a process")
    with running(NodeElsewhere(folder, without_bubblewrap=True), mosquitto) as site:
        wait_until(lambda: site.owner("status")["live"]["sandbox_reasons"], what="the look for a sandbox")

        refused = site.researcher.ask("run", job_id=new_id(), sha256=SHA256)

        assert refused["code"] == "no-sandbox"
        assert "'bubblewrap' at least" in refused["reason"]
        status = site.owner("status")
        assert status["runs"]["minimum"] == "bubblewrap"
        assert status["live"]["sandbox"] != "bubblewrap"
        shown = fedmon_here("node", "status", "--dir", str(folder))
        assert "NONE CAN RUN" in shown.stdout
        assert site.audit("run-refused")[0]["reason"] == refused["reason"]
