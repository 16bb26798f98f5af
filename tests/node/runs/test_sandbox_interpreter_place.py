"""Wherever a Python lies, plans can run on it in a sandbox."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

from fedmon.node.runs.confinement import Trials
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.sandbox import bubblewrap
from fedmon.node.runs.sandbox.interpreter import look_at
from tests.support.requirements import require

NEEDS = "from fedmon.node.runs.sandbox.interpreter import look_at; print(*look_at(None).needs, sep='\\n')"


def test_a_dangling_link_to_a_loader_is_not_needed() -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    present = [
        ("--symlink", str(each.readlink()), str(each)) if each.is_symlink() else ("--dev-bind", str(each), str(each))
        for each in Path("/").iterdir()
    ]
    dangling = ("--symlink", "/missing", "/lib-other/ld-gone.so.1")

    words = ["bwrap", *chain(*present, dangling), sys.executable, "-c", NEEDS]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)

    assert [each for each in ran.stdout.splitlines() if "missing" in each or "gone" in each] == []


def test_a_python_below_the_folder_that_the_sandbox_covers_can_be_used(tmp_path: Path) -> None:
    require(bubblewrap.program(), "bubblewrap is not installed")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = Path(folder, "bin/python")

        launcher = Launcher(lambda _: None)
        try:
            level, reasons = Trials(launcher, tmp_path / "trial", tmp_path / "runtime").strongest_level(look_at(python))
        finally:
            launcher.stop()

    assert level == "bubblewrap", reasons
