"""The folder that plans find fedmon in: complete, compiled, replaced under nobody's feet, and tried until it works."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmon.common.errors import StorageError
from fedmon.common.settings.values import RunsSettings
from fedmon.node.runs import confinement
from fedmon.node.runs.confinement import Confinement, Ground, lay_out
from fedmon.node.runs.folder import ENDING_BYTES
from fedmon.node.runs.launcher import Launcher
from fedmon.node.workers import Workers
from tests.support.full_disk import files_of_at_most
from tests.support.waiting import wait_until


def test_it_has_what_a_plan_needs_for_every_user_and_nothing_of_nodes(tmp_path: Path) -> None:
    lay_out(tmp_path / "runtime", python=sys.executable)

    files = {path.relative_to(tmp_path / "runtime").as_posix() for path in tmp_path.rglob("*.py")}
    assert {"fedmon/__init__.py", "fedmon/common/training_plan.py", "fedmon/plan/main.py"} <= files
    assert not any(file.startswith(("fedmon/node", "fedmon/researcher", "fedmon/common/wire")) for file in files)
    assert list(tmp_path.rglob("__pycache__/process.*.pyc"))
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o555 == (0o555 if path.is_dir() else 0o444)


def test_every_module_of_it_is_imported_by_a_python_that_has_nothing_else(tmp_path: Path) -> None:
    lay_out(tmp_path)
    names = sorted(f"fedmon.plan.{path.stem}" for path in (tmp_path / "fedmon/plan").glob("[a-z]*.py"))
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r})\nfor name in {names!r}: __import__(name)\nprint(len(sys.argv))"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_second_time_it_replaces_what_differs_and_leaves_what_is_the_same(tmp_path: Path) -> None:
    lay_out(tmp_path)
    same, other = tmp_path / "fedmon/plan/frames.py", tmp_path / "fedmon/plan/values.py"
    number = same.stat().st_ino
    other.write_text("raise SystemExit\n")
    (tmp_path / "fedmon/plan/gone.py").write_text("")

    with other.open() as reader:
        lay_out(tmp_path)
        assert reader.read() == "raise SystemExit\n"

    assert same.stat().st_ino == number
    assert "class ValuesWalk" in other.read_text()
    assert not (tmp_path / "fedmon/plan/gone.py").exists()


def test_a_python_that_is_none_costs_nothing_but_time_and_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    lay_out(tmp_path / "runtime", python="/nonexistent/python")
    assert (tmp_path / "runtime/fedmon/plan/main.py").exists()

    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        lay_out(tmp_path / "file/runtime")


@pytest.mark.parametrize(("name", "most_bytes"), [("runtime", None), ("trial", None), ("trial", ENDING_BYTES - 1)])
def test_plans_can_run_within_a_minute_of_the_end_of_a_fault_that_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, most_bytes: int | None
) -> None:
    assert confinement.LOOK_AGAIN_S <= 60.0
    monkeypatch.setattr(confinement, "LOOK_AGAIN_S", 0.01)
    looks: list[Ground | None] = [None]
    launcher, workers = Launcher(print), Workers(lambda job: bool(job()) or True)
    no_python = RunsSettings(python=Path("/bin/false"))
    looking = Confinement(no_python, tmp_path, launcher, workers, is_heard=True)

    def wait(condition: Callable[[], bool], what: str) -> None:
        def found() -> bool:
            looking.look_if_due()
            if looking.found is not looks[-1]:
                looks.append(looking.found)
            return condition()

        wait_until(found, timeout_s=20.0, what=what)

    workers.start()
    try:
        with contextlib.ExitStack() as fault:
            if most_bytes is None:
                (tmp_path / name).write_text("")
                fault.callback((tmp_path / name).unlink)
            else:
                fault.enter_context(files_of_at_most(most_bytes))
            wait(lambda: "does not answer" in caplog.text, "another fault")
            looking.follow(RunsSettings())
            seen = f"cannot write {tmp_path / name}"
            wait(lambda: str(looks).count(seen) > 4, "the fifth look")
        assert caplog.text.count("no plan can run on this node: cannot write") == 1
        wait(lambda: "cannot write" not in str(looks[-1]), "a look without the fault")
    finally:
        workers.stop()
        launcher.stop()
