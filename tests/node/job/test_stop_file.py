"""The stop file: obeyed or not, and replaced when it is of an earlier run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedmon.node.job.end import StopFile
from fedmon.node.job.hosts import Membership
from fedmon.node.job.layout import JobFolder
from tests.node.job.tool_runs import FEDMON, environment, left, recordings
from tests.support.waiting import wait_until


def running(path: Path, since: float = 0.0) -> StopFile:
    file = StopFile(path)
    file.begin(lambda: since)
    return file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("FINISHED", "ipc: it says FINISHED"), (" finished \n", "ipc: it says FINISHED"), ("", "ipc: it is empty"),
        (None, "ipc: it was removed"), ("INPROGRESS\n", None), ("FINI", None), ("x" * 10_000, None),
    ],
)  # fmt: skip
def test_finished_nothing_or_no_file_stops_and_any_other_text_does_not(
    tmp_path: Path, text: str | None, reason: str | None
) -> None:
    file = running(tmp_path / "ipc")
    assert (file.check(), file.path.read_text()) == (None, "INPROGRESS\n")
    assert list(tmp_path.iterdir()) == [file.path]
    if text is None:
        file.path.unlink()
    else:
        file.path.write_text(text)

    found = [file.check(), file.check()]

    # A file is empty for a moment while a shell writes into it.
    assert found == [None if reason == "ipc: it is empty" else reason, reason]


@pytest.mark.parametrize(("since", "reason"), [(99.0, "ipc: it says FINISHED"), (101.0, None)])
def test_an_older_stop_is_replaced_and_a_newer_one_is_obeyed(tmp_path: Path, since: float, reason: str | None) -> None:
    path = tmp_path / "ipc"
    path.write_text("FINISHED")
    os.utime(path, (100.0, 100.0))

    assert running(path, since).check() == reason


def test_a_pipe_in_the_place_of_the_stop_file_holds_up_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "ipc")
    run = threading.Thread(target=running, args=[tmp_path / "ipc"], daemon=True)
    run.start()
    run.join(10.0)

    assert not run.is_alive()
    assert "ipc cannot be used: not a regular file: it cannot stop the measuring" in caplog.text


@pytest.mark.parametrize("earlier", [None, "job-metrics-4711", "first-run"], ids=["first", "again", "under a prefix"])
def test_a_stop_from_before_a_run_is_that_of_an_earlier_run_if_its_host_had_one(
    tmp_path: Path, earlier: str | None
) -> None:
    if earlier is not None:
        with Membership(JobFolder(tmp_path, earlier, "4711"), host="n1", machine="before a reboot") as before:
            before.begin()
            before.end()
    stop = time.time()
    with Membership(JobFolder(tmp_path, None, "4711"), host="n1") as host, subprocess.Popen(["sleep", "60"]) as process:
        host.begin()
        meant = host.run_start(process.pid)
        process.kill()

    assert (stop >= meant) == (earlier is None)
    assert meant <= time.time()


def test_a_job_that_was_done_before_its_monitor_came_is_ended_and_the_next_run_goes_on(tmp_path: Path) -> None:
    # The kernel counts the start of a process in hundredths of a second.
    tick = f"'{sys.executable}' -c pass"
    script = f"{tick}; echo FINISHED > .ipc-4711; {tick}; '{FEDMON}' job -q -i 0.2"
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "mpirun").chmod(0o755)
    environ = environment(FEDMON_JOB_ID="4711")

    first = subprocess.run([tmp_path / "mpirun"], cwd=tmp_path, env=environ, capture_output=True, timeout=30)
    (recording,) = recordings(tmp_path)
    reason = left(recording).job["reason"]
    assert not (tmp_path / ".ipc-4711").exists()
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environ) as second:
        wait_until(
            lambda: (tmp_path / ".ipc-4711").exists() and (tmp_path / ".ipc-4711").read_text() == "INPROGRESS\n",
            what="the second run",
        )
        (tmp_path / ".ipc-4711").write_text("FINISHED\n")
        second.wait(30)

    assert (first.returncode, first.stdout, first.stderr, second.returncode) == (0, b"", b"", 0)
    assert reason == ".ipc-4711: it says FINISHED"
    assert not (tmp_path / ".ipc-4711").exists()


def test_the_stop_file_stays_while_a_host_lives_or_is_expected_and_goes_when_all_are_over(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, None, "4711")
    with Membership(folder, host="n1", expected=2) as first, Membership(folder, host="n2", expected=2) as second:
        first.begin()
        second.begin()
        assert first.end() is False
        assert not first.is_over()
        assert second.end() is True
        assert second.done() is False
        assert second.is_over()


def test_the_stop_file_stays_while_the_job_is_measured_under_another_prefix(tmp_path: Path) -> None:
    one, two = (Membership(JobFolder(tmp_path, prefix, "4711[1]"), host="n1") for prefix in ("one", "two"))
    with one, two:
        one.begin()
        two.begin()
        assert one.end()
        assert not one.done()
        assert not one.is_over()
        assert two.end()
        assert not two.done()
        assert two.is_over()
