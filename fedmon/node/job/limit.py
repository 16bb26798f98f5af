"""When the scheduler will end the job, so that its recording is whole before."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedmon.node.job.ending import margin_s
from fedmon.node.job.identity import JobIdentity

if TYPE_CHECKING:
    from fedmon.node.job.commands import Runner

logger = logging.getLogger(__name__)

_ASK_WITHIN_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


class TimeLimit:
    """Knows when a job ends at the latest, as far as somebody tells; for one thread."""

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str], run: Runner) -> None:
        self._identity, self._environ, self._run = identity, environ, run
        self._ends_at: float | None = None
        self._length_s = identity.time_limit_s

    def ask(self, *, first_start: int | None) -> None:
        """Find it out. A job of SLURM has it in its variables from release 23 on, and squeue tells it before.

        Elsewhere it is so long after the job's first process on this host, which began ``first_start`` clock ticks
        after the boot. Source: sbatch(1), SLURM_JOB_END_TIME.
        """
        text = self._environ.get("SLURM_JOB_END_TIME", "")
        if self._identity.scheduler == "slurm" and text.isascii() and text.isdigit() and len(text) < 12:
            self._ends_at = float(text)
        else:
            self._ends_at = self._told()
        if self._ends_at is None and self._length_s is not None and first_start is not None:
            self._ends_at = at_boot_ticks(first_start) + self._length_s
        if self._ends_at is None:
            return
        left_s = self._ends_at - time.time()
        if left_s <= 0:
            logger.warning("that the job ended %.0f s ago is not believed: this process runs", -left_s)
            self._ends_at = None
        elif self._length_s is None:
            self._length_s = left_s

    def is_near(self) -> bool:
        """Tell whether a run is to end now, so that everything can be written before; a limit may have been moved."""
        if self._ends_at is None or time.time() < self._ends_at - margin_s(self._length_s or 0.0):
            return False
        moved_to = self._told()
        if moved_to is None or moved_to <= self._ends_at:
            return True
        self._ends_at = moved_to
        return False

    def _told(self) -> float | None:
        return told_by_slurm(self._identity, self._run, "%e")


def told_by_slurm(identity: JobIdentity, run: Runner, field: str) -> float | None:
    """Ask SLURM when a job began (``%S``) or ends at the latest (``%e``), in Unix seconds. Source: squeue(1)."""
    if identity.scheduler != "slurm" or identity.raw_id is None:
        return None
    from fedmon.node.job.commands import CommandError

    argv = ["squeue", "--noheader", f"--jobs={identity.raw_id}", f"--format={field}"]
    try:
        said = run(argv, _ASK_WITHIN_S).checked()
        return datetime.datetime.fromisoformat(said.strip()).astimezone().timestamp()
    except (CommandError, ValueError) as error:
        logger.info("when the job %s is not told: %s", "began" if field == "%S" else "ends at the latest", error)
        return None


def at_boot_ticks(ticks: int) -> float:
    """Return the Unix time, in seconds, of a number of clock ticks after the boot."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS
