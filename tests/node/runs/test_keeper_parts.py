"""The parts of a keeper: what is decided from what was seen, what is kept of events, and who is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.wire.runs import JobState
from fedmon.node.runs import supervision
from fedmon.node.runs.folder import ENDING, EVENTS, JobFolder, Limits, Logged, Reported, Verdict, remove_tree
from fedmon.node.runs.supervision import BURST, EventLog, Failure, ResultFile, Seen, decide, exceeded, size_of

CHECKS_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from fedmon.node.runs.supervision import ResultFile

result = ResultFile(Path(sys.argv[1]))
result.write(memoryview(b'{"a":[' + b"[]," * 400_000 + b"[]]}"))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
result.keep("json", None)
print(result.fault)
"""
State = Literal["failed", "invalid-result", "output-limit"]
LIMITS = Limits(cpu_s=10, wall_s=60, memory_bytes=2**30, processes=8, output_bytes=2**20, tmp_bytes=2**20)


def said(type_: str = "ValueError", message: str = "", trace: str = "", state: State = "failed") -> Failure:
    return Failure(state=state, reason="the plan raised", type=type_, message=message, traceback=trace)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        ({"exit_code": 0, "has_result": True}, JobState.SUCCEEDED),
        ({"exit_code": 0}, JobState.FAILED),
        ({"exit_code": 1, "has_result": True}, JobState.FAILED),
        ({"exit_code": -9, "has_result": True}, JobState.FAILED),
        ({"exit_code": 0, "has_result": True, "invalid": "no zip"}, JobState.INVALID_RESULT),
        ({"exit_code": 0, "has_result": True, "unkept": "No space left on device"}, JobState.FAILED),
        ({"exit_code": 0, "has_result": True, "broken": "junk"}, JobState.FAILED),
        ({"exit_code": 1, "said": said()}, JobState.FAILED),
        ({"exit_code": 1, "said": said(state="invalid-result")}, JobState.INVALID_RESULT),
        ({"exit_code": 1, "said": said("MemoryError")}, JobState.MEMORY_LIMIT),
        ({"exit_code": 1, "said": said("numpy._core._exceptions._ArrayMemoryError")}, JobState.MEMORY_LIMIT),
        ({"exit_code": -9, "memory_kills": 1}, JobState.MEMORY_LIMIT),
        ({"exit_code": -9, "cpu_s": 10.2}, JobState.CPU_LIMIT),
        ({"exit_code": -24, "cpu_s": 10.0}, JobState.CPU_LIMIT),
        ({"exit_code": -24, "cpu_s": 0.1}, JobState.FAILED),
        ({"exit_code": -9, "cpu_s": 1.0}, JobState.FAILED),
        ({"exit_code": 1, "said": said("OSError", "[Errno 28] No space left on device")}, JobState.DISK_LIMIT),
        ({"exit_code": 1, "said": said("OSError", "[Errno 5] Input/output error")}, JobState.FAILED),
        ({"exit_code": 1, "said": said("BlockingIOError", "[Errno 11] no", "os.fork()")}, JobState.PROCESS_LIMIT),
        ({"exit_code": 1, "said": said("BlockingIOError", "[Errno 11] no", "read()")}, JobState.FAILED),
        ({"exit_code": 1, "refused_forks": 3}, JobState.PROCESS_LIMIT),
        ({"exit_code": 0, "has_result": True, "refused_forks": 3, "memory_kills": 1}, JobState.SUCCEEDED),
        ({"cut": Verdict(JobState.STOPPED, "asked"), "exit_code": 0, "has_result": True}, JobState.STOPPED),
        ({"exit_code": 1, "has_begun": False, "setup": "bwrap: no"}, JobState.NOT_STARTED),
        ({"exit_code": -11, "has_begun": False}, JobState.NOT_STARTED),
        ({"exit_code": 1, "said": said(state="output-limit")}, JobState.OUTPUT_LIMIT),
    ],
)
def test_what_was_seen_has_a_name(seen: dict[str, Any], state: JobState) -> None:
    verdict = decide(Seen(level="landlock", limits=LIMITS, **{"has_begun": True} | seen))

    assert verdict.state is state
    assert bool(verdict.reason) == (state is not JobState.SUCCEEDED)


@pytest.mark.parametrize(("beyond", "told"), [(1, "in files: "), (LIMITS.tmp_bytes, "in files (")])
def test_a_size_stands_beside_its_limit_only_if_it_reads_differently(beyond: int, told: str) -> None:
    assert told in exceeded(JobState.DISK_LIMIT, LIMITS, LIMITS.tmp_bytes + beyond).reason


def test_reports_beyond_the_rate_are_counted_and_said_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS, mono=0.0)
    for number in range(BURST + 500):
        log.report(1.0, {"a": float(number)}, None, mono=0.0)
    log.report(2.0, {"a": 1.0}, None, mono=10.0)

    events = [event for event, _ in JobFolder(tmp_path).events()]
    reports = [each.number for each in events if isinstance(each, Reported)]
    lines = [each.message for each in events if isinstance(each, Logged)]

    assert log.scalars == BURST + 501
    assert reports == [*range(BURST), BURST + 500]
    assert len(lines) == 1
    assert "a second" in lines[0]


def test_the_events_of_one_job_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "MAX_EVENTS_BYTES", 100_000)
    log = EventLog(tmp_path / EVENTS, mono=0.0)
    for number in range(5000):
        log.add_bounded(Logged(t=1.0, level="INFO", message="x" * 100), mono=float(number))

    assert (tmp_path / EVENTS).stat().st_size < 101_000
    *_, (last, _) = JobFolder(tmp_path).events()
    assert isinstance(last, Logged)
    assert "left out" in last.message


def test_half_a_line_of_a_full_disk_loses_that_line_alone(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS, mono=0.0)
    log.report(1.0, {"a": 1.0}, None, mono=0.0)
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b'{"event":"scal\n')
    log.report(1.0, {"a": 2.0}, None, mono=0.0)
    folder = JobFolder(tmp_path)

    assert [each.values for each, _ in folder.events() if isinstance(each, Reported)] == [{"a": 1.0}, {"a": 2.0}]
    *_, (_, offset) = folder.events()
    for part, whole in ((b'{"event":"scalar","t":1.0,"num', []), (b'ber":2,"values":{}}\n', [2])):
        with (tmp_path / EVENTS).open("ab") as file:
            file.write(part)
        assert [each.number for each, _ in folder.events(offset) if isinstance(each, Reported)] == whole


def test_an_ending_that_a_power_cut_left_without_content_is_none(tmp_path: Path) -> None:
    for content in (b"", b"\0" * 300, b'{"state":"succ'):
        (tmp_path / ENDING).write_bytes(content)
        assert JobFolder(tmp_path).ending() is None


@pytest.mark.parametrize("name", ["lock", EVENTS, "stdout.0"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(name)
    folder = JobFolder(tmp_path)
    reads: dict[str, Callable[[], object]] = {"lock": folder.is_alive, EVENTS: folder.started}

    with pytest.raises(StorageError, match=str(tmp_path)):
        reads.get(name, lambda: folder.trace("stdout", 0, 9))()


@pytest.mark.parametrize("is_late", [True, False])
def test_a_result_that_the_disk_does_not_take_is_removed(tmp_path: Path, *, is_late: bool) -> None:
    result = ResultFile(tmp_path / "result")
    result.write(memoryview(b"{"))
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, result._fd)  # the disk of this file is full from now on
    os.close(full)

    if is_late:
        result.keep("json", None)
    else:
        result.write(memoryview(b"}"))
        result.write(memoryview(b"}"))

    assert result.problem.startswith(f"{tmp_path / 'result'}: No ")
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_needs_more_memory_than_there_is_has_a_named_fault(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CHECKS_WITH_LITTLE_MEMORY, str(tmp_path / "result")]

    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("it is too large to be checked in the memory of this machine\n", "")


def test_a_file_with_two_names_is_measured_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    before = size_of(tmp_path)
    (tmp_path / "again").hardlink_to(tmp_path / "a" / "file")
    (tmp_path / "loop").symlink_to(tmp_path)

    assert before >= 100_000
    assert size_of(tmp_path) - before < 8192


def test_a_folder_of_any_depth_and_mode_is_removed_and_what_it_links_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / ".1").mkdir(mode=0o000)
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep", dir_fd=handle)
        deeper = os.open("deep", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.close(handle)

    remove_tree(folder)
    remove_tree(folder)

    assert not folder.exists()
    assert (outside / "file").read_text() == "stays"
