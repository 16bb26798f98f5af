"""The parts of `fedmon job` by themselves: options, the stop file, the margin before the time limit, the log."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError
from fedmon.node.job.ending import margin_s
from fedmon.node.job.options import JobOptions, checked
from fedmon.node.job.tool import StopFile
from tests.node.job.tool_runs import FEDMON, environment

HERE = Path("/tmp")


def running(path: Path) -> StopFile:
    file = StopFile(path)
    file.begin()
    return file


def test_a_stop_file_says_in_progress_and_goes_on(tmp_path: Path) -> None:
    file = running(tmp_path / ".ipc-1")

    assert (tmp_path / ".ipc-1").read_text() == "INPROGRESS\n"
    assert [path.name for path in tmp_path.iterdir()] == [".ipc-1"]
    assert file.says_stop() is None


@pytest.mark.parametrize("text", ["FINISHED", "FINISHED\n", " finished \n", "", "\n"])
def test_finished_or_nothing_in_the_stop_file_stops(tmp_path: Path, text: str) -> None:
    file = running(tmp_path / "ipc")
    file.path.write_text(text)

    assert file.says_stop()


def test_a_stop_file_that_is_removed_stops(tmp_path: Path) -> None:
    file = running(tmp_path / "ipc")
    file.path.unlink()

    assert file.says_stop() == "it was removed"


@pytest.mark.parametrize("text", ["INPROGRESS", "FINI", "INPROGRESS FINISHED", "\0", "x" * 10_000])
def test_any_other_text_in_the_stop_file_does_not_stop(tmp_path: Path, text: str) -> None:
    file = running(tmp_path / "ipc")
    file.path.write_text(text)

    assert file.says_stop() is None


def test_a_folder_or_a_pipe_in_place_of_the_stop_file_does_not_stop_or_hold_up(tmp_path: Path) -> None:
    file = running(tmp_path / "ipc")
    file.path.unlink()
    file.path.mkdir()
    assert file.says_stop() is None
    file.path.rmdir()
    os.mkfifo(file.path)
    assert file.says_stop() is None

    begun = running(file.path)
    assert begun.says_stop() is None


def test_finished_of_an_earlier_run_is_replaced_and_that_of_this_run_is_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "ipc"
    path.write_text("FINISHED")
    changed = path.stat().st_mtime

    meant, anew = StopFile(path), StopFile(path)
    meant.begin(lambda when: when == changed)
    assert meant.says_stop()
    anew.begin(lambda when: when != changed)
    assert anew.says_stop() is None


def test_finished_that_is_written_while_an_older_one_is_replaced_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "ipc"
    path.write_text("FINISHED")
    os.utime(path, (1.0, 1.0))
    file = StopFile(path)

    # A script had opened the file, and writes when it was found to be old.
    with path.open("r+") as script:

        def is_meant(_changed: float) -> bool:
            script.write("FINISHED\n")
            script.flush()
            return False

        file.begin(is_meant)

    assert file.says_stop() == "it says FINISHED"
    assert [each.name for each in tmp_path.iterdir()] == ["ipc"]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_freq": 0.1},
        {"sampling_freq": float("nan")},
        {"sampling_freq": float("inf")},
        {"check_point": -1.0},
        {"launcher": ""},
        {"labels": {"system": "a\nb"}},
        {"labels": {"name": "\udcff"}},
        {"pids": (0,)},
        {"pids": (1,), "command": ("true",)},
        {"export": ("xls",)},
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        checked(JobOptions(save_dir=HERE, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sampling", "check_point", "most"), [(1, 900, 10), (1, 2, 2), (30, 2, 0), (30, 900, 0)])
def test_samples_wait_no_longer_than_the_check_point_and_ten_seconds(
    sampling: float, check_point: float, most: float
) -> None:
    options = checked(JobOptions(save_dir=HERE, sampling_freq=sampling, check_point=check_point))

    assert 0 <= options.hold_s <= most


@pytest.mark.parametrize(("limit_s", "margin"), [(10, 5), (60, 5), (600, 30), (86_400, 60)])
def test_the_margin_before_the_time_limit_grows_with_it(limit_s: float, margin: float) -> None:
    assert margin == margin_s(limit_s)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-e"], "takes one or more formats"),
        (["-e", "-v"], "takes one or more formats"),
        (["-d"], "requires an argument"),
        (["-c", "--", "true"], "requires an argument"),
        (["--"], "no command after"),
        (["sleep", "3"], "comes after '--'"),
        (["-i", "0", "--", "true"], "from 0.2"),
        (["-e", "csv", "sleep", "--", "true"], "'sleep'"),
        (["-d", "/proc/none", "--", "true"], "/proc/none"),
        (["-p", "../x", "--", "true"], "prefix"),
    ],
)
def test_wrong_use_is_told_before_anything_runs(words: list[str], hint: str) -> None:
    done = subprocess.run([FEDMON, "job", *words], capture_output=True, text=True, env=environment(), timeout=30)

    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_gone_is_told_before_anything_runs(tmp_path: Path) -> None:
    script = f'cd "{tmp_path}" && rmdir "{tmp_path}" && "{FEDMON}" job -- echo ran'

    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment(), timeout=30)

    assert (done.returncode, done.stdout) == (2, "")
    assert "the folder . cannot be used: No such file or directory" in done.stderr
