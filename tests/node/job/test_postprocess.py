"""What follows a merge: every file that was asked for, with its labels, whatever else fails."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge, postprocess
from fedmon.report.export import FORMATS
from tests.report.aliases.recorded import RecordedHost
from tests.support.shell_here import fedmon_here

LABELS = {"system": "sys-A", "partition": "part-B", "env": "env-C", "name": "name-D"}


def job(save_dir: Path, key: str = "4711", *, samples: int = 20, prefix: str | None = None) -> JobFolder:
    """Return the folder of a job on two hosts that was merged."""
    folder = JobFolder(save_dir, prefix, key)
    folder.make()
    told = {"job_id": key, "name": "name-D", "user": "ada", "nodes": ["n1", "n2"], "scheduler": "slurm"}
    for name in ("n1", "n2"):
        host = RecordedHost(f"job-{key}-{name}", hostname=name, labels=LABELS, jobs={key: told}, hardware={})
        for number in range(samples):
            host.add(number, {"host_cpu_busy_ratio": 0.5 + number / 1000, "host_memory_total_bytes": 2.0**30})
            of_job = {"job_cpu_user_seconds_total": float(number), "job_cpu_system_seconds_total": 0.0}
            host.add(number, of_job | {"job_memory_rss_bytes": 2.0**20}, stream=f"job-{key}")
        host.write(folder.recording(name))
    merge(folder)
    return folder


def run(folder: JobFolder, *exports: str, report: bool = False) -> list[str]:
    return [str(path.relative_to(folder.path)) for path in postprocess(folder, exports=exports, report=report)[0]]


def _strings(path: Path) -> str:
    """Return all text of an HDF5 file, its groups' names too."""
    found: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, one: found.append(f"{name} {one[:] if isinstance(one, h5py.Dataset) else ''}"))
    return " ".join(found)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_all_that_is_asked_for_is_written_with_its_labels_and_for_its_owner_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = job(tmp_path)
    written = run(folder, *FORMATS, report=True)
    assert errors(caplog) == []
    tables = {f"{name}{one.suffixes[0]}" for one in FORMATS.values() for name in ("cpu_metrics", "all_metrics")}
    assert tables | {"metrics/cpu_metrics.json", "job-report-4711.html"} <= set(written)
    assert any(name.startswith("plots/") and name.endswith(".png") for name in written)
    assert {0o600} == {(folder.path / name).stat().st_mode & 0o777 for name in written}
    assert {0o700} == {each.stat().st_mode & 0o777 for each in folder.path.rglob("*") if each.is_dir()}
    assert _missing_labels(folder) == set()


def _missing_labels(folder: JobFolder) -> set[tuple[str, str]]:
    """Return which label is missing in which output."""
    found = {
        "json": (folder.metrics / "cpu_metrics.json").read_text(),
        "html": folder.report_html.read_text(),
    }
    for name in ("cpu_metrics", "all_metrics"):
        place = folder.path / name
        for suffix in (".csv", ".jsonl", ".om", ".line"):
            found[f"{name}{suffix}"] = place.with_suffix(suffix).read_text()
        found[f"{name}.parquet"] = pq.read_table(place.with_suffix(".parquet")).to_pandas().to_string()
        found[f"{name}.orc"] = orc.read_table(place.with_suffix(".orc")).to_pandas().to_string()
        found[f"{name}.feather"] = pd.read_feather(place.with_suffix(".feather")).to_string()
        found[f"{name}.pkl"] = str(pd.read_pickle(place.with_suffix(".pkl")).to_string())
        found[f"{name}.h5"] = _strings(place.with_suffix(".h5"))
    labels = (*LABELS.values(), "4711")
    return {(what, label) for what, text in found.items() for label in labels if label not in text}


@pytest.mark.parametrize("samples", [0, 1])
def test_runs_without_samples_or_with_one_are_written_up(
    tmp_path: Path, samples: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = job(tmp_path, samples=samples)
    written = run(folder, "csv", "hdf5", "parquet", report=samples == 0)
    assert errors(caplog) == []
    assert {"all_metrics.csv", "all_metrics.h5"} <= set(written)
    assert ("job-report-4711.html" in written) == (samples == 0)
    assert len((folder.path / "all_metrics.csv").read_text().splitlines()) == 1 + 2 * samples


def test_jobs_that_share_a_folder_lose_nothing_and_share_one_hdf5_file(tmp_path: Path) -> None:
    seven = job(tmp_path, "7", prefix="all")
    run(seven, "csv", "hdf5")
    eight = job(tmp_path, "8", prefix="all")
    run(eight, "csv", "hdf5")
    run(eight, "csv", "hdf5")
    with h5py.File(seven.path / "cpu_metrics.h5") as file:
        assert {"cpu_metrics_7", "cpu_metrics_8"} <= set(file)
    for name in ("cpu_metrics", "all_metrics"):  # as users of perfmon read them
        table, frame = pd.read_csv(seven.path / f"{name}.csv"), pd.read_hdf(seven.path / f"{name}.h5", f"{name}_7")
        assert isinstance(frame, pd.DataFrame)
        assert (list(frame.columns), len(frame)) == (list(table.columns), len(table))
        numbers = table.select_dtypes("float64").columns.intersection(frame.select_dtypes("float64").columns)
        pd.testing.assert_frame_equal(frame[numbers], table[numbers])
    assert "7" in json.loads((seven.path / "metrics" / "cpu_metrics.json").read_text())["labels"]["job_id"]
    assert "8" in json.loads((seven.path / "metrics" / "cpu_metrics_8.json").read_text())["labels"]["job_id"]
    for name, key in (("cpu_metrics.csv", "7"), ("cpu_metrics_8.csv", "8")):
        assert set(pd.read_csv(seven.path / name, dtype=str)["Job"]) == {key}


def test_a_step_that_fails_is_told_and_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = job(tmp_path)
    folder.plots.write_text("in the way")
    (folder.path / "cpu_metrics.csv").mkdir()
    written = run(folder, "csv", "no such format", "parquet", report=True)
    assert {"metrics/cpu_metrics.json", "cpu_metrics.parquet", "job-report-4711.html"} <= set(written)
    told = "\n".join(errors(caplog))
    assert all(what in told for what in ("the export to csv", "the export to no such format", "plots"))


def test_the_verb_fails_if_an_export_that_was_asked_for_failed(tmp_path: Path) -> None:
    folder = job(tmp_path)
    (folder.path / "cpu_metrics.csv").mkdir()

    codes = {name: fedmon_here("job", "merge", "-e", name, str(folder.path)).returncode for name in ("csv", "parquet")}

    assert codes == {"csv": 1, "parquet": 0}


def test_the_verb_tells_a_folder_that_cannot_be_read_from_one_without_a_job(tmp_path: Path) -> None:
    said = {name: fedmon_here("job", "merge", str(tmp_path / name)).stderr for name in ("none", "x" * 300)}

    assert said["none"].startswith(f"fedmon: no job in {tmp_path / 'none'}: name the folder")
    assert said["x" * 300].endswith("x: File name too long\n")


def test_the_verb_merges_the_other_jobs_of_a_folder_if_some_cannot_be_merged(tmp_path: Path) -> None:
    *bad, good = (job(tmp_path, key, prefix="run") for key in ("1", "2", "3"))
    for folder in (*bad, good):
        folder.merged.unlink()
    for folder in bad:
        folder.merged.mkdir()

    done = fedmon_here("job", "merge", str(good.path))

    assert (done.returncode, done.stdout, good.merged.exists()) == (1, f"{good.merged}\n", True)
    for folder in bad:
        assert done.stderr.count(f"fedmon: cannot merge into {folder.merged}: Is a directory") == 1


def test_a_missing_library_is_told_once_with_what_to_install_and_costs_no_recording(tmp_path: Path) -> None:
    folder = job(tmp_path)
    code = """
import sys
for name in ("numpy", "pandas", "pyarrow", "matplotlib", "h5py", "fpdf"):
    sys.modules[name] = None
import logging, pathlib
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.merge import merge
from fedmon.node.job.merge import postprocess
logging.basicConfig(format="%(levelname)s %(message)s")
folder = JobFolder.found(pathlib.Path(sys.argv[1]))[0]
merge(folder)
assert postprocess(folder, exports=["csv", "hdf5"], report=True) == ([], False)
"""
    before = folder.merged.stat().st_size
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ERROR") == 1
    assert "install fedmon with its extra [report]" in done.stderr
    assert str(folder.merged) in done.stderr
    assert folder.merged.stat().st_size == before
