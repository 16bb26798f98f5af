"""The log of a run: one line a record, and harmless on a full disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmon.node.job.hosts import Membership
from fedmon.node.job.identity import identify
from fedmon.node.job.layout import JobFolder
from fedmon.node.job.monitor import JobMonitor
from fedmon.node.job.options import JobOptions
from fedmon.node.job.wrapper import Channel

LOG = """
import logging, sys
from pathlib import Path
from fedmon.node.job.cli import log_into
log_into(Path(sys.argv[1]), verbose=False)
logging.getLogger("fedmon.node.job").warning("%s said\\x1b[2J\\n%s", "squeue", "2026-01-01 INFO forged")
"""


def logged(path: Path) -> subprocess.CompletedProcess[str]:
    """Log one record in a child, because a log takes the place of all handlers."""
    return subprocess.run([sys.executable, "-c", LOG, str(path)], capture_output=True, text=True, timeout=60)


def test_a_record_is_one_line_that_hides_and_forges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"

    assert logged(path).stderr == ""
    assert path.read_text().endswith("Z WARNING fedmon.node.job: squeue said\\x1b[2J\\n2026-01-01 INFO forged\n")


def test_a_record_that_finds_no_room_is_dropped_without_a_word() -> None:
    done = logged(Path("/dev/full"))

    assert (done.returncode, done.stderr) == (0, "")


def test_a_description_that_cannot_be_written_is_logged_once_and_so_is_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder, identity = JobFolder(tmp_path, None, "7"), identify({"FEDMON_JOB_ID": "7"}, hostname="n1", pid=os.getpid())
    with Membership(folder, host="n1") as members:
        members.begin()
        monitor = JobMonitor(
            JobOptions(save_dir=tmp_path), identity, members=members, environ={}, channel=Channel.pair()[0],
            stop=lambda _: True,
        )  # fmt: skip
        folder.recordings.rmdir()
        for _ in range(2):
            monitor.describe()
        folder.make()
        for _ in range(2):
            monitor.describe()

    for text in ("the description of the job waits to be written", "the description of the job is written"):
        assert caplog.text.count(text) == 1
