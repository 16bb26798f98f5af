"""`fedmon report`, as people type it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.common.errors import NotFoundError
from fedmon.report.cli.inputs import unix_time
from fedmon.report.source import Source, files_of
from tests.report.recorded_job import write_job
from tests.report.tables import T0
from tests.support.shell_here import document_here, fedmon_here

DRAWN = ("job_cpus_busy", "job_cpu_", "job_memory_peak")


def test_a_report_goes_to_the_terminal_and_to_a_page_named_after_the_job(tmp_path: Path) -> None:
    write_job(tmp_path / "job.fmr", samples=4, series=DRAWN, told={"command": ["sh", "-c", "sleep 1"]})

    command = [sys.executable, "-m", "fedmon", "report", "job.fmr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    bars = [line for line in done.stdout.splitlines() if line[12:13] == "["]
    assert {line.index(" %") for line in bars} == {44}, bars
    for words in (
        "Job 4711 (train-resnet)",
        "sh -c 'sleep 1'",
        "CPU         [####",
        "Peak memory.",
        "written: job-report-4711.html",
    ):
        assert words in done.stdout, words
    assert "<title>Job 4711 (train-resnet)</title>" in (tmp_path / "job-report-4711.html").read_text()


def test_text_alone_writes_nothing_and_loads_no_heavy_library(tmp_path: Path) -> None:
    write_job(tmp_path / "job.fmr", samples=4)
    code = (
        "import sys; from fedmon.cli import main\n"
        "try: main(['report', 'job.fmr', '--text'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'matplotlib', 'fpdf', 'pandas', 'pyarrow', 'h5py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.stdout.rstrip().endswith("[]")
    assert "GPU 1 of n1" in " ".join(done.stdout.split())
    assert not [one for one in tmp_path.iterdir() if not one.name.startswith("job.fmr")]


def test_what_was_found_is_there_for_programs_also_of_a_part_of_the_time(tmp_path: Path) -> None:
    write_job(tmp_path / "job.fmr", samples=601)
    part = ("--since", T0 + 100, "--until", T0 + 200)

    for words, seconds in (((), 600), (part, 100)):
        document = document_here("report", tmp_path / "job.fmr", "--node", "n2", *words)
        found = {one["name"]: one for one in document["findings"]}

        told = [document[name] for name in ("job", "jobs", "nodes", "written")]
        assert told == ["4711", ["4711"], ["n2"], []]
        assert document["until_t"] - document["since_t"] == seconds
        assert found["cpu-efficiency"]["severity"] == "warning"
        assert found["cpu-efficiency"]["figures"]["ratio"] == pytest.approx(0.55)
        assert found["cpu-efficiency"]["figures"]["elapsed_seconds"] == seconds


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing.fmr"], 3, "recording nothing.fmr not found"),
        (["~nobody-at-all/x.fmr"], 2, "~nobody-at-all/x.fmr: Could not determine home directory"),
        (["job.fmr", "notes.txt"], 1, "notes.txt"),
        (["job.fmr", "-o", "."], 2, "it is a folder; name a file in it"),
        # From Python 3.14 on, pathlib finds nothing at a path that cannot be.
        (["a" * 256], *((1, "fedmon: cannot read aaa") if sys.version_info < (3, 14) else (3, "recording aaa"))),
        (["job.fmr", "--job", "99"], 3, "no job '99' in the recording; it has 4711"),
        (["cut.fmr"], 1, "cut.fmr: it is damaged; 'fedmon record' and 'fedmon job merge' save its readable part"),
        (["job.fmr", "--since", "yesterday"], 2, "'yesterday' is not a time"),
        (["job.fmr", "--pdf", "job.fmr"], 2, "is the recording itself"),
        (["job.fmr", "--text", "--pdf", "x.pdf"], 2, "--text writes no file"),
        (["job.fmr", "-o", "x.pdf"], 2, "--output writes a page of HTML, --pdf a PDF: name their files so"),
        (["job.fmr", "-o", "x", "--pdf", "./x"], 2, "x cannot be both the page and the PDF: name two files"),
    ],
)
def test_wrong_use_is_told_in_one_line(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    write_job(tmp_path / "job.fmr", samples=2, series=DRAWN)
    (tmp_path / "notes.txt").write_text("no recording")
    before = (tmp_path / "job.fmr").read_bytes()
    (tmp_path / "cut.fmr").write_bytes(before[: len(before) // 2])

    done = fedmon_here("report", *words, cwd=tmp_path)

    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "job.fmr").read_bytes() == before


def test_the_recordings_of_a_folder_are_found_merged_ones_first(tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    host = tmp_path / "recordings" / "4711_n1.fmr"
    host.write_bytes(b"")

    assert [host] == files_of([tmp_path])
    merged = tmp_path / "4711.fmr"
    merged.write_bytes(b"")
    assert [merged] == files_of([tmp_path, merged])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"nothing in it ends in \.fmr"):
        Source(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0.0), ("1970-01-01", 0.0), ("1970-01-01 00:01", 60.0), ("1970-01-01T01:00:00+01:00", 0.0), (None, None)],
)
def test_times_are_utc_unless_they_name_their_zone(text: str | None, expected: float | None) -> None:
    assert expected == unix_time(text)
