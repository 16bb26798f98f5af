"""`fedmon plot`, as a shell runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.common.metrics.series import series
from tests.report.tables import recording, samples
from tests.support.shell_here import document_here, fedmon_here

CPU = "host_cpu_busy_ratio"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    batches = [
        samples({CPU: [0.1, 0.2, 0.1], series("host_disk_reads_total", device="sda"): [0, 5, 15]}, node=node)
        for node in ("east", "north")
    ]
    return recording(folder / "all.fmr", *batches)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_people_look_at_first_is_drawn_of_a_file_or_a_folder_and_all_of_it_if_asked(
    store: Path, tmp_path: Path
) -> None:
    done = fedmon_here("plot", store, "--output", tmp_path / "a")
    assert done.returncode == 0
    assert fedmon_here("plot", store.parent, "--output", tmp_path / "b").returncode == 0
    assert fedmon_here("plot", store, "--output", tmp_path / "all", "--all").returncode == 0

    expected = [f"{name}_{who}.png" for name in ("cpu_load", "disk_operations") for who in ("all_nodes", "per_node")]
    assert names(tmp_path / "a") == names(tmp_path / "b") == ["cpu_load_per_node.png"]
    assert names(tmp_path / "all") == expected
    assert f"{tmp_path}/a/cpu_load_per_node.png  CPU load" in done.stdout


def test_plots_are_chosen_by_group_metric_and_node_and_told_as_json(store: Path, tmp_path: Path) -> None:
    documents = [
        document_here("plot", store, "--output", tmp_path, *words)
        for words in (
            ("--group", "cpu", "--combined", "--format", "svg"),
            ("--metric", "host_disk_*", "--per-node"),
            ("--node", "east", "--metric", CPU),
        )
    ]

    assert [[Path(one["path"]).name for one in document["plots"]] for document in documents] == [
        ["cpu_load_all_nodes.svg"],
        ["disk_operations_per_node.png"],
        ["cpu_load_per_node.png"],
    ]
    assert documents[0]["plots"][0]["title"] == "CPU load, average of 2 nodes"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--group", "nope"], 3, "unknown group 'nope' of plots; the groups are: job, user, cpu"),
        (["--metric", "gpu_*"], 3, "the selection has no recorded value"),
        (["--metric", f'{CPU}{{device="sda"}}'], 3, "the selection has no recorded value"),
        (["--node", "south"], 3, "no node 'south'"),
        (["--job", "4711"], 3, "no job '4711'"),
        (["--since", "2030-01-01"], 3, "the selection has no recorded value"),
        (["--since", "soon"], 2, "'soon' is not a time"),
        (["--format", "gif"], 2, "gif"),
        (["--output", "job/all.fmr"], 1, "cannot write plots to job/all.fmr"),
    ],
)
def test_what_cannot_be_plotted_is_said(words: list[str], code: int, said: str, store: Path, tmp_path: Path) -> None:
    done = fedmon_here("plot", store, "--output", "plots", *words, cwd=tmp_path)

    assert (done.returncode, said in done.stderr) == (code, True)
    assert not (tmp_path / "plots").exists()
