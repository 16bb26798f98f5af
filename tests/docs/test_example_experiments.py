"""The experiments of docs/examples/experiments run as they stand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmon.researcher.federation import Federation
from tests.docs.conftest import approve
from tests.docs.examples import EXAMPLES, printed


def test_a_dag_of_commands_goes_on_after_a_crash(tmp_path: Path) -> None:
    assert printed("experiments/crash_and_reconnect", folder=tmp_path) == ["first", "second", "third"]


def test_a_dag_of_functions_gives_the_total(tmp_path: Path) -> None:
    assert printed("experiments/function_dag", folder=tmp_path) == ["240"]


@pytest.mark.slow_docs
def test_two_of_three_hospitals_suffice(hospitals: str, hospital_folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.py"
    shutil.copy(EXAMPLES / "plans" / "logistic_regression_plan.py", plan)
    with plan.open("a") as file:
        file.write("# For two hospitals.\n")
    with Federation(hospitals, folder=tmp_path / "researcher") as fed:
        approve(fed, plan, hospital_folder, "hospital-north", "hospital-east")

    script = EXAMPLES / "experiments" / "two_of_three.py"
    (tmp_path / "away.py").write_text(script.read_text().replace("hospital-south", "hospital-west"))

    for name in ("experiments/two_of_three", str(tmp_path / "away")):  # the third owner is silent, or its node is away
        where, rows, said = printed(name, hospitals, str(plan), folder=tmp_path)

        assert where == "ran on hospital-east,hospital-north"
        assert int(rows.removeprefix("rows ")) > 100
        assert said == "enough rows"
