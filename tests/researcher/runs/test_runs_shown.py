"""How a run is shown while it goes on: in a terminal, and in a notebook."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.common.clock import utc_now
from fedmon.common.ids import NodeId
from fedmon.common.wire.runs import Job, JobState
from fedmon.researcher.cli_run_show import progress
from fedmon.researcher.outcomes import OutcomeStatus
from fedmon.researcher.runs.states import NodeRun, RunStates

JOB = Job(job_id="j", state=JobState.RUNNING, sha256="0" * 64, created=utc_now())


def states(*parts: NodeRun, **latest: float) -> RunStates:
    return RunStates("j", {part.node_id: part for part in parts}, {NodeId("a"): latest} if latest else {})


def test_without_a_terminal_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    running = NodeRun(node_id=NodeId("a"), job=JOB)
    refused = NodeRun(node_id=NodeId("b"), asked=OutcomeStatus.REFUSED, reason="not\x1b[2J approved")

    with progress(silent=False) as show:
        show(states(running, refused))
        show(states(running, refused, loss=0.5))
        show(states(running.unheard_from(None), refused))

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "a: running",
        "b: refused (not\\x1b[2J approved)",
        "a: running (the node is unheard)",
    ]


def test_with_json_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(silent=True) as show:
        show(states(NodeRun(node_id=NodeId("a"), job=JOB)))

    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_table_that_changes() -> None:
    code = (
        "from tests.researcher.runs.test_runs_shown import *\n"
        "with progress(silent=False) as show:\n"
        "    show(states(NodeRun(node_id=NodeId('a'), job=JOB), loss=0.5))\n"
        "    show(states(NodeRun(node_id=NodeId('a'), job=JOB).unheard_from(None), loss=0.25))\n"
    )
    ours, theirs = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path.cwd(), env=environ, stdout=theirs, stderr=theirs
    ) as run:
        os.close(theirs)
        shown = io.BytesIO()
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                break
            if not piece:
                break
            shown.write(piece)
        run.wait(20)
    os.close(ours)
    text = shown.getvalue().decode()

    assert run.returncode == 0, text
    assert "loss=0.5" in text
    assert "the node is unheard" in text
    assert "job j: 1 running; 1 of them unheard" in text


@pytest.mark.soak
def test_a_notebook_shows_a_table_that_changes_in_place() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook()
    notebook.cells.append(
        nbformat.v4.new_code_cell(
            "from tests.researcher.runs.test_runs_shown import *\n"
            "from fedmon.researcher.runs.notebook import shown_in_place\n"
            "over = NodeRun(node_id=NodeId('a'), asked=OutcomeStatus.REFUSED, reason='<b>no</b>')\n"
            "shown_in_place([states(NodeRun(node_id=NodeId('a'), job=JOB)), states(over)])"
        )
    )

    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(Path.cwd())}}).execute()

    outputs = notebook.cells[0].outputs
    assert [output["output_type"] for output in outputs] == ["display_data", "execute_result"]
    assert "&lt;b&gt;no" in outputs[0]["data"]["text/html"]
    assert outputs[1]["data"]["text/plain"] == "True"
