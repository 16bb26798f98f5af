"""For which run of a job a stop was meant that lay there already when the run began."""

from __future__ import annotations

import glob
import time
from collections.abc import Mapping, Sequence

from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.process import Birth, birth_of
from fedmon.node.job.finders.overhead import LAUNCHERS
from fedmon.node.job.identity import JobIdentity
from fedmon.node.job.layout import RECORDING_SUFFIX, JobFolder
from fedmon.node.job.limit import at_boot_ticks, told_by_slurm
from fedmon.node.job.roll import Registration

_WAITERS = frozenset(name[:15] for name in LAUNCHERS | {"timeout", "time", "sudo", "strace", "uv", "xargs"})
"""What starts one program and waits for it: whoever called it takes that for the program."""
_MOST_WAITERS = 8


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
