"""How a run is shown while it goes on: by a shell, and in a notebook."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import JobReport, JobState, Problem, Scalar, Usage
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.cli.run_values import shown, sketched
from fedmon.researcher.cli.runs import tell
from fedmon.researcher.runs.part import Part
from fedmon.researcher.runs.states import NodeRun, RunStates, ScalarsByNode, shown_scalars
from tests.support.notebooks import run_notebook

JOB = JobReport(job_id="j", state=JobState.RUNNING, sha256="0" * 64, created=utc_now())


def states(*parts: NodeRun, **latest: float) -> RunStates:
    return RunStates("j", {part.node_id: msgspec.structs.replace(part, latest=latest) for part in parts})


def test_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    running = NodeRun(node_id=NodeId("a"), job=JOB)
    refused = NodeRun(node_id=NodeId("b"), asked=OutcomeStatus.REFUSED, reason="not\x1b[2J approved")

    told: dict[str, str] = {}
    for changed in (states(running, refused), states(running, refused, loss=0.5)):
        told = tell(changed, told)
    tell(states(msgspec.structs.replace(running, unheard=True), refused), told)

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "job j",
        "a: running",
        "b: refused (not\\x1b[2J approved)",
        "a: running (the node is unheard)",
    ]


def test_the_reports_of_a_training_are_one_data_frame() -> None:
    reports = ScalarsByNode(
        a=[Scalar(number=0, t=1.0, values={"loss": 0.5}, step=0), Scalar(number=1, t=2.0, values={"node": 7.0})],
        b=[Scalar(number=0, t=1.5, values={"loss": None}, step=0)],
    )

    framed = reports.to_frame()

    assert list(framed.columns) == ["node", "number", "t", "step", "loss", "value_node"]
    assert framed["value_node"][1] == 7.0
    assert list(framed["node"]) == ["a", "a", "b"]
    assert framed.groupby("node")["loss"].min()["a"] == 0.5


def test_arrays_in_lists_of_a_result_are_shown_as_arrays() -> None:
    values = {"parts": [np.ones(2), 1], "whole": np.zeros(1001)}

    assert shown(values) == {
        "parts": [{"array": {"dtype": "float64", "shape": [2], "elements": [1.0, 1.0]}}, 1],
        "whole": {"array": {"dtype": "float64", "shape": [1001], "elements": None}},
    }
    assert sketched(values) == "{parts: [array[2] of float64 [1.0, 1.0], 1], whole: array[1001] of float64}"


@pytest.mark.soak
def test_a_notebook_shows_a_table_that_changes_in_place() -> None:
    import nbformat

    notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]  # nbformat's own
    notebook.cells.append(
        nbformat.v4.new_code_cell(  # type: ignore[no-untyped-call]
            "from tests.researcher.runs.test_runs_shown import *\n"
            "from fedmon.researcher.runs.states import shown_in_place\n"
            "over = NodeRun(node_id=NodeId('a'), asked=OutcomeStatus.REFUSED, reason='<b>no</b>')\n"
            "shown_in_place([states(NodeRun(node_id=NodeId('a'), job=JOB)), states(over)])"
        )
    )

    run_notebook(notebook, Path.cwd())

    outputs = notebook.cells[0].outputs
    assert [output["output_type"] for output in outputs] == ["display_data", "execute_result"]
    assert "&lt;b&gt;no" in outputs[0]["data"]["text/html"]
    assert outputs[1]["data"]["text/plain"] == "True"


def test_nodes_with_one_reason_share_a_line_and_nothing_is_said_twice() -> None:
    withheld = "the plan failed (ValueError); its owner lets no text leave"
    problem = Problem(type="ValueError")
    failed = msgspec.structs.replace(JOB, state=JobState.FAILED, reason=withheld, problem=problem, exit_code=1)
    of_none = msgspec.structs.replace(failed, problem=Problem(type="AttributeError"))
    run = states(*(NodeRun(node_id=NodeId(node), job=failed) for node in "ab"), NodeRun(node_id=NodeId("c"), job=JOB))

    assert run.notes()[:-1] == [f"a, b: failed ({withheld})"]
    assert str(run).count("ValueError") == 1
    assert "reason" not in str(run).splitlines()[0]
    assert "it ran without a dataset: name one" in NodeRun(node_id=NodeId("a"), job=of_none).sentence()


def test_a_table_of_a_run_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usage = Usage(wall_s=1234.567, cpu_s=1230.123, peak_memory_bytes=4 * 2**30, energy_j=12345.678)
    ended = msgspec.structs.replace(JOB, state=JobState.SUCCEEDED, usage=usage, sandbox="bubblewrap")
    run = states(NodeRun(node_id=NodeId("a"), job=ended), loss=1 / 3)

    lines = str(run).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[2].split() == ["a", "succeeded", "1234.567", "1230.123", "4096.0", "12345.678", "loss=0.3333"]
    assert lines[-1] == "job j: 1 succeeded, in sandbox bubblewrap"


@pytest.mark.parametrize("asked", [OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.ID_IN_USE])
def test_a_node_that_was_not_reached_did_not_refuse(asked: OutcomeStatus) -> None:
    part = NodeRun(node_id=NodeId("a"), asked=asked, reason=f"{asked.value}: never heard of")

    assert part.is_over
    assert part.sentence() == f"{asked.value} (never heard of)"


def test_a_run_is_asked_after_little_more_than_a_second_whether_it_runs_and_then_ever_more_rarely() -> None:
    part = Part(NodeId("a"), now=0.0)
    part.job_said(msgspec.structs.replace(JOB, state=JobState.STARTING), 0.0)
    asked: list[float] = []

    for _ in range(7):
        now = part.due_at() or 0.0
        asked.append(now)
        assert part.question(now) == {"scalars_from": 0}
        part.job_said(JOB, now)

    assert part.view.state == "running"
    assert asked == [1.25, 3.75, 8.75, 18.75, 34.75, 50.75, 66.75]


def test_counts_keep_all_of_their_digits() -> None:
    assert shown_scalars({"rows": 123_456_789.0, "loss": 0.0123456, "gone": None}) == (
        "rows=123456789, loss=0.01235, gone=none"
    )
