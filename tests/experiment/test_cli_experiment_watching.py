"""A run that another process has: watched, shown and, when that process died, resumed, all by its journal."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from fedmon.common.errors import FolderInUseError, StorageError
from fedmon.experiment import ExperimentController
from fedmon.experiment.check.status import followed
from fedmon.experiment.cli.runs import MANY
from fedmon.experiment.conditions import StateCondition
from fedmon.experiment.events import Became, ConditionAdded, DeployAsked, Registered, VerbBegan, WaitsFor
from fedmon.experiment.journal import NAME, Follower, Journal
from fedmon.experiment.states import ResourceAction, ResourceState
from tests.experiment.own_types import plain
from tests.support.shell import begun, limit_files
from tests.support.shell_here import fedmon_here
from tests.support.waiting import wait_until

FILE = """
[experiment]
id = "trial"
[[resource]]
name = "north"
type = "local::Process"
[resource.attributes]
command = ["cat", "{gate}"]
[[resource]]
name = "then"
type = "local::Process"
start = ["after north is STOPPED"]
[resource.attributes]
command = ["true"]
"""


def shown(run_dir: Path, verb: str = "show") -> Any:
    return json.loads(fedmon_here("experiment", verb, run_dir, "--json").stdout)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[Popen[str], Path]]:
    """Run the experiment in another process; yield it, with the folder of the run, once resource 1 runs.

    Resource 1 runs until something is written to the named pipe ``gate`` in ``folder``.
    """
    os.mkfifo(folder / "gate")
    (folder / "trial.toml").write_text(FILE.format(gate=folder / "gate"))
    words = ("experiment", "run", str(folder / "trial.toml"), "--dir", str(folder), *options)
    process = begun(*words, stdout=PIPE, stderr=PIPE)

    def run_dir() -> Path | None:
        assert process.poll() is None
        found = [path.parent for path in folder.glob(f"trial/*/{NAME}")]
        return found[0] if found and "STARTED" in shown(found[0])["counts"] else None

    try:
        yield process, wait_until(run_dir, 90.0, what="a run")
    finally:
        process.kill()
        process.communicate()
        os.close(os.open(folder / "gate", os.O_RDWR))  # which ends resource 1, if it still runs


def test_a_run_of_another_process_is_watched_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path) as (process, run_dir):
        found = shown(run_dir)
        assert (found["status"], found["process"]) == ("running", process.pid)
        assert found["blocker"] == "1 resource waits for resource 1 (north), which is STARTED: it runs"
        assert (found["resources"][1]["action"], found["resources"][1]["waits_for"]) == ("start", [1])

        with begun("experiment", "watch", str(run_dir), stdout=PIPE) as watching:
            assert watching.stdout is not None
            before = [next(line for line in watching.stdout if " STARTED 1 north (local::Process)" in line)]
            (tmp_path / "gate").write_text("end")
            after, _ = watching.communicate(timeout=60)

        assert (watching.returncode, process.wait(60)) == (0, 0), (before, after)
    assert " STOPPED 1 north (local::Process)" in after
    assert "ended, and everything was released" in after


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_release_everything(tmp_path: Path, number: int, code: int) -> None:
    with running(tmp_path) as (process, run_dir):
        assert fedmon_here("experiment", "watch", run_dir, "--for", "0.1").returncode == 6

        process.send_signal(number)

        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "interrupted before its end; everything was released" in err
    assert "STARTED, released" in out or "STOPPED, released" in out
    assert (shown(run_dir)["status"], shown(run_dir)["counts"]) == ("failed", {"RELEASED": 2})


def test_a_run_whose_end_a_full_disk_keeps_out_of_the_journal_has_failed(tmp_path: Path) -> None:
    with running(tmp_path, "--json") as (process, run_dir):
        limit_files(process.pid, (run_dir / NAME).stat().st_size)

        with (tmp_path / "gate").open("r+b", buffering=0) as gate:  # waits for no reader, as "w" does
            gate.write(b"go\n")
            wait_until(lambda: process.poll() is not None or not select.select([gate], [], [], 0)[0])

        out, _ = process.communicate(timeout=60)
    told = json.loads(out)
    assert (process.returncode, told["well"], told["status"]) == (1, False, "failed")
    assert (told["level"], told["counts"]) == ("EC_FAILURE", {"RELEASED": 2})
    assert "cannot write to the journal" in told["level_reason"]


def test_a_run_that_is_kept_is_released_at_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, "--keep") as (process, run_dir):
        assert process.stderr is not None
        (tmp_path / "gate").write_text("go\n")
        told = process.stderr.readline()
        kept = shown(run_dir)["counts"]

        process.send_signal(signal.SIGINT)

        out, err = process.communicate(timeout=60)
    assert told == "fedmon: the run is over; nothing is released until Ctrl-C\n"
    assert kept == {"STOPPED": 2}
    assert (process.returncode, err) == (0, "")
    assert "ended, and everything was released" in out
    assert shown(run_dir)["counts"] == {"RELEASED": 2}


def test_a_run_whose_process_was_killed_is_said_to_be_left_and_can_be_resumed(tmp_path: Path) -> None:
    with running(tmp_path) as (process, run_dir):
        refused = fedmon_here("experiment", "reconnect", run_dir)
        assert (refused.returncode, refused.stdout) == (FolderInUseError.exit_code, "")

        process.kill()
        process.wait(60)

        left = fedmon_here("experiment", "watch", run_dir)
        assert left.returncode == 1
        assert "interrupted: no process on this machine runs it" in left.stdout
        assert shown(run_dir, "report")["status"] == "left"
        (tmp_path / "gate").write_text("go\n")
        words = shlex.split(left.stdout.split("`")[1])  # as printed
        resumed = fedmon_here(*words[1:], "--json")
    assert resumed.returncode == 0
    assert [one["state"] for one in json.loads(resumed.stdout)["resources"]] == ["RELEASED"] * 2


def test_a_journal_is_read_as_far_as_it_is_whole_and_again_if_it_became_shorter(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        follower = Follower(tmp_path)
        journal.write([Registered(t=1.0, guid=1, rtype="x"), Became(t=2.0, guids=(1,), state=ResourceState.READY)])
        follower.look()
        assert follower.run.state.resources[1].state is ResourceState.READY

        with journal.path.open("ab") as file:
            file.write(b'{"event":"became","t":3.0,"gui')
        follower.look()
        assert [state for state, _ in follower.run.state.resources[1].times] == [ResourceState.READY]
        os.truncate(journal.path, len(journal.path.read_bytes().splitlines(keepends=True)[0]))
        follower.look()
        assert follower.run.state.resources[1].times == ()

        child = os.fork()
        if child == 0:  # a fork does not have the journal
            try:
                journal.write([])
            except StorageError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    journal.path.unlink()
    with pytest.raises(StorageError, match="cannot read the journal"):
        follower.look()


def test_a_run_that_ends_while_its_journal_is_read_is_shown_as_ended(ec: ExperimentController) -> None:
    plain(ec, 1)

    shown = followed(Follower(ec.run_dir, on_event=lambda _event: ec.shutdown()))

    assert (shown.status, shown.process, shown.counts) == ("ended", None, {"RELEASED": 1})


def test_a_run_of_many_shows_delays_and_failures_and_says_how_many_more_there_are(ec: ExperimentController) -> None:
    plain(ec, MANY + 1)
    ec.register_condition(2, "START", 1, "STARTED", "10m")
    ec.deploy([1, 2])
    assert ec.wait_started(1, timeout=60)
    ec.set(MANY + 1, "critical", False)
    ec.get_resource(MANY + 1).fail("no power")

    told = fedmon_here("experiment", "show", ec.run_dir).stdout

    assert "start in 9m" in told.replace(" min", "m"), told
    assert f"failed: {MANY + 1} (test::Plain), not critical: no power" in told
    assert "... 1 more, see --json" in told


def test_changes_are_told_in_their_order(tmp_path: Path) -> None:
    moves = [(1, ResourceState.STARTED), (1, ResourceState.STOPPED), (2, ResourceState.STARTED)]
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=1.0, guid=guid, rtype="x") for guid in (1, 2)])
        journal.write([Became(t=2.0 + at, guids=(guid,), state=state) for at, (guid, state) in enumerate(moves)])

        told = fedmon_here("experiment", "watch", tmp_path, "--for", "0.1").stdout

    changes = [line.split()[1:] for line in told.splitlines() if line.endswith("(x)")]
    assert changes == [[state.name, str(guid), "(x)"] for guid, state in moves]


def test_a_blocker_is_told_again_if_it_waits_for_something_else(tmp_path: Path) -> None:
    condition, now = StateCondition(number=1, group=(1,), state=ResourceState.READY), time.time()
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=now, guid=guid, rtype="x", timeouts={"deploy": 1e10}) for guid in (1, 2)])
        journal.write([ConditionAdded(t=now, guids=(2,), action=ResourceAction.DEPLOY, condition=condition)])
        journal.write([DeployAsked(t=now, guids=(1, 2), group=1), VerbBegan(t=now, guid=1, verb="deploy")])
        same = fedmon_here("experiment", "watch", tmp_path, "--for", "0.6").stdout
        assert same.count("blocker: ") == 2  # one of them at the end, although the text has other durations each time

        with begun("experiment", "watch", str(tmp_path), stdout=PIPE) as watching:
            assert watching.stdout is not None
            told = (line for line in watching.stdout if line.startswith("blocker: "))
            assert "its deploy is running; deploy has run" in next(told)
            journal.write([WaitsFor(t=now, guid=1, what="node north to answer")])

            assert "its deploy is running; it waits for node north to answer; deploy has run" in next(told)
            watching.kill()


def test_many_changes_at_once_take_a_line_for_each_state(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        journal.write([Registered(t=1.0, guid=guid, rtype="x") for guid in range(1, MANY + 1)])
        for guid in range(1, MANY + 1):
            for state in (ResourceState.READY, ResourceState.STARTED):
                journal.write([Became(t=1.0 + guid, guids=(guid,), state=state)])

        told = fedmon_here("experiment", "watch", tmp_path, "--for", "0.1").stdout

    lines = [line.split() for line in told.splitlines() if line.endswith(" more")]
    assert [line[1] for line in lines] == ["READY", "STARTED"]


def test_only_the_reason_of_the_resource_that_another_one_needs_is_left_out(tmp_path: Path) -> None:
    reasons = ["boom", "it needs resource 1 (x), which is FAILED: boom", "a: boom"]
    with Journal(tmp_path / NAME) as journal:
        for guid, reason in enumerate(reasons, 1):
            journal.write([Registered(t=1.0, guid=guid, rtype="x")])
            journal.write([Became(t=2.0, guids=(guid,), state=ResourceState.FAILED, reason=reason)])

        told = fedmon_here("experiment", "show", tmp_path).stdout

    lines = [line.partition(" (x): ")[2] for line in told.splitlines() if line.startswith("failed: ")]
    assert lines == ["boom", "it needs resource 1 (x), which is FAILED", "a: boom"]


def test_a_damaged_line_of_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"event":"became"}\n')

    done = fedmon_here("experiment", "show", tmp_path)

    assert done.returncode == 1
    assert "line 1 of" in done.stderr
