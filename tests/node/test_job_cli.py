"""`fedmon node job` at a running node, and at one that is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmon.node.cli.reach import connected
from fedmon.node.folder import NodeFolder
from tests.node.jobs_real import Program
from tests.node.owner_desks import events, made_folder
from tests.node.owner_shell import node, refused, told
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until


def is_open(folder: Path) -> bool:
    client = connected(NodeFolder.open(folder))
    if client is not None:
        client.close()
    return client is not None


@pytest.mark.parametrize(
    "words", [("list",), ("forget", "a"), ("watch", "a", "--pid", "1")], ids=lambda words: words[0]
)
def test_a_stopped_node_watches_no_jobs_and_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = made_folder(tmp_path / "n")

    assert "is not running, and only a running node watches jobs" in refused(folder, "job", *words, code=5)


def test_a_running_node_watches_a_job_until_it_ends(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    with NodeProcess(folder) as process, Program() as program, Program() as other:
        wait_until(lambda: is_open(folder), what="the node's door")
        watched = told(folder, "job", "watch", "fit", "--pid", str(program.pid), "--name", "a fit")["job"]
        shown = node(folder, "job", "watch", "other", "--pid", str(other.pid)).stdout
        again = refused(folder, "job", "watch", "fit", "--pid", str(other.pid), code=4)
        forgotten = told(folder, "job", "forget", "other")["job"]
        program.end()
        ended = wait_until(
            lambda: [job for job in told(folder, "job", "list")["jobs"] if job["reason"].startswith("all of its")]
        )
        screen = node(folder, "job", "list").stdout
        stopped = process.stop()

    assert (watched["state"], watched["pids"], watched["processes"]) == ("watched", [program.pid], 1)
    assert "stream       job-other" in shown
    assert "cpu: tree" in shown
    assert "'fit' is watched already" in again
    assert forgotten["reason"] == "its owner had it forgotten"
    assert [(job["job_id"], job["state"]) for job in ended] == [("fit", "ended")]
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "a fit" in screen
    assert stopped == 0
    assert {"job-watch", "job-forget"} <= set(events(folder))
