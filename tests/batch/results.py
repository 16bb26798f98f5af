"""What runs of `fedmon job` left below a batch system: the recording of all hosts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.node.job.tool_runs import Left, left


def merged(folder: Path, job: str, host: str | None = "node1") -> Left:
    """Read what is of one host, or of the only one, in the merged recording of a job, which has to be sound."""
    path = folder / f"{job}.fmr"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return left(path, None if host is None else f"job-{job}-{host}")
