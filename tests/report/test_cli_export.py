"""`fedmon export`: what is asked for is written, and what cannot be is said in one line."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedmon.report.frames import WideTable
from fedmon.report.source import Source
from tests.report.tables import T0, recording, samples
from tests.support.shell_here import document_here, fedmon_here

COLUMNS: dict[str, list[float | None]] = {"host_load1": [1, 2, 3], "host_disk_reads_total": [0, 5, 15]}


def test_a_folder_of_a_job_becomes_a_file_of_the_format_that_its_ending_says(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (folder / "recordings").mkdir(parents=True)
    for node in ("a", "b"):
        recording(folder / "recordings" / f"7_{node}.fmr", samples(COLUMNS, node=node))

    words = ("--metric", "host_disk_*", "--since", T0 + 1)
    said = document_here("export", folder, "-o", tmp_path / "x.parquet", *words)

    table = pq.read_table(tmp_path / "x.parquet")
    assert (said["written"][0]["rows"], said["damaged_samples"]) == (4, 0)
    assert table.column_names == ["host", "time", "host_disk_reads_total", "host_disk_reads_per_second"]
    assert table["host_disk_reads_per_second"].to_pylist() == [5, 10, 5, 10]


def test_text_goes_to_stdout(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.fmr", samples(COLUMNS))

    done = fedmon_here("export", path, "-o", "-", "-f", "csv", "--tidy", "--no-rates")

    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["value"] for row in rows] == ["1", "0", "2", "5", "3", "15"]


def test_a_folder_need_not_be_named_in_unicode(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    recording(folder / "r.fmr", samples(COLUMNS))

    said = document_here("export", folder, "-o", folder / "x.csv")

    assert said["written"][0]["path"].endswith("/\\udcff/x.csv")
    with Source([folder / "r.fmr"]) as source:
        assert [rows for rows, _ in WideTable(source, processes=1).csv()] == [3]


def test_what_cannot_be_done_is_said_in_a_line(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.fmr", samples(COLUMNS))
    (tmp_path / "others").mkdir()
    empty = recording(tmp_path / "others" / "empty.fmr")
    odd = recording(tmp_path / "others" / "odd.fmr", samples({"app_things": [1, 2, 3]}))
    gpu = recording(tmp_path / "others" / "gpu.fmr", samples({**COLUMNS, 'gpu_power_watts{gpu="0"}': [1, 2, 3],
                                                              "host_cpu_busy_ratio": [0, 0, 0]}))  # fmt: skip
    out = tmp_path / "x.csv"

    for words, code, why in (
        ((path, "-o", "-"), 2, "say --format when the table goes to stdout: one of csv, json-lines, openm"),
        ((path, "-o", "-", "-f", "csv", "--json"), 2, "choose one"),
        ((path, "-o", out, "--view", "perfmon", "--tidy"), 2, "--view has its own columns"),
        ((odd, "-o", out, "--view", "nebula"), 3, "nebula has no name for any of the metrics"),
        ((gpu, "-o", "-", "-f", "csv", "--view", "perfmon"), 2, "there are 2 tables (cpu_metrics, nv_gpu_metrics)"),
        ((path, "-o", tmp_path / "x.h5", "--key", "a/b"), 2, "key 'a/b' is not usable"),
        ((empty, "-o", out), 3, "the recordings hold no sample"),
        ((tmp_path / "none", "-o", out), 3, "not found"),
        ((tmp_path, "-o", out, "--metric", "gpu_*"), 3, "matches the selection; hosts: n1"),
        ((path, "-o", out, "--job", "9"), 3, "no job '9'"),
        ((path, "-o", tmp_path / "x.txt"), 2, "say --format"),
        ((path, "-o", "-", "-f", "orc"), 2, "not a text format"),
        ((path, "-o", tmp_path), 2, "say --format"),
        ((path, "-o", out, "-f", "xml"), 2, "no format 'xml': there are csv, parquet"),
        ((path, "-o", out, "--since", "soon"), 2, "is not a time"),
        ((path, "-o", out, "--since", "nan"), 2, "is not a time"),
        ((path, "-o", out, "--since", T0 + 2, "--until", T0 + 1), 2, "is before"),
        ((path, "-o", path, "-f", "csv"), 2, "is the recording itself"),
    ):
        done = fedmon_here("export", *words)
        assert done.returncode == code, words
        error = done.stdout + done.stderr
        assert why in error
        assert len(error.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [
        ("pyarrow", 2, "an export needs pyarrow: install fedmon with its extra [report], as its README says\n"),
        ("fedmon.report.frames", 1, "internal error: ModuleNotFoundError"),
    ],
)
def test_a_missing_library_of_the_extra_is_named_with_the_way_to_get_it(
    missing: str, code: int, said: str, tmp_path: Path
) -> None:
    path = recording(tmp_path / "r.fmr", samples(COLUMNS))
    main_without = f"import sys; sys.modules['{missing}'] = None; from fedmon.cli import main; main(sys.argv[1:])"

    words = [sys.executable, "-c", main_without, "export", str(path), "-o", str(tmp_path / "x.csv")]
    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"fedmon: {said}")


def test_a_public_name_whose_library_is_missing_is_an_import_error_that_names_the_way_to_get_it() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "try: from fedmon.report import frame\n"
        "except ImportError as error: sys.exit(str(error))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stderr == "a report needs numpy: install fedmon with its extra [report], as its README says\n"
