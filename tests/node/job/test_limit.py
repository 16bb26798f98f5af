"""When a job ends at the latest: who tells it, and who is not believed."""

from __future__ import annotations

import datetime
import time

from fedmon.node.job.identity import identify
from fedmon.node.job.limit import TimeLimit
from tests.node.job.machine import Commands, said


def limit(left_s: float, *, moved_by_s: float | None = None) -> TimeLimit:
    """Return the limit of a job whose variables tell that it ends in so many seconds, and squeue that it was moved."""
    ends_at = int(time.time() + left_s)
    environ = {"SLURM_JOB_ID": "4711", "SLURM_JOB_END_TIME": str(ends_at)}
    commands = Commands()
    if moved_by_s is not None:
        text = datetime.datetime.fromtimestamp(ends_at + moved_by_s).isoformat()  # noqa: DTZ006 - as squeue prints it
        commands = Commands(said("squeue --noheader --jobs=4711 --format=%e", f"{text}\n"))
    found = TimeLimit(identify(environ, hostname="n", pid=1), environ, commands)
    found.ask(first_start=None)
    return found


def test_a_run_ends_when_the_limit_is_near_and_not_before() -> None:
    assert limit(4).is_near()
    assert limit(4, moved_by_s=0).is_near()
    assert not limit(3600).is_near()


def test_a_limit_that_was_moved_since_the_job_began_ends_no_run_early() -> None:
    assert not limit(4, moved_by_s=3600).is_near()


def test_a_job_that_runs_has_not_ended_whatever_its_variables_say() -> None:
    assert not limit(-1000).is_near()
