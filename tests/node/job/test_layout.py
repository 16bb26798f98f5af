"""Where the files of one job lie, whatever its id, its prefix and its hosts are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.job.identity import job_key
from fedmon.node.job.layout import JobFolder, file_name

HOSTILE = [
    "..", "", "../../etc/passwd", "/etc/passwd", "a\\b", "~root", "-rf", ".hidden", "a\0b", "a\nb", "a b", "x" * 5000,
    "ä" * 200, "日本語", "\u202egnp", "\udcff", "*",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_name_leads_out_of_the_folder(hostile: str, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, None, job_key(hostile), job_id=hostile)
    paths = [
        folder.path,
        folder.hosts,
        folder.merged,
        folder.report_html,
        folder.recording(hostile),
        folder.log(hostile),
        folder.run_config(hostile),
    ]
    folder.make()
    for path in paths:
        assert path.resolve().is_relative_to(folder.path), path
        assert len(path.name.encode()) <= 200
        if path not in (folder.path, folder.hosts):
            path.parent.mkdir(exist_ok=True)
            path.write_text("made")
    assert tmp_path == folder.ipc.parent == folder.path.parent
    assert folder.ipc.name.startswith(".ipc-")
    folder.ipc.write_text("INPROGRESS")


def test_hostile_names_stay_apart() -> None:
    assert len(HOSTILE) == len({file_name(each) for each in HOSTILE})
    assert [file_name(each) for each in HOSTILE] == [file_name(file_name(each)) for each in HOSTILE]


def test_perfmons_names_are_where_perfmon_has_them(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, None, "4711", job_id="12[3].server.example.org")
    assert tmp_path / "job-metrics-4711" == folder.path
    assert tmp_path / ".ipc-12[3].server.example.org" == folder.ipc
    assert folder.path / "configs" / "node-1.cluster_run_config.yml" == folder.run_config("node-1.cluster")
    assert folder.path / "job-report-4711.html" == folder.report_html
    assert (folder.path / "metrics", folder.path / "plots") == (folder.metrics, folder.plots)
    assert tmp_path / "mine" == JobFolder(tmp_path, "mine", "4711").path


@pytest.mark.parametrize("prefix", ["", "..", "a/b", "a\n", "x" * 300])
def test_a_prefix_that_is_no_plain_name_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not usable: it names one folder"):
        JobFolder(tmp_path, prefix, "4711")


def test_two_jobs_and_two_hosts_share_no_file(tmp_path: Path) -> None:
    seven, eight = JobFolder(tmp_path, "all", "7"), JobFolder(tmp_path, "all", "8")
    paths = {
        path
        for job in (seven, eight)
        for host in ("a", "b")
        for path in (job.recording(host), job.log(host), job.merged, job.hosts, job.report_html)
    }
    assert len(paths) == 2 * (3 + 2 * 2)  # three of a job, two of each of its hosts


def test_folders_are_for_their_owner_only_and_the_jobs_in_them_are_found(tmp_path: Path) -> None:
    folders = [JobFolder(tmp_path / "new", "all", key) for key in ("8", "7")]
    for folder in folders:
        folder.make()
        folder.make()
    made = [path for path in (tmp_path / "new" / "all").rglob("*") if path.is_dir()]
    assert {0o700} == {path.stat().st_mode & 0o777 for path in [folders[0].path, *made]}
    assert [job.key for job in JobFolder.found(folders[0].path)] == ["7", "8"]
    assert folders[0].merged == JobFolder.found(folders[0].path)[1].merged
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFoundError, match=r"no job in .*job-metrics-4711"):
            JobFolder.found(path)
