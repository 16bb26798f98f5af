"""What was found of a job, how, and what was tried in vain."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from fedmon.common.errors import NotFoundError


class Confidence(enum.StrEnum):
    """How sure it is that these are the job's processes, and all of them.

    ``certain``: they were named, or the kernel keeps the list. ``high``: the scheduler names them, and each bears a
    sign of the job. ``medium``: each was started with the job's variables. ``low``: they are relatives of the tool.
    """

    CERTAIN = "certain"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Tried(NamedTuple):
    """A method, and why it did not do."""

    method: str
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job on this host, oldest first, each once.

    ``starts`` says when each of them started, in clock ticks since the boot, so that a number that is given again is
    noticed. ``cgroup`` is the path of the job's own inside its hierarchies. ``marker`` is the ``NAME=value`` with which
    its processes are started. ``overhead`` are daemons and launchers of the scheduler beside them, such as slurmstepd
    and mpirun; they count for nobody, but what they started does. ``method`` is one of ``pids``, ``cgroup``,
    ``scheduler``, ``environment`` and ``ancestors``; ``detail`` says more about it.
    """

    pids: tuple[int, ...]
    starts: Mapping[int, int]
    method: str
    confidence: Confidence
    cgroup: str | None = None
    marker: str | None = None
    detail: str = ""
    overhead: Mapping[int, int] = {}
    tried: tuple[Tried, ...] = ()


class JobNotFoundError(NotFoundError):
    """No process of the job is on this host, or none yet; ``tried`` says what was looked at."""

    def __init__(self, job: str, tried: Sequence[Tried]) -> None:
        looked = "; ".join(f"{method}: {why}" for method, why in tried)
        super().__init__(
            f"no process of {job} is on this host: it has ended, has not begun, or runs elsewhere ({looked})"
        )
        self.tried = tuple(tried)


class UnknownJobError(JobNotFoundError):
    """The scheduler says that there is no such job, so that looking again is no use."""

    def __init__(self, job: str, why: str) -> None:
        text = f"there is no {job} ({why}): correct the variable that names it, name processes with --pid, or measure a"
        NotFoundError.__init__(self, f"{text} command with 'fedmon job -- COMMAND'")
        self.tried = (Tried("scheduler", why),)


class MethodFailedError(Exception):
    """One method of finding a job did not do; the text says why."""
