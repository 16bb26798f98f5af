"""The log of a run: one line a record, for its owner alone, and harmless on a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_a_log_is_for_its_owner_alone_in_a_folder_that_others_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tmp_path.chmod(0o755)

    assert logged(path).returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_that_finds_no_room_is_dropped_without_a_word() -> None:
    done = logged(Path("/dev/full"))

    assert (done.returncode, done.stderr) == (0, "")
