"""When this process began, and when the scheduler will end the job, so that its recording is whole before."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Mapping

from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.process import birth_of
from fedmon.node.job.commands import CommandError, Runner
from fedmon.node.job.identity import JobIdentity

logger = logging.getLogger(__name__)

_ASK_WITHIN_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def ends_at(identity: JobIdentity, environ: Mapping[str, str], *, run: Runner) -> float | None:
    """Return when a job of SLURM ends at the latest, in Unix seconds; None where nobody tells.

    Its variables say so from SLURM 23 on, and squeue before. Source: sbatch(1), SLURM_JOB_END_TIME; squeue(1), %e.
    """
    if identity.scheduler != "slurm" or identity.raw_id is None:
        return None
    text = environ.get("SLURM_JOB_END_TIME", "")
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    try:
        said = run(["squeue", "--noheader", f"--jobs={identity.raw_id}", "--format=%e"], _ASK_WITHIN_S).checked()
        return datetime.datetime.fromisoformat(said.strip()).astimezone().timestamp()
    except (CommandError, ValueError) as error:
        logger.info("when the job ends at the latest is not known: %s", error)
        return None


def ends_after(identity: JobIdentity, first_start: int | None) -> float | None:
    """Return when a job ends whose first process on this host started at so many clock ticks after the boot."""
    if identity.time_limit_s is None or first_start is None:
        return None
    return _at(first_start) + identity.time_limit_s


def began() -> float:
    """Return when this process was forked, in Unix seconds: before Python had read its modules, which can take long."""
    try:
        birth = birth_of(os.getpid(), read_file(b"/proc/self/stat", 1024))
    except (OSError, ValueError, IndexError):
        return time.time()
    return _at(birth.start + 1)  # the kernel counts whole ticks that were over


def _at(ticks: int) -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS
