"""Drawings where nobody's home can be written, which matplotlib would have for its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.tables import recording, samples

CPU = "host_cpu_busy_ratio"
NOWHERE = "/proc/none"
"""Not even root can make anything there."""
_NO_TEMPORARY = "import tempfile; tempfile.tempdir = '/proc/none'; from fedmon.cli import main; main()"


def python(*words: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    temporary.mkdir()
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, *words],
        env=environ | {"HOME": NOWHERE, "TMPDIR": str(temporary)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["n1", "\u4f5c\u696d"], ids=["in the font", "not in the font"])
def test_a_pdf_is_written_without_a_word_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    path = recording(tmp_path / "all.fmr", samples({CPU: [0.1, 0.2]}), documents={"n1": {"hostname": name}})

    done = python("-m", "fedmon", "report", str(path), "--pdf", f"{tmp_path}/a.pdf", temporary=tmp_path / "tmp")

    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_plots_and_the_report_of_a_job_leave_nothing_behind_either(tmp_path: Path) -> None:
    words = ("job", "--quiet", "-d", str(tmp_path), "-p", "run", "-i", "0.2", "-r", "--", "true")

    done = python("-m", "fedmon", *words, temporary=tmp_path / "tmp")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list((tmp_path / "run").glob("job-report-*.html"))) == 1
    assert len(list((tmp_path / "run/plots").iterdir())) >= 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_drawing_without_any_folder_of_its_own_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    path = recording(tmp_path / "all.fmr", samples({CPU: [0.1, 0.2]}))

    words = ("report", str(path), "--pdf", f"{tmp_path}/a.pdf")

    done = python("-c", _NO_TEMPORARY, *words, temporary=tmp_path / "tmp")

    assert done.returncode == 1
    assert done.stderr.startswith("fedmon: Matplotlib requires access to a writable cache directory")
    assert "set the MPLCONFIGDIR environment variable" in done.stderr
