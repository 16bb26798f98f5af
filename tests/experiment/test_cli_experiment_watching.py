"""A run that another process has: watched, shown and, when that process died, taken up, all by its journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmon.common.errors import FolderInUseError, NotFoundError, StorageError
from fedmon.experiment.events import Became, Registered
from fedmon.experiment.journal import NAME, FileChanges, Follower, Journal, holder_of
from fedmon.experiment.states import ResourceState
from tests.support.node_process import plain_environment
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


def shell(*arguments: str) -> subprocess.Popen[str]:
    """Start a verb of `fedmon experiment` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmon", "experiment", *arguments],
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run the experiment in its own process; yield it, with the folder of the run, once resource 1 runs.

    Resource 1 runs until something is written to the named pipe ``gate`` in ``folder``.
    """
    os.mkfifo(folder / "gate")
    (folder / "trial.toml").write_text(FILE.format(gate=folder / "gate"))
    process = shell("run", str(folder / "trial.toml"), "--dir", str(folder))
    try:
        wait_until(lambda: len(list(folder.glob(f"trial/*/{NAME}"))) == 1, 20.0, what="a journal")
        (journal,) = folder.glob(f"trial/*/{NAME}")
        with Follower(journal.parent) as follower:
            while not any(one.state is ResourceState.STARTED for one in follower.state.resources.values()):
                assert process.poll() is None
                follower.wait(1.0)
                follower.look()
        yield process, journal.parent
    finally:
        process.kill()
        process.communicate()


def event(guid: int, state: ResourceState) -> Became:
    return Became(t=float(guid), guids=(guid,), state=state)


def test_a_run_of_another_process_is_watched_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path) as (process, run_dir):
        shown = json.loads(fedmon_here("experiment", "show", str(run_dir), "--json").stdout)
        assert (shown["status"], shown["process"]) == ("running", process.pid)
        assert shown["blocker"] == "1 resource waits for resource 1 (north), which is STARTED: it runs"
        assert (shown["resources"][1]["action"], shown["resources"][1]["waits_for"]) == ("start", [1])

        with shell("watch", str(run_dir)) as watching:
            assert watching.stdout is not None
            before = [next(line for line in watching.stdout if " STARTED 1 north (local::Process)" in line)]
            (tmp_path / "gate").write_text("end")
            after, _ = watching.communicate(timeout=30)

        assert (watching.returncode, process.wait(30)) == (0, 0), (before, after)
    assert " STOPPED 1 north (local::Process)" in after
    assert "ended, and everything was released" in after


def test_ctrl_c_releases_everything(tmp_path: Path) -> None:
    with running(tmp_path) as (process, run_dir):
        assert fedmon_here("experiment", "watch", str(run_dir), "--timeout", "0.1").returncode == 6

        process.send_signal(signal.SIGINT)

        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "ended before it was over; everything was released" in err
    assert "STARTED, released" in out or "STOPPED, released" in out
    shown = json.loads(fedmon_here("experiment", "show", str(run_dir), "--json").stdout)
    assert (shown["status"], shown["counts"]) == ("ended", {"RELEASED": 2})


def test_a_run_whose_process_was_killed_is_said_to_be_left_and_can_be_taken_up(tmp_path: Path) -> None:
    with running(tmp_path) as (process, run_dir):
        refused = fedmon_here("experiment", "reconnect", str(run_dir))
        assert (refused.returncode, refused.stdout) == (FolderInUseError.exit_code, "")

        process.kill()
        process.wait(10)

        left = fedmon_here("experiment", "watch", str(run_dir))
        assert left.returncode == 1
        assert "interrupted: no process on this machine runs it" in left.stdout
        assert json.loads(fedmon_here("experiment", "report", str(run_dir), "--json").stdout)["status"] == "left"
        (tmp_path / "gate").write_text("go\n")
        taken = fedmon_here("experiment", "reconnect", str(run_dir), "--json")
    assert taken.returncode == 0
    document = json.loads(taken.stdout)
    assert [one["state"] for one in document["resources"]] == ["RELEASED"] * len(document["resources"])


def test_who_holds_a_journal_is_known_without_touching_its_lock(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal:
        assert holder_of(journal.path) == os.getpid()
        with pytest.raises(FolderInUseError):
            Journal(journal.path)
    assert holder_of(tmp_path / NAME) is None
    assert holder_of(tmp_path / "nothing") is None


def test_a_wait_for_a_file_ends_when_it_changes_and_else_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    with FileChanges(path) as changes:
        assert not changes.wait(0.01)
        writer = threading.Thread(target=lambda: path.write_text("b"))
        writer.start()
        assert changes.wait(10.0)
        writer.join()


def test_a_follower_reads_what_is_whole_and_again_what_was_taken_back(tmp_path: Path) -> None:
    with Journal(tmp_path / NAME) as journal, Follower(tmp_path) as follower:
        journal.write([Registered(t=1.0, guid=1, rtype="x"), event(1, ResourceState.READY)])
        assert follower.look()
        assert follower.state.resources[1].state is ResourceState.READY
        assert not follower.look()

        with journal.path.open("ab") as file:
            file.write(b'{"event":"became","t":3.0,"gui')
        assert not follower.look()
        os.truncate(journal.path, len(journal.path.read_bytes().splitlines(keepends=True)[0]))
        follower.look()
        assert follower.state.resources[1].times == ()


def test_a_folder_without_a_run_and_a_line_that_is_no_event_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no run in"):
        Follower(tmp_path)
    (tmp_path / NAME).write_text('{"event":"became"}\n')
    with Follower(tmp_path) as follower, pytest.raises(StorageError, match=r"line 1 of .* is no event"):
        follower.look()
