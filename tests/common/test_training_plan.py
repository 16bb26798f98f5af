"""Training plans: what is sent is exactly what was written, and what cannot run is refused before."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedmon
from fedmon.common.errors import StorageError
from fedmon.common.plan_source import MAX_PLAN_BYTES, load_source
from fedmon.common.training_plan import InvalidPlanError, TrainingPlan

BODY = "class Plan:\r\n    pass  # \u00e4 \u6771\r\n"


class MeanRadius(TrainingPlan):
    """A plan with dependencies."""

    def init_dependencies(self) -> list[str]:
        return ["import numpy as np", "from math import sqrt"]

    def training(self) -> float:
        return 1.0


class Bare(fedmon.TrainingPlan):
    """A plan without anything."""


class NeedsArguments(TrainingPlan):
    """A plan whose constructor asks for something and never calls ours."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds


class NeedsNoImport(TrainingPlan):
    """A plan with a dependency that is no import."""

    def init_dependencies(self) -> list[str]:
        return ["x = 1"]


def test_a_file_is_sent_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "my_plan.py"
    path.write_bytes(BODY.encode())

    plan = load_source(path)

    assert (plan.name, plan.source) == ("my_plan", BODY.encode())
    assert plan.sha256 == hashlib.sha256(BODY.encode()).hexdigest()
    assert load_source(str(path)) == plan


def test_a_class_is_sent_with_its_dependencies_and_source() -> None:
    plan = load_source(MeanRadius)

    lines = plan.source.decode().splitlines()
    assert plan.name == "MeanRadius"
    assert lines[:4] == [
        "import fedmon",
        "from fedmon import TrainingPlan",
        "import numpy as np",
        "from math import sqrt",
    ]
    assert lines[6:8] == ["class MeanRadius(TrainingPlan):", '    """A plan with dependencies."""']
    assert lines[-1] == "        return 1.0"


def test_an_instance_carries_the_dependencies_added_to_it_once() -> None:
    instance = NeedsArguments(3)
    instance.add_dependency(["import os", "import os"])
    instance.add_dependency(["import os", "import sys"])

    lines = load_source(instance).source.decode().splitlines()

    assert lines[:4] == ["import fedmon", "from fedmon import TrainingPlan", "import os", "import sys"]


def test_the_source_of_a_class_runs_where_only_fedmon_is_known(tmp_path: Path) -> None:
    for kind in (Bare, MeanRadius):
        path = kind().save_code(tmp_path / f"{kind.__name__}.py")
        text = path.read_text(encoding="utf-8").replace("import numpy as np\n", "")
        path.write_text(text + f"\nprint({kind.__name__}().__class__.__mro__[1])\n", encoding="utf-8")

        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, cwd=tmp_path)

        assert done.stdout == "<class 'fedmon.common.training_plan.TrainingPlan'>\n"


def test_saving_where_nothing_can_be_written_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no_folder/saved\.py"):
        MeanRadius().save_code(tmp_path / "no_folder" / "saved.py")


@pytest.mark.parametrize("line", ["x = 1", "import", "__import__('os')", "", "import os\nx = 1", 5, None])
def test_a_dependency_that_is_no_import_is_refused(line: str) -> None:
    with pytest.raises(InvalidPlanError, match="is not an import line"):
        MeanRadius().add_dependency([line])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "it is empty"),
        (b" \n\t\n", "it is empty"),
        (b"class Plan(:\n", "it is not Python: .* .line 1."),
        (b"not python at all\n", "it is not Python"),
        (b"\xff\xfe\x00", "not UTF-8 text .byte 0."),
        (b"x = 1\x00\n", "it is not Python"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "not Python|nested too deeply"),
        (b"x = " + b"-" * 200_000 + b"1", "nested too deeply|not Python"),
        (b"# -*- coding: latin-1 -*-\nx = 1\n", "declares encoding iso-8859-1"),
        (b"# coding: utf-7\nx = 1\n", "declares encoding utf-7"),
        (b"# coding: nonsense\nx = 1\n", "it is not Python"),
        (b"#" * (MAX_PLAN_BYTES + 1), f"more than {MAX_PLAN_BYTES}"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_and_why(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "plan.py"
    path.write_bytes(content)

    with pytest.raises(InvalidPlanError, match=complaint):
        load_source(path)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for name, complaint in {"": "not a regular file", "pipe": "not a regular file", "gone.py": "No such file"}.items():
        with pytest.raises(InvalidPlanError, match=complaint) as refusal:
            load_source(tmp_path / name)
        assert str(tmp_path / name) in str(refusal.value)
    for place, complaint in {"plan\0.py": "null", "~nobody-at-all/plan.py": "home directory"}.items():
        with pytest.raises(InvalidPlanError, match=complaint):
            load_source(place)


@pytest.mark.parametrize("plan", [5, None, b"bytes", int, object()])
def test_what_is_no_plan_at_all_is_refused(plan: object) -> None:
    with pytest.raises(InvalidPlanError, match="a path, or a class or instance with the methods"):
        load_source(plan)  # type: ignore[arg-type] # wrong on purpose


def test_a_class_that_cannot_be_made_asks_for_an_instance() -> None:
    with pytest.raises(InvalidPlanError, match="give an instance"):
        load_source(NeedsArguments)
    with pytest.raises(InvalidPlanError, match=r"^dependency 'x = 1' is not an import line"):
        load_source(NeedsNoImport)


def test_a_class_without_kept_source_is_refused() -> None:
    typed = type("Typed", (TrainingPlan,), {"__module__": "nowhere"})

    with pytest.raises(InvalidPlanError, match="write it into a file"):
        load_source(typed)


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in (
    "from fedmon import TrainingPlan\\nimport fedmon.common.plan_source as tp",
    "x = 1\\nclass Cell(TrainingPlan):\\n    def training(self):\\n        return 1\\ny = 2",
    "class Cell(TrainingPlan):\\n    def training(self):\\n        return 2",
    "class Empty(TrainingPlan):\\n    '''Nothing.'''",
    "mistyped(",
    "print(tp.load_source(Cell).source.decode()); print(tp.load_source(Empty()).source.decode())",
):
    assert shell.run_cell(cell, store_history=True).success == (cell != "mistyped(")
"""


def test_classes_typed_into_a_notebook_are_sent_as_typed_last(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )

    assert done.returncode == 0, done.stderr
    assert "class Cell(TrainingPlan):\n    def training(self):\n        return 2\n" in done.stdout
    assert "return 1" not in done.stdout
    assert "y = 2" not in done.stdout
    assert "class Empty(TrainingPlan):\n    '''Nothing.'''\n" in done.stdout
