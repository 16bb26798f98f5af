"""The experiments of docs/examples/experiments run as they stand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.researcher.federation import Federation
from tests.docs.conftest import approve
from tests.docs.examples import EXAMPLES
from tests.support.node_process import plain_environment


def run(name: str, folder: Path, *words: str) -> list[str]:
    """Run a script, and return the lines that it prints."""
    environ = {**plain_environment(), "FEDMON_RESEARCHER_FOLDER": str(folder / "researcher"), "TMPDIR": str(folder)}
    command = [sys.executable, str(EXAMPLES / "experiments" / name), *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_dag_of_commands_goes_on_after_a_crash(tmp_path: Path) -> None:
    assert run("crash_and_reconnect.py", tmp_path) == ["first", "second", "third"]


def test_a_dag_of_functions_gives_the_total(tmp_path: Path) -> None:
    assert run("function_dag.py", tmp_path) == ["240"]


@pytest.mark.slow_docs
def test_two_of_three_hospitals_suffice(hospitals: str, hospital_folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.py"
    shutil.copy(EXAMPLES / "plans" / "logistic_regression_plan.py", plan)
    with plan.open("a") as file:
        file.write("# For two hospitals.\n")
    with Federation(hospitals, folder=tmp_path / "researcher") as fed:
        approve(fed, plan, hospital_folder, "hospital-north", "hospital-east")

    where, rows, said = run("two_of_three.py", tmp_path, hospitals, str(plan))

    assert where == "ran on hospital-east,hospital-north"
    assert int(rows.removeprefix("rows ")) > 100
    assert said == "enough rows"
