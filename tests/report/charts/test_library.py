"""Drawings come where nothing but their own folder can be written, and whatever their reader has set for his own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from fedmon.report.charts.draw import KINDS, drawn
from tests.report.tables import made, recording, samples

CPU = "host_cpu_busy_ratio"
SETTINGS = "text.usetex: True\nfont.size: 30\naxes.facecolor: black\nbackend: none of them\nno.such.name: 1\n"
NOWHERE = "/proc/none"
"""Not even root can make anything there."""


def fedmon(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "fedmon", *words],
        cwd=folder, env=environ | more, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_report_needs_neither_home_nor_temporary_folder_and_leaves_nothing_behind(tmp_path: Path) -> None:
    recording(tmp_path / "all.fmr", samples({CPU: [0.1, 0.2]}))
    (tmp_path / "matplotlibrc").write_text(SETTINGS)

    report = fedmon(tmp_path, "report", "all.fmr", "--pdf", "a.pdf", HOME=NOWHERE, TMPDIR=NOWHERE)

    assert (report.returncode, report.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("all.fmr")} == {
        "a.pdf",
        "matplotlibrc",
    }


@pytest.mark.soak
def test_plots_and_the_report_of_a_job_leave_nothing_behind_either(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    words = ("--quiet", "-d", str(tmp_path), "-p", "run", "-i", "0.2", "-r", "--", "true")
    job = fedmon(tmp_path, "job", *words, HOME=NOWHERE, TMPDIR=str(temporary))

    assert (job.returncode, job.stdout, job.stderr) == (0, "", "")
    assert len(list((tmp_path / "run").glob("job-report-*.html"))) == 1
    assert [*temporary.iterdir(), *tmp_path.glob("*matplotlib*"), *(tmp_path / "run").glob(".*")] == []


def test_a_drawing_needs_no_folder_to_write_where_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('[experiment]\nid = "one"\n[[resource]]\nname = "a"\ntype = "local::Process"\n')

    drawn = fedmon(Path("/proc/self"), "experiment", "graph", f"{tmp_path}/one.toml", "--format", "dot", "-o", "-")

    assert (drawn.returncode, drawn.stderr) == (0, "")


def test_settings_of_the_reader_change_no_drawing_and_are_kept(tmp_path: Path) -> None:
    found = made(tmp_path / "all.fmr", samples({CPU: [0.1, 0.2]}))
    expected = [drawn(found.first[0], found, kind) for kind in KINDS]

    with mpl.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert expected == [drawn(found.first[0], found, kind) for kind in KINDS]
        assert (mpl.rcParams["text.usetex"], mpl.rcParams["font.size"]) == (True, 30)
