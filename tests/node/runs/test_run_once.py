"""A job is begun once, belongs to who asked for it, and its end is told until it is acknowledged."""

from __future__ import annotations

import contextlib
import shutil
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fedmon.common.clock import seconds_from_now
from fedmon.common.errors import NoAnswerError, StorageError
from fedmon.common.ids import new_id
from fedmon.common.wire.messages import Ack
from fedmon.common.wire.runs import JobState, JobStatus, Stop
from fedmon.node.owner.control import DaemonNotRunningError, call_daemon
from fedmon.node.runs import confinement
from fedmon.node.runs.folder import EVENTS, LOCK, STOP, JobFolder
from fedmon.node.runs.register import JobRegister
from fedmon.node.runs.sandbox import bubblewrap, landlock
from tests.node.owner.owner_desks import desk_of, done
from tests.node.runs.kept_jobs import plan_of
from tests.node.runs.run_desks import PLAN, Bench, bench, digest, run
from tests.support.energy_tree import EnergyTree
from tests.support.envelopes import envelope
from tests.support.node_process import NodeProcess, plain_environment, write_node_folder
from tests.support.requirements import require
from tests.support.shell_here import document_here
from tests.support.waiting import has_ended, wait_until

WAITS = plan_of("""
    context.report(loss=1.0)
    time.sleep(60)
""")
REPORTS = WAITS.replace(b"time.sleep(60)", b"[(time.sleep(0.1), context.report(loss=0.5)) for _ in range(4)]")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("node") / "n"
    with bench(folder, runs={"max_jobs": 4}) as opened:
        yield opened


MANY = WAITS.replace(b"time.sleep(60)", b"[context.report(loss=0.5) for _ in range(400)]")
LARGE = MANY + b"        return {'text': 'x' * 75_000}\n"
FLOOD = WAITS.replace(
    b"time.sleep(60)",
    b"""many = {f"n{at}": at for at in range(100)}
        [context.report(**many) for _ in range(40)]
        time.sleep(1)
        context.report(last=1)""",
)


def begun(node: Bench, source: bytes = WAITS) -> str:
    """Begin a job that waits, and return its id once it has reported."""
    job_id = node.begin(source)
    node.wait(lambda: node.runs._active[job_id].job.scalars, what="a report of the plan")
    return job_id


def test_the_same_job_asked_for_again_is_told_as_it_stands_and_starts_nothing(node: Bench) -> None:
    # given a job that has run
    sha256, dataset_id, job_id = node.approve(), node.offer(), new_id()
    first = node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id))
    outcome = node.over(job_id)

    # when it is asked for under another request id, by somebody else, and for something else
    assert node.owner("run-stop", job_id=job_id)["run"]["state"] == "succeeded"
    again = node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id))
    stranger = node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id, by="bob"))
    other = node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id, arguments={"rate": 2}))
    node.work()

    # then it is told, refused and refused
    assert (first["job"]["state"], again["job"]["state"]) == ("starting", "succeeded")
    assert outcome["result"]["json"] == '{"rows":3}'
    assert [each["code"] for each in (stranger, other)] == ["refused", "refused"]
    assert stranger["reason"] == other["reason"]
    for event, times in (("run", 1), ("run-outcome", 1), ("run-stop", 0)):
        assert [line["job"] for line in node.audit(event)].count(job_id) == times


def test_the_news_of_a_job_wait_for_the_worker_only_once(tmp_path: Path) -> None:
    with bench(tmp_path / "n") as node:  # where no other job has ended
        node.work()

        node.is_full = True  # the news that it cannot take are told with the next
        job_id = node.begin(REPORTS)
        wait_until(lambda: node.refused, what="the first news")
        node.is_full = False
        wait_until(node.files(job_id).ending, what="the end of the plan")
        wait_until(lambda: node.handed_over, what="the news")
        waiting = len(node.handed_over)
        outcome = node.over(job_id)

    assert (waiting, outcome["job"]["scalars"]) == (1, 5)


def test_jobs_of_others_cannot_be_seen_or_stopped(node: Bench) -> None:
    # given a job of alice
    job_id = begun(node)

    # when bob asks about it, stops it, and stops one that is not there
    seen = node.ask(JobStatus(job_id=job_id, **envelope("bob")))
    stopped = node.ask(Stop(job_id=job_id, **envelope("bob")))
    absent = node.ask(Stop(job_id="absent", **envelope("bob")))
    listed = node.ask(JobStatus(**envelope("bob")))

    # then the answers are the same, and it goes on until alice stops it
    assert stopped["reason"] == absent["reason"].replace("absent", job_id)
    assert (seen["jobs"], seen["count"]) == (listed["jobs"], listed["count"]) == ([], 0)
    assert node.ask(JobStatus(job_id=job_id, **envelope()))["jobs"][0]["state"] == "running"
    node.ask(Stop(job_id=job_id, **envelope()))
    outcome = node.over(job_id)
    assert outcome["job"]["state"] == "stopped"
    assert outcome["job"]["reason"].startswith("stopped by researcher alice")


def test_a_plan_rejected_while_no_daemon_runs_is_stopped_though_the_files_of_one_job_cannot_be_read(
    node: Bench,
) -> None:
    source = WAITS + b"# rejected\n"
    unreadable, *jobs = [begun(node, source) for _ in range(3)]
    place = node.path / "runs" / unreadable / STOP
    place.mkdir()

    done(node.desk(), "plan-decide", plan=digest(source), status="rejected")
    place.rmdir()

    assert {node.over(job_id)["job"]["state"] for job_id in jobs} == {"plan-rejected"}
    node.ask(Stop(job_id=unreadable, **envelope()))
    assert node.over(unreadable)["job"]["state"] == "stopped"


def test_a_plan_rejected_before_its_result_was_sent_sends_none(tmp_path: Path) -> None:
    with bench(tmp_path / "n") as node:
        job_id = node.begin(PLAN, node.offer())
        wait_until(node.files(job_id).ending, what="the end of the plan")
    with desk_of(tmp_path / "n") as desk:
        done(desk, "plan-decide", plan=digest(PLAN), status="rejected")

    with bench(tmp_path / "n") as node:
        outcome = node.over(job_id)

    assert (outcome["job"]["state"], outcome["result"]) == ("plan-rejected", None)


def test_the_energy_of_a_job_is_told_though_metrics_were_switched_off_since_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmon.node.measure.pipeline._UNREAD_SHARE", 0.99)  # a busy machine reads late
    tree = EnergyTree(tmp_path)
    tree.zone("intel-rapl:0", name="package-0", energy_uj=1_000_000)
    metrics = {"interval_s": 0.2, "sys_root": str(tree.sys)}
    with bench(tmp_path / "node", metrics=metrics, runs={"sandbox": "limits"}) as node:
        pipeline = node.local.pipeline
        pipeline.start()
        job_id = node.begin(WAITS)
        node.wait(lambda: (pipeline.publisher.last_seq(f"job-{job_id}") or 0) >= 3, what="readings of the job")
        node.ask(Stop(job_id=job_id, **envelope()))
        wait_until(node.files(job_id).ending, what="the end of the job")

        off = msgspec.structs.replace(node.settings.metrics, enabled=False)
        node.local.follow(msgspec.structs.replace(node.settings, metrics=off))

        assert node.outcome(job_id)["job"]["usage"]["energy_j"] is not None
        pipeline.stop()


def test_an_outcome_waits_until_it_is_acknowledged(node: Bench) -> None:
    outcome = node.over(node.begin(PLAN + b"# fails without data\n"))

    assert outcome["job"]["state"] == "failed"
    assert outcome["job"]["problem"] == {"type": "AttributeError", "message": None, "traceback": None}
    assert "NoneType" not in msgspec.json.encode(outcome).decode()
    assert outcome["id"] in [each.id for each in node.local.registers.outbox.unacked("alice")]
    node.receive(Ack(ids=[outcome["id"]], **envelope()))
    assert outcome["id"] not in [each.id for each in node.local.registers.outbox.unacked("alice")]


def test_an_outcome_stays_here_while_its_researcher_is_not_obeyed(node: Bench) -> None:
    # given a job whose researcher is taken off the list while it runs
    job_id = begun(node)
    notes = node.owner("policy-change", verb="deny", wish={"researchers": ["*"]})["notes"]
    try:
        # when it ends
        assert f"a job of alice goes on; stop it with: fedmon node runs stop {job_id}" in notes
        node.runs.stop_by_owner(job_id, by="owner")
        node.concluded(job_id)
        assert job_id not in [each["job"]["job_id"] for each in node.outcomes()]
    finally:
        node.owner("policy-change", verb="allow", wish={"researchers": ["*"]})

    # then it is told once he is obeyed again
    node.local.delivery.push()
    assert node.over(job_id)["job"]["state"] == "stopped-by-owner"


def test_each_outcome_brings_itself_and_not_all_that_wait_again(node: Bench) -> None:
    # given outcomes that wait for somebody, as many as there are jobs at a time
    jobs = [node.begin(PLAN + b"# fails without data as well\n", by="carol") for _ in range(4)]
    for job_id in jobs:
        node.over(job_id)

    sent = [each["job"]["job_id"] for each in node.outcomes() if each["researcher_id"] == "carol"]
    assert sorted(sent) == sorted(jobs)

    # when the connection is there again
    node.local.delivery.push()

    # then all of them are sent once more
    sent = [each["job"]["job_id"] for each in node.outcomes() if each["researcher_id"] == "carol"]
    assert sorted(sent) == sorted(2 * jobs)


def test_a_run_that_is_asked_before_the_node_knows_its_sandbox_waits_for_it(tmp_path: Path) -> None:
    # given a node that has not looked yet
    with bench(tmp_path / "n", is_ready=False) as node:
        sha256, dataset_id, jobs = node.approve(), node.offer(), [new_id(), new_id()]

        # when two jobs are asked for, one of which is stopped before the node has looked
        told = [node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id))["job"] for job_id in jobs]
        node.ask(Stop(job_id=jobs[1], **envelope()))
        node.local.workers.start()

        # then one runs and the other does not
        assert [(job["state"], job["sandbox"]) for job in told] == [("starting", None)] * 2
        ran, stopped = (node.over(job_id)["job"] for job_id in jobs)
        assert (ran["state"], ran["sandbox"] is None, stopped["state"]) == ("succeeded", False, "stopped")

        # and its level and start are in its files, for a node that is killed before it has saved them
        kept = node.files(jobs[0])
        started, ending = kept.started(), kept.ending()
        assert started is not None
        assert ending is not None
        assert (started.sandbox, ending.sandbox, ending.started) == (ran["sandbox"], ran["sandbox"], started.t)


def test_a_run_that_waits_for_a_sandbox_ends_when_the_owner_switches_runs_off(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False) as node:
        job_id = node.begin()
        off = msgspec.structs.replace(node.settings.runs, enabled=False)
        node.runs.follow(msgspec.structs.replace(node.settings, runs=off))

        assert node.over(job_id)["job"]["state"] == "not-started"


def test_a_run_that_waited_for_a_sandbox_in_vain_is_not_started(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, runs={"python": "/bin/false"}) as node:
        job_id = node.begin()
        node.local.workers.start()

        job = node.over(job_id)["job"]

    assert (job["state"], "confine plans at level 'none'" in job["reason"]) == ("not-started", True)


def test_a_node_killed_while_it_tries_its_sandbox_leaves_no_files(tmp_path: Path) -> None:
    # given a node that is killed during a trial
    folder = write_node_folder(tmp_path / "hospital", runs={})
    temporary, trial = tmp_path / "tmp", folder / "trial"
    temporary.mkdir()
    with NodeProcess(folder, environ=plain_environment(TMPDIR=str(temporary))) as node:

        def in_a_trial() -> bool:
            if list(trial.glob(f"*/{LOCK}")):
                return True
            if "plans run at level" in node.log():  # it ended between two looks
                node.kill()
                node.output.unlink()
                node.start()
            return False

        wait_until(in_a_trial, what="a trial")
        node.kill()

        # when it is started again
        node.start()

        def sandbox() -> object:
            live = document_here("node", "status", "--dir", folder)["live"]
            return live and live["sandbox"]

        wait_until(sandbox, what="the sandbox")

        # then nothing of the trial is left
        assert (list(temporary.iterdir()), trial.exists()) == ([], False)


def test_states_that_a_full_disk_did_not_take_are_written_by_the_next_save(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False) as node:
        jobs = [node.begin(WAITS) for _ in range(2)]
        for job_id in jobs:
            node.runs._active[job_id].change(scalars=7)
        execute, written = node.local.registers.database.execute, JobRegister(node.local.registers.database)
        execute(
            f"CREATE TEMP TRIGGER full BEFORE UPDATE ON main.runs WHEN NEW.job_id = '{jobs[1]}' "
            "BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(StorageError):
            node.runs.register.save()
        for register, scalars in ((node.runs.register, 7), (written, 0)):
            assert [record.job.scalars for record in register.going_on()] == [scalars, scalars]

        execute("DROP TRIGGER full")
        node.runs.register.save()

        assert [record.job.scalars for record in written.going_on()] == [7, 7]


def test_a_damaged_record_costs_no_other_job(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False) as node:
        damaged, sound = (node.begin(WAITS) for _ in range(2))
        node.local.registers.database.execute("UPDATE runs SET job = '{}' WHERE job_id = ?", (damaged,))

        assert [record.job.job_id for record in node.runs.register.going_on()] == [sound]
        with pytest.raises(StorageError, match=f"the record of job {damaged} is damaged"):
            node.runs.register.find(damaged)


def test_a_node_of_another_wire_tries_no_sandbox(tmp_path: Path) -> None:
    with bench(tmp_path / "n", is_ready=False, node={"wire": "fedbiomed4"}) as node:
        node.work()
        assert node.local.workers._waiting["sandbox"].empty()


def test_a_daemon_killed_before_the_start_leaves_a_job_that_did_not_start(tmp_path: Path) -> None:
    # given a node that dies between the commit and the start: what comes after the commit never happens
    job_id = new_id()
    with bench(tmp_path / "n") as node:
        sha256 = node.approve(WAITS, "waits")
        with node.local.registers.database.transaction():
            node.runs.start(run(sha256, job_id=job_id))
            node.local.registers.database._after_commit.clear()

    # when the next one begins
    with bench(tmp_path / "n") as node:
        outcome = node.over(job_id)

        # then the job is over, and the same request does not bring it back
        assert (outcome["job"]["state"], outcome["job"]["started"]) == ("not-started", None)
        assert node.ask(run(sha256, job_id=job_id))["job"]["state"] == "not-started"


def test_a_job_whose_folder_was_removed_is_lost_and_nothing_of_it_runs(node: Bench) -> None:
    job_id = begun(node)
    folder = node.files(job_id)
    started = folder.started()
    shutil.rmtree(folder.path)

    assert node.over(job_id)["job"]["state"] == "lost"
    assert started is not None
    wait_until(lambda: has_ended(started.pid), what="the end of the plan")


def test_a_new_daemon_goes_on_with_a_job_and_takes_the_end_of_another(tmp_path: Path) -> None:
    # given a node that stops while two jobs run, one of which ends before the next node begins
    with bench(tmp_path / "n") as node:
        goes_on, ends = begun(node), begun(node)
        reports = len(node.scalars())
    folder = JobFolder(tmp_path / "n" / "runs" / ends)
    assert folder.stop(JobState.STOPPED, "asked to end")
    wait_until(folder.ending, what="the ending")
    events = folder.path / EVENTS
    kept = events.rename(events.with_name("kept"))
    events.mkdir()

    # when the next one begins, which cannot read the files of one of them at first
    with bench(tmp_path / "n") as node:
        node.work()
        events.rmdir()
        kept.rename(events)

        # then it takes the one, goes on with the other, and tells no scalar twice
        assert node.over(ends)["job"]["state"] == "stopped"
        assert node.ask(JobStatus(job_id=goes_on, **envelope()))["jobs"][0]["state"] == "running"
        assert (reports, node.scalars()) == (2, [])
        node.runs.stop_by_owner(goes_on, by="owner")
        assert node.over(goes_on)["job"]["state"] == "stopped-by-owner"


def test_a_new_daemon_stops_a_job_whenever_its_owner_asks(tmp_path: Path) -> None:
    with bench(tmp_path / "n") as node:
        job_id = begun(node)

    def asked() -> object:
        with contextlib.suppress(DaemonNotRunningError, NoAnswerError):
            return call_daemon(tmp_path / "n", "run-stop", job_id=job_id)
        return None

    with NodeProcess(tmp_path / "n") as process:
        wait_until(asked, what="the moment in which it takes the first commands")
        ending = wait_until(JobFolder(tmp_path / "n" / "runs" / job_id).ending, what=process.log)

    assert ending.state is JobState.STOPPED_BY_OWNER


def test_scalars_that_come_at_once_fit_into_their_message(node: Bench) -> None:
    job_id = node.begin(MANY, group="g" * 256)
    wait_until(node.files(job_id).ending, what="the end of the plan")

    assert node.over(job_id)["job"]["scalars"] == 401
    assert len([scalar for scalar in node.scalars() if scalar["job_id"] == job_id]) > 100


def test_scalars_beside_a_large_result_come_with_the_next_question(node: Bench) -> None:
    job_id = node.begin(LARGE)
    assert node.over(job_id)["job"]["state"] == "succeeded"

    first, *others = (
        node.ask(JobStatus(job_id=job_id, result=result, scalars_from=number, **envelope()))
        for result, number in ((True, 0), (False, 399), (False, 0), (False, 0))
    )

    assert (len(first["result"]["json"]), first["scalars"]) == (75_011, [])
    assert [(told["result"], len(told["scalars"])) for told in others] == [(None, 401 - at) for at in (399, 0, 0)]


def test_scalars_that_come_too_fast_are_counted(node: Bench) -> None:
    job_id = node.begin(FLOOD, by="dave")
    node.over(job_id)

    told = [scalar for scalar in node.scalars() if scalar["job_id"] == job_id]
    assert told[-1]["values"] == {"last": 1.0}
    assert told[-1]["dropped"] == 100 * (42 - len(told))


def test_what_runs_without_a_record_is_stopped_and_removed(tmp_path: Path) -> None:
    # given a job whose register was lost
    with bench(tmp_path / "n") as node:
        job_id = begun(node)
    for file in (tmp_path / "n").glob("state.sqlite*"):
        file.unlink()

    # when a node begins with a new one, beside a file that is of no job
    (tmp_path / "n" / "runs" / "stray").write_text("")
    folder = JobFolder(tmp_path / "n" / "runs" / job_id)
    with bench(tmp_path / "n"):
        wait_until(lambda: not folder.is_alive(), what="the end of a job that nobody knows")

    # then nothing of it is left, and of its files neither once the next one has begun
    assert folder.kill_leftovers() == []
    with bench(tmp_path / "n"):
        assert [path.name for path in folder.path.parent.iterdir()] == ["stray"]


def test_old_jobs_lose_their_files_and_keep_their_ids(node: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sha256, dataset_id, job_id = node.approve(), node.offer(), new_id()
    request = run(sha256, job_id=job_id, dataset_id=dataset_id)
    node.ask(request)
    node.over(job_id)
    assert node.files(job_id).result.exists()
    stuck = node.begin(PLAN, dataset_id)
    node.over(stuck)
    (node.path / "runs" / stuck).rename(node.path / "elsewhere")
    (node.path / "runs" / stuck).write_text("no folder")

    wait_until(lambda: not node.files(job_id).is_alive(), what="the end of its keeper")
    for _ in range(2):
        node.runs.standing.purge(before=seconds_from_now(1.0))

    assert f"files of job {stuck} are not removed: " in caplog.text
    assert not (node.path / "runs" / job_id).exists()
    told = node.ask(JobStatus(job_id=job_id, result=True, scalars_from=0, **envelope()))
    assert (told["jobs"][0]["state"], told["result"], told["scalars"]) == ("succeeded", None, [])
    assert node.ask(run(sha256, job_id=job_id, dataset_id=dataset_id))["job"]["state"] == "succeeded"


def test_a_sandbox_that_no_longer_works_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node whose plans run on a Python that its owner replaces
    require(bubblewrap.program() or landlock.abi(), "no level of confinement that hides files works on this machine")
    for name in ("old", "new"):
        venv.create(tmp_path / name, symlinks=True)
    (tmp_path / "plans").symlink_to("old")
    python = str(tmp_path / "plans" / "bin" / "python")
    with bench(tmp_path / "n", runs={"python": python}) as node:
        cells = node.offer()
        assert node.over(node.begin(PLAN, cells))["job"]["state"] == "succeeded"
        (tmp_path / "plans").unlink()
        (tmp_path / "plans").symlink_to("new")
        shutil.rmtree(tmp_path / "old")
        for _ in range(2):  # so soon after a look there is no other
            assert node.over(node.begin(PLAN, cells))["job"]["state"] == "not-started"
        monkeypatch.setattr(confinement, "LOOK_AGAIN_S", 0.0)

        # when a job cannot be started, then the next one runs
        assert node.over(node.begin(PLAN, cells))["job"]["state"] == "not-started"
        assert node.over(node.begin(PLAN, cells))["job"]["state"] == "succeeded"

        # when none can be started, then the owner is told why
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        node.runs.launcher._end_process()
        assert node.over(node.begin(PLAN, cells))["job"]["state"] == "not-started"
        node.wait(lambda: "cannot start the launcher" in str(node.runs.confinement.found), what="the reason")
