"""The options of `fedmon job`, its help and its messages, and the time limit of a scheduler."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmon.node.job.end import latest_end
from fedmon.node.job.identity import identify
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.options import JobOptions, checked, read
from tests.node.job.tool_runs import FEDMON, beside, recordings, start, wait_measured
from tests.node.jobs_real import Program
from tests.support.environment import plain_environment
from tests.support.shell import fedmon
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

HERE = Path("/tmp")
job = functools.partial(fedmon, "job")


def test_words_become_options(tmp_path: Path) -> None:
    words = ["-d", str(tmp_path), "-i", "0.5", "-e", "csv", "orc", "--name", "a run", "-rq", "--", "true", "-v"]

    assert read(words, {}) == JobOptions(
        save_dir=tmp_path, interval=0.5, export=("csv", "orc"), labels={"name": "a run"}, gen_report=True, quiet=True,
        command=("true", "-v"),
    )  # fmt: skip


def test_a_run_loads_nothing_for_shells_reports_or_other_schedulers() -> None:
    heavy = {"typer", "click", "rich", "hashlib", "tomllib", "asyncio", "fedmon.report", "fedmon.node.runs", "psutil"}
    code = (
        "import sys\nimport fedmon.cli\nfrom fedmon.node.job import cli, monitor\n"
        f"cli.read(['--', 'true'], {{}})\nprint(sorted({heavy!r} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("interval", "check_point", "held_s"),
    [(1, 900, 9.5), (1, 2, 1.9), (30, 2, 0), (30, 900, 0), (30, 0, 0), (30, 30, 0)],
)
def test_samples_wait_no_longer_than_the_check_point_and_ten_seconds(
    interval: float, check_point: float, held_s: float
) -> None:
    assert checked(JobOptions(save_dir=HERE, interval=interval, check_point=check_point)).hold_s == held_s


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-e"], "expected at least one argument"),
        (["--colour"], "no such option: --colour"),
        (["--"], "no command after"),
        (["merge"], "FOLDER"),
        (["-d", "~nouser-of-this-name", "--", "true"], "the folder ~nouser-of-this-name cannot be used"),
        (["sleep", "3"], "comes after '--'"),
        (["-e", "csv", "sleep", "--", "true"], "'sleep'"),
        (["-d", "/proc/none", "--", "true"], "/proc/none"),
        (["-d", "/proc/none", "--pid", "1"], "/proc/none"),
        (["-p", "../x", "--", "true"], "prefix"),
        *((["-i", period, "--", "true"], f"from 0.2 to 86400; got {period}") for period in ("0", "0.1", "nan")),
        (["-c", "-1", "--", "true"], "-c/--check_point is a period in seconds, from 0 to 86400; got -1"),
        (["--system", "a\nb", "--", "true"], "--system takes 1 to 200 printable characters"),
        (["-e", "xls", "--", "true"], "-e/--export does not know 'xls'"),
        (["--pid", "1", "--", "true"], "give either --pid"),
    ],
)
def test_wrong_use_is_told_before_anything_runs(tmp_path: Path, words: list[str], hint: str) -> None:
    done = job(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout, [*tmp_path.iterdir()]) == (2, "", [])
    assert hint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_gone_is_told_before_anything_runs(tmp_path: Path) -> None:
    script = f'cd "{tmp_path}" && rmdir "{tmp_path}" && "{FEDMON}" job -- echo ran'

    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=plain_environment(), timeout=60)

    assert (done.returncode, done.stdout) == (2, "")
    assert "the folder . cannot be used: No such file or directory" in done.stderr


def test_without_words_a_terminal_gets_the_help() -> None:
    with Terminal("job") as terminal:
        code, shown = terminal.end()

    # From Python 3.14 on, argparse colours it.
    usage = re.sub(r"\x1b\[[\d;]*m", "", shown.partition("\n")[0])
    assert (code, usage) == (2, "Usage: fedmon job [OPTIONS] [-- COMMAND ...]")
    assert "fedmon: " not in shown


def test_one_line_at_the_start_and_one_at_the_end_go_to_stderr(tmp_path: Path) -> None:
    done = job("-d", str(tmp_path), "-p", "run", "-i", "1", "--", "sh", "-c", "echo out; echo told >&2")

    first, told, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout, told) == (0, "out\n", "told")
    assert (
        first
        == f"fedmon: measuring `sh -c 'echo out; echo told >&2'` on {os.uname().nodename} every 1 s into {tmp_path}/run"
    )
    assert last == f"fedmon: results in {tmp_path}/run"


def test_a_command_that_cannot_run_has_no_results_to_tell_of(tmp_path: Path) -> None:
    done = job("-d", str(tmp_path), "--", "./missing")

    assert done.returncode == 127
    assert done.stderr.splitlines()[1:] == ["fedmon: cannot run ./missing: No such file or directory"]


def test_results_that_were_asked_for_and_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "run" / "all_metrics.csv").mkdir(parents=True)
    (tmp_path / "run" / "configs").touch()

    done = job("-v", "-d", str(tmp_path), "-p", "run", "-e", "csv", "--", "true")

    told = done.stderr.splitlines()
    (log,) = tmp_path.glob("run/logs/*/*.log")
    assert done.returncode == 0
    assert told[1:] == [
        f"fedmon: files that were asked for could not be written; see {log}", f"fedmon: results in {tmp_path}/run",
    ]  # fmt: skip
    assert f"cannot write {tmp_path}/run/configs/" in log.read_text()


def test_ctrl_c_while_other_hosts_are_waited_for_tells_how_to_merge(tmp_path: Path) -> None:
    environ = plain_environment(SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="n[1-2]", SLURMD_NODENAME="n1")
    words = [FEDMON, "job", "-d", str(tmp_path), "-p", "run", "--", "true"]
    hosts = JobFolder(tmp_path, "run", "4711").hosts
    hosts.mkdir(parents=True)
    (hosts / "job-4711-n2.1.begin").write_text('{"boot": 1}')

    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environ) as tool:
        wait_until(lambda: [*hosts.glob("*.end")], what="the end of the first host")
        tool.send_signal(signal.SIGINT)
        _, told = tool.communicate(timeout=60)

    assert tool.returncode == 0
    assert told.splitlines()[1:] == [
        f"fedmon: recorded in {tmp_path}/run; 'fedmon job merge {tmp_path}/run' does the rest"
    ]


def test_json_is_one_document_on_stdout_or_beside_a_command_on_stderr(tmp_path: Path, program: Program) -> None:
    command = job("-d", str(tmp_path), "-p", "run", "--json", "--", "echo", "--json")
    with start(tmp_path, "-p", "run", "--json", *beside(program)) as tool:
        wait_measured(tmp_path, hosts=2)
        program.end()
        document, complained = tool.communicate(timeout=60)
    merge = job("merge", str(tmp_path / "run"), "--json")

    assert command.stdout == "--json\n"
    found = json.loads(command.stderr)
    assert (found["exit_code"], found["folder"]) == (0, str(tmp_path / "run"))
    assert Path(found["recording"]) in recordings(tmp_path)
    assert json.loads(document)["reason"] == "all processes of the job have ended"
    assert complained == b""
    assert {json.loads(document)["merged"], found["merged"]} == set(json.loads(merge.stdout)["merged"])


@pytest.mark.parametrize(
    ("left_s", "margin_s"), [(10, 5), (60, 5), (600, 30), (86_400, 60), (-1000, float("-inf"))],
    ids=["seconds", "a minute", "minutes", "a day", "a job that runs has not ended"],
)  # fmt: skip
def test_a_run_ends_before_the_time_limit_by_a_margin_that_grows_with_it(left_s: float, margin_s: float) -> None:
    ends_at = int(time.time() + left_s)
    job = identify({"SLURM_JOB_ID": "4711", "SLURM_JOB_END_TIME": str(ends_at)}, hostname="n", pid=1)

    assert latest_end(job, first_start=None) == pytest.approx(ends_at - margin_s, abs=1)
