"""`fedmon node job` at a running node, and at one that is stopped."""

from __future__ import annotations

from pathlib import Path

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


def test_a_stopped_node_watches_no_jobs_and_says_so(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n")

    said = refused(folder, "job", "watch", "a", "--pid", "1", code=5)

    assert "is not running, and only a running node watches jobs" in said


def test_a_running_node_watches_a_job_until_it_ends(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "n", metrics={"interval_s": 0.2, "min_interval_s": 0.2})
    with NodeProcess(folder) as process, Program() as program:
        wait_until(lambda: is_open(folder), what="the node's door")
        shown = node(folder, "job", "watch", "fit", "--pid", str(program.pid), "--name", "a fit").stdout
        again = refused(folder, "job", "watch", "fit", "--pid", str(program.pid), code=4)
        program.end()
        wait_until(lambda: events(folder)[-1:] == ["job-ended"], what="the end in the audit")
        listed = told(folder, "job", "list")["jobs"]
        screen = node(folder, "job", "list").stdout
        stopped = process.stop()

    assert "stream       job-fit" in shown
    assert "cpu: tree" in shown
    assert "'fit' is watched already" in again
    assert [(job["job_id"], job["state"], job["reason"]) for job in listed] == [
        ("fit", "ended", "all of its processes have ended")
    ]
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "a fit" in screen
    assert stopped == 0
    assert "job-watch" in events(folder)
