"""The how-tos for jobs show the scripts that are tested, word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.report.source import Source
from tests.support.node_process import plain_environment

ROOT = Path(__file__).parents[2]
WHERE = ("slurm", "pbs", "oar", "shell")


def page(where: str) -> Path:
    return ROOT / f"docs/howtos/job-{where}.md"


def script(where: str) -> Path:
    return ROOT / f"docs/examples/job_{where}.sh"


@pytest.mark.parametrize("where", WHERE)
def test_a_how_to_begins_with_the_script_that_is_tested(where: str) -> None:
    shown = re.search(r"```(?:ba)?sh\n(.*?)```", page(where).read_text(), re.DOTALL)

    assert shown is not None
    assert shown[1] == script(where).read_text()


@pytest.mark.parametrize("where", WHERE)
def test_a_script_is_right_for_the_shell_that_it_names(where: str) -> None:
    shell = script(where).read_text().splitlines()[0].removeprefix("#!")

    assert subprocess.run([shell, "-n", script(where)], capture_output=True, timeout=10).stderr == b""
    assert os.access(script(where), os.X_OK)


@pytest.mark.timeout(120)  # it writes a report of many pages, and that may have to share a processor
def test_the_script_for_a_plain_shell_measures_a_command_and_keeps_its_exit_code(tmp_path: Path) -> None:
    work = tmp_path / "work.sh"
    work.write_text("#!/bin/sh\necho done\nexit 7\n")
    work.chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    ran = subprocess.run(
        [script("shell")], cwd=tmp_path, env=plain_environment(PATH=path), capture_output=True, text=True, timeout=110
    )

    assert (ran.stdout, ran.returncode) == ("done\n", 7)
    assert [line.split()[1] for line in ran.stderr.splitlines()] == ["measuring", "results"]
    (recording,) = (tmp_path / "run-1").glob("*.fmr")
    with Source([recording]) as source:
        (host,) = source.hosts
        (job,) = host.jobs.values()
    assert (job["exit_code"], job["method"], job["confidence"]) == (7, "command", "certain")
    assert list((tmp_path / "run-1").glob("job-report-*.html"))
    assert list((tmp_path / "run-1").rglob("*.csv"))
