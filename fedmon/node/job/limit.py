"""When the scheduler will end the job, so that its recording is whole before."""

from __future__ import annotations

import datetime
import glob
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedmon.node.collectors.job.process import Birth, birth_of
from fedmon.node.collectors.sysfs import read_file
from fedmon.node.job.ending import margin_s
from fedmon.node.job.finders.overhead import LAUNCHERS
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import RECORDING_SUFFIX, JobFolder
from fedmon.node.job.roll import Registration

if TYPE_CHECKING:
    from fedmon.node.job.commands import Runner

logger = logging.getLogger(__name__)

_ASK_WITHIN_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_WAITERS = frozenset(name[:15] for name in LAUNCHERS | {"timeout", "time", "sudo", "strace", "uv", "xargs"})
"""What starts one program and waits for it: whoever called it takes that for the program."""
_MOST_WAITERS = 8


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


def asked_at(pid: int) -> float:
    """Return when a process was asked for, in Unix seconds: when it was forked, or what started it for somebody else.

    That is before Python had read its modules, which can take long. Now, where that cannot be told.
    """
    try:
        birth = _birth(pid)
        for _ in range(_MOST_WAITERS):
            name = read_file(b"/proc/%d/comm" % birth.parent, 64).decode(errors="replace").rstrip("\n")
            if name not in _WAITERS:
                break
            birth = _birth(birth.parent)
    except (OSError, ValueError, IndexError):
        return time.time()
    return at_boot_ticks(birth.start + 1)  # the kernel counts whole ticks that were over


def is_of_this_run(
    changed: float,
    folder: JobFolder,
    identity: JobIdentity,
    others: Sequence[tuple[Registration, float]],
    *,
    expected: int | None,
    environ: Mapping[str, str],
) -> bool:
    """Tell whether a stop that was written before this process was asked for is meant for it all the same.

    ``changed`` is when, and ``others`` are the other hosts with the time at which each began, all by the clock of the
    file server, in Unix seconds; ``expected`` is how many hosts the run has, where that is known. A host may come late
    to the run of others. A launcher may take longer than the job's work does: SLURM knows when the job began, and where
    it was never measured before there is no other run for which the stop could be.
    """
    if _is_among(identity, others, expected=expected) and any(changed >= began for _, began in others):
        return True
    if identity.scheduler != "slurm" or _was_measured(folder):
        return False
    began = _job_began(identity, environ)
    return began is not None and changed >= began


def _is_among(identity: JobIdentity, others: Sequence[tuple[Registration, float]], *, expected: int | None) -> bool:
    """Tell whether this host is of the run of the others, and does not begin one of its own."""
    steps = {step for other, _ in others if isinstance(step := other.document.get("step"), str)}
    if identity.scheduler == "slurm" and identity.step is not None and steps:
        return identity.step in steps
    return expected is None or len(others) < expected


def _job_began(identity: JobIdentity, environ: Mapping[str, str]) -> float | None:
    text = environ.get("SLURM_JOB_START_TIME", "")
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    from fedmon.node.job.commands import runner

    return told_by_slurm(identity, runner(environ), "%S")


def _was_measured(folder: JobFolder) -> bool:
    pattern = f"*/{folder.recordings.parent.name}/{glob.escape(folder.key)}/*{RECORDING_SUFFIX}"
    return any(folder.save_dir.glob(pattern))


def _birth(pid: int) -> Birth:
    return birth_of(pid, read_file(b"/proc/%d/stat" % pid, 1024))
