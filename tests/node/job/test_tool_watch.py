"""`fedmon job` beside a job that runs already: how it ends, and what it leaves."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedmon.common.store.damage import DamagedFileError
from fedmon.common.store.recording import Recording
from tests.node.job.tool_runs import (
    FEDMON,
    begin,
    beside,
    fitting,
    is_measured,
    left,
    logs,
    recordings,
    start,
    the,
    wait_measured,
)
from tests.node.jobs_real import Program
from tests.support.environment import plain_environment
from tests.support.requirements import require
from tests.support.waiting import wait_until


def test_a_run_ends_with_the_last_process_of_the_job(tmp_path: Path, program: Program) -> None:
    with start(tmp_path, "-i", "300", "--pid", str(program.pid), environ=plain_environment()) as tool:
        wait_measured(tmp_path)
        program.end()
        said = tool.communicate(timeout=60)  # long before the next sample is due

    found = the(tmp_path)
    assert (tool.returncode, said) == (0, (b"", b""))
    assert (found.job["method"], found.job["confidence"]) == ("pids", "certain")
    assert found.job["reason"] == "all processes of the job have ended"
    assert found.columns["job_processes"][-1] == 0
    assert found.job["ended"] > found.job["started"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_in_a_complete_recording_and_in_what_was_asked_for(
    tmp_path: Path, program: Program, number: signal.Signals
) -> None:
    exports = ("-e", "csv") if number is signal.SIGTERM else ()
    with start(tmp_path, *beside(program), *exports) as tool:
        wait_measured(tmp_path)
        # The first reading is one of all memory, too, and the next one comes after 10 s.
        wait_until(lambda: the(tmp_path).samples.get("host", 0) >= 3)
        tool.send_signal(number)
        tool.wait(60)

    assert tool.returncode == 0
    assert f"received {number.name}" == the(tmp_path).job["reason"]
    assert bool(exports) == bool([*tmp_path.glob("*/*.csv")])
    # The job goes on, and its last sample has its memory.
    assert program.tell("burn 0") == ""
    (path,) = recordings(tmp_path)
    with Recording(path, read_only=True) as recording:
        *_, last = (batch for batch in recording.read() if batch.stream.startswith("job-"))
    assert last.columns["job_memory_pss_bytes"][-1]
    assert last.columns["job_memory_uss_bytes"][-1]


@pytest.mark.parametrize("begun", ["hosts/*/*.begin", "logs/*/*.log"])
def test_a_signal_while_the_run_begins_ends_it_with_a_recording(tmp_path: Path, program: Program, begun: str) -> None:
    with start(tmp_path, *beside(program)) as tool:
        wait_until(lambda: [*tmp_path.glob(f"*/{begun}")])
        tool.terminate()
        tool.wait(60)

    assert tool.returncode == 0
    assert the(tmp_path).job["reason"] == "received SIGTERM"


def test_a_job_that_cannot_be_found_still_leaves_a_recording_of_its_host(tmp_path: Path) -> None:
    with start(tmp_path, "--pid", "4194304") as tool:
        said, complained = tool.communicate(timeout=60)

    found = the(tmp_path)
    assert (tool.returncode, said) == (3, b"")
    assert "process 4194304 not found on this host" in found.job["reason"]
    assert "method" not in found.job
    assert b"process 4194304 not found on this host" in complained
    assert "process 4194304 not found" in logs(tmp_path)
    assert found.samples["host"] >= 2


def test_without_any_job_nothing_is_measured_and_the_ways_to_name_one_are_told(tmp_path: Path) -> None:
    with start(tmp_path / "saved", "-i", "1") as tool:
        said, complained = tool.communicate(timeout=60)

    assert (tool.returncode, said) == (3, b"")
    assert complained.startswith(b"fedmon: no job found: ")
    assert all(way in complained for way in (b"'fedmon job -- COMMAND'", b"--pid", b"FEDMON_JOB_ID"))
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_full_disk_costs_nothing_that_finds_room_in_memory_until_the_end(tmp_path: Path, *, is_freed: bool) -> None:
    require(os.geteuid() == 0 and shutil.which("mount"), "mounting a small disk takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=True)
    try:
        gate = tmp_path.with_suffix(".gate")
        until_gate = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.1; done"]
        with start(tmp_path, "-i", "0.2", "-c", "0.2", command=until_gate) as tool:
            wait_measured(tmp_path)
            full = tmp_path / "full"
            with full.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            wait_until(lambda: "the disk is full" in logs(tmp_path))
            if is_freed:
                os.truncate(full, 0)
            gate.touch()
            said, complained = tool.communicate(timeout=60)

        found = the(tmp_path)
        assert (tool.returncode, said) == (0, b"")
        if is_freed:
            assert complained == b""
        else:
            assert b" samples could not be written and are lost; see " in complained
        (path,) = recordings(tmp_path)
        with Recording(path, read_only=True) as recording:
            taken = {one.stream: one.last_seq + 1 for one in recording.extents()}
        assert taken == found.samples  # those of the time when the disk was full among them
        assert found.job["ended"] is not None  # the log of the closed recording leaves room for it
        assert is_freed != ("samples_lost" in found.document["tool"])
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def killed_at(folder: Path, pid: int, delays_s: list[float]) -> None:
    """Kill one run after each delay, and one that has recorded, and read what they left."""
    folders = [folder / str(number) for number in range(len(delays_s) + 1)]
    *runs, last = [begin(each, "-i", "0.2", "-c", "0.2", "--pid", str(pid)) for each in folders]
    began = time.monotonic()
    for run, delay_s in sorted(zip(runs, delays_s, strict=True), key=lambda pair: pair[1]):
        try:
            run.wait(max(0.0, began + delay_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.kill()
        run.communicate()
    try:
        wait_until(lambda: is_measured(folders[-1]) and the(folders[-1]).samples.get("host", 0) >= 2)
    finally:
        last.kill()
        last.communicate()
    for each in folders:
        for path in recordings(each):
            try:
                left(path)
            except DamagedFileError as error:
                if "it holds no recording" not in str(error):  # killed before its first commit, it holds nothing
                    raise
    assert the(folders[-1]).samples["host"] >= 2


def test_what_a_killed_run_recorded_can_be_read(tmp_path: Path, program: Program) -> None:
    killed_at(tmp_path, program.pid, [0.3, 0.6, 0.9, 1.4, 2.0])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_200_killed_runs_recorded_can_be_read(tmp_path: Path, program: Program) -> None:
    chance = random.Random(4)
    for number in range(50):
        killed_at(tmp_path / str(number), program.pid, [chance.uniform(0.1, 3.0) for _ in range(3)])


def test_a_naive_search_leaves_the_tool_itself_out(tmp_path: Path) -> None:
    script = (
        f"{FEDMON} job -q -i 0.2 -c 0.5 -d '{tmp_path}' & tool=$!; sleep 60 & other=$!; echo FINISHED > '{tmp_path}/x';"
        f" until [ -e '{tmp_path}/go' ]; do sleep 0.1; done; kill $tool; wait $tool; code=$?; kill $other; exit $code"
    )

    environ = plain_environment(FEDMON_JOB_ID=f"7-{os.getpid()}")
    with subprocess.Popen(["sh", "-c", script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        wait_measured(tmp_path)
        wait_until(lambda: 3 in the(tmp_path).columns.get("job_processes", ()))  # few samples under load
        (tmp_path / "go").touch()
        said = done.communicate(timeout=60)

    found = the(tmp_path)
    assert (done.returncode, said) == (0, (b"", b""))
    assert (found.job["method"], found.job["confidence"]) == ("environment", "medium")
    assert max(fitting(found.columns["job_processes"])) == 3  # the shell and both sleeps
