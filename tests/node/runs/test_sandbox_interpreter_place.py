"""Wherever a Python lies, plans can run on it in a sandbox."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from fedmon.node.runs.confinement import Trials
from fedmon.node.runs.launcher import Launcher
from fedmon.node.runs.sandbox import bubblewrap
from fedmon.node.runs.sandbox.interpreter import look_at
from tests.support.requirements import require


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
