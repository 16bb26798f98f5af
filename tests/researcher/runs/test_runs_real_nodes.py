"""Runs on real nodes, from Python and from a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmon.common.metrics.sample import Batch
from fedmon.common.store.recording import Recording
from fedmon.common.wire.samples import AddScalar
from fedmon.report import learning_curves
from fedmon.researcher.federation import Federation
from fedmon.researcher.runs.errors import RunFailedError
from tests.support.shell import begun
from tests.support.shell_here import fedmon_here
from tests.support.two_nodes import TwoNodes, two_nodes
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def shell(two: TwoNodes, *words: str) -> tuple[int, dict[str, Any]]:
    done = fedmon_here(*words, "--json", environ=two.environ())
    return done.returncode, json.loads(done.stdout)


def test_values_scalars_and_the_dataset_make_the_whole_way(two: TwoNodes) -> None:
    handle = two.fed.run(two.plan, tags=["cells"], args={"reports": 700}, inputs={"w": np.arange(3.0), "n": 4})

    results = handle.result(timeout_s=60)
    results["b"]["w"] += 1

    assert sorted(results) == ["a", "b"]
    assert results["a"]["rows"] == 3
    assert results["a"]["n"] == 5
    assert results["b"]["w"].tolist() == [2.0, 3.0, 4.0]
    assert [one.step for one in handle.scalars["a"]] == list(range(700))
    assert handle.scalars_lost == {}
    assert two.fed.job(handle.job_id).sha256 == handle.sha256


def test_large_arrays_are_packed_and_uploaded_once_and_come_back_by_digest(two: TwoNodes) -> None:
    weights = np.arange(500_000, dtype="<f8")
    before = len(list((two.folder / "files" / "sha256").iterdir()))

    results = two.fed.run(two.plan, inputs={"w": weights}).result(timeout_s=60)

    for values in results.values():
        assert np.array_equal(values["w"], weights + 1)
    # What both return is the same, and files are kept by their digest.
    assert len(list((two.folder / "files" / "sha256").iterdir())) == before + 2


def test_a_plan_that_fails_on_one_node_leaves_the_other_its_result(two: TwoNodes) -> None:
    handle = two.fed.run(two.plan, args={"fails": "b"})

    with pytest.raises(RunFailedError, match=r"b: failed \(ValueError: no column radius") as caught:
        handle.result(timeout_s=60)

    assert caught.value.results == {"a": {"rows": 0, "mean": 2.0}}
    log = handle.logs("b", "stdout")
    assert (log.text, log.withheld) == ("hello from b\n", "")
    assert "job_output" in handle.logs("a").withheld


def test_the_shell_runs_writes_lists_and_shows(two: TwoNodes, tmp_path: Path) -> None:
    inputs = tmp_path / "in.npz"
    np.savez(inputs, w=np.ones(4))
    words = (str(two.plan), "--tags", "cells,a", "--arg", "reports=2", "--inputs", str(inputs))

    code, ran = shell(two, "run", *words, "--output", str(tmp_path / "out"))
    code_again, shown = shell(two, "run", *words[:1], "--inputs", str(tmp_path / "out" / "a.npz"), "--node", "a")
    _, listed = shell(two, "runs", "list", "--node", "a")
    _, found = shell(two, "runs", "show", ran["job_id"])

    assert code == code_again == 0
    assert ran["results"]["a"]["w"]["array"] == {"dtype": "float64", "shape": [4], "elements": [2.0] * 4}
    assert shown["results"]["a"]["w"]["array"]["elements"] == [3.0] * 4
    assert ran["job_id"] in [job["job_id"] for job in listed["outcomes"][0]["reply"]["jobs"]]
    assert found["results"] == ran["results"]
    assert [one["values"] for one in found["scalars"]["a"]] == [{"loss": 1.0}, {"loss": 0.5}]


def test_four_characters_of_an_id_or_digest_are_enough_in_every_verb(two: TwoNodes) -> None:
    _, ran = shell(two, "run", str(two.plan), "--node", "b")
    _, listed = shell(two, "datasets", "cells, a")
    job_id, dataset_id = ran["job_id"], listed["outcomes"][0]["reply"]["datasets"][0]["dataset_id"]
    others = [job["job_id"] for one in shell(two, "runs")[1]["outcomes"] for job in one["reply"]["jobs"]]
    enough = next(
        job_id[:n] for n in range(4, 37) if {each for each in others if each.startswith(job_id[:n])} == {job_id}
    )

    asked = fedmon_here(
        "plan", "request", two.plan, "--dataset", dataset_id[8:14], "--dataset", "cells,a", "-n", "a",
        environ=two.environ(),
    )  # fmt: skip
    verbs = [("runs", "show", enough), ("runs", "stop", enough), ("runs", "stop", enough, "--node", "b")]
    found = [shell(two, *verb) for verb in verbs]
    unreached, told = shell(two, "runs", "stop", enough, "--node", "b,gone")
    printed = fedmon_here("runs", "logs", enough, environ=two.environ())
    again = shell(two, "run", f"sha256:{ran['sha256'][:4]}", "--dataset", dataset_id[8:14], "--node", "a,b")[1]
    called = shell(two, "run", str(two.plan), "--dataset", "cells")[1]
    words = [shell(two, "run", str(two.plan), "--dataset", word, "--node", "a")[1] for word in ("data", "dataset_")]
    too_short = [("runs", "stop", job_id[:3]), ("run", str(two.plan), "--dataset", dataset_id[:11])]
    short = [fedmon_here(*verb, environ=two.environ()) for verb in too_short]
    several = fedmon_here("runs", "show", job_id[:4], environ=two.environ())

    assert ([code for code, _ in found], asked.returncode) == ([0, 0, 0], 0)
    assert (unreached, [one["node_id"] for one in told["outcomes"]]) == (6, ["gone"])
    assert [found[0][1]["job_id"], found[1][1]["outcomes"], found[2][1]["outcomes"]] == [job_id, [], []]
    assert printed.stdout == "hello from b\n"
    assert (again["sha256"], sum(each["rows"] == 3 for each in again["results"].values())) == (ran["sha256"], 1)
    assert [each["rows"] for each in called["results"].values()] == [3, 3]
    assert ["no dataset 'data" in word["failed"]["a"] for word in words] == [True, True]
    assert [(one.returncode, "at least 4 characters" in one.stderr) for one in short] == [(2, True)] * 2
    assert (several.returncode, f"'{job_id[:4]}' matches " in several.stderr) == (4, True)


def test_the_shell_names_refusals_and_unknown_runs_by_exit_code(two: TwoNodes, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("import fedmon\n\nclass P(fedmon.TrainingPlan):\n    pass\n")

    refused = fedmon_here("run", str(other), "--json", environ=two.environ())
    left = fedmon_here("run", str(other), "--detach", environ=two.environ())
    unknown = fedmon_here("runs", "show", "no-such-job", environ=two.environ())

    assert (refused.returncode, left.returncode, unknown.returncode) == (4, 4, 3)
    assert "goes on" not in left.stdout
    assert "approval" in json.loads(refused.stdout)["failed"]["a"]
    assert not refused.stderr.startswith("job ")
    assert "no node knows a job no-such-job of alice; asked: a, b. `fedmon runs` lists" in unknown.stderr


def test_ctrl_c_ends_the_waiting_and_stop_the_run(two: TwoNodes) -> None:
    words = ("run", str(two.plan), "--arg", "spin=true", "--node", "b")
    waiting = begun(*words, environ=two.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert waiting.stderr is not None
    first = waiting.stderr.readline()
    os.kill(waiting.pid, signal.SIGINT)
    _, said = waiting.communicate(timeout=60)
    job_id = said.rpartition("`fedmon runs stop ")[2].partition("`")[0]
    printed = wait_until(
        lambda: fedmon_here("runs", "logs", job_id, environ=two.environ()).stdout, what="what the plan printed"
    )
    going = fedmon_here("runs", "show", job_id, "--json", environ=two.environ())
    stopped = fedmon_here("runs", "stop", job_id, "--json", environ=two.environ())
    ended = fedmon_here("runs", "show", job_id, "--wait", "45", environ=two.environ())

    assert first.startswith("job ")
    assert waiting.returncode == 130
    assert "stopped waiting; job" in said
    assert printed == "hello from b\n"
    assert json.loads(going.stdout)["nodes"][0]["state"] == "running"
    assert stopped.returncode == 0
    assert ended.returncode == 1
    assert "b: stopped (stopped by researcher alice" in ended.stderr


def reported(path: Path, job_id: str, metric: str = "user_value") -> int:
    """Return how many reports of a job a store holds, or values of another metric."""
    with Recording(path, read_only=True) as recording:
        return sum(
            value is not None
            for stream in recording.extents()
            for batch in recording.read(stream.node_id, stream=stream.stream, boot=stream.boot)
            for series, column in batch.columns.items()
            if series.startswith(metric) and job_id in series
            for value in column
        )


def test_what_a_run_reports_is_recorded_by_its_researcher_in_any_process_and_by_no_other(
    two: TwoNodes, tmp_path: Path
) -> None:
    # given a run of one process, with another one of its researcher and another researcher recording everything
    later = Federation(settings=two.settings("later"), instance="later")
    with (
        Federation(settings=two.settings("recorder"), instance="recorder") as mine,
        Federation(two.url, researcher_id="bob", folder=tmp_path / "bob") as bob,
        mine.record(tmp_path / "mine", nodes=["a"], interval_s=0.5, history_s=0) as record,
        bob.record(tmp_path / "other", nodes=["a"], interval_s=0.5, history_s=0) as other,
    ):
        wait_until(lambda: record.counts.stored and other.counts.stored, what="samples of the machine")
        heard: list[AddScalar | Batch] = []
        bob.on("telemetry", heard.append)
        handle = two.fed.run(two.plan, nodes=["a"], tags=["cells"], args={"reports": 20}, group="counting")
        handle.result(timeout_s=60)
        before = other.counts.stored
        wait_until(lambda: other.counts.stored > before + 1, what="samples after the end")
        wait_until(lambda: reported(tmp_path / "mine", handle.job_id) == 20, what="the reports in the store")
        wait_until(lambda: reported(tmp_path / "mine", handle.job_id, "user_run_rows"), what="the cost of the run")

    # and one that comes when all is over
    with later, later.record(tmp_path / "later", nodes=["a"], history_s=300):
        wait_until(lambda: reported(tmp_path / "later", handle.job_id) == 20, what="the reports in the later store")

    # then only those of their researcher have them, and nobody misses anything
    assert reported(tmp_path / "other", handle.job_id) == 0
    assert not [one for one in heard if isinstance(one, AddScalar)]
    assert [record.losses, other.losses] == [{}, {}]
    assert [one.number for one in handle.scalars["a"]] == list(range(20))

    # and it is one training, with the cost of the run at its last step
    curves = learning_curves(tmp_path / "mine").to_frame()
    assert set(curves["group"]) == {"counting"}
    assert curves["rows"].tolist() == [3] * 20
    assert curves["seconds"].iloc[-1] > 0
    assert curves["bytes"].iloc[-1] > 0
