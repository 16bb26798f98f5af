"""What the node tells the process that keeps a job, and what that one leaves behind; all of it as files of JSON.

A job's folder holds ``order.json``; ``lock``, locked as long as its keeper lives; ``processes``, those that are to be
killed when it does not; ``stop.json``, why it is asked to end; ``events.jsonl``, what happened, a line each; ``stdout``
and ``stderr``, what is kept of them (see trace.py); ``result``, the bytes of the result; ``tmp``, what the plan writes
where its sandbox has no file system for that; and in the end ``ending.json``, written whole or not at all.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import msgspec

from fedmon.common.wire.runs import JobState, Level, Problem, Usage

ORDER = "order.json"
LOCK = "lock"
PROCESSES = "processes"
STOP = "stop.json"
EVENTS = "events.jsonl"
STDOUT, STDERR = "stdout", "stderr"
RESULT = "result"
TMP = "tmp"
ENDING = "ending.json"

LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first."""


def is_weaker(level: Level | None, minimum: Level | None) -> bool:
    """Tell whether a level confines less than another; None confines nothing."""
    ranks = (*LEVELS, None)
    return ranks.index(level) > ranks.index(minimum)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may take, see RunLimits; ``grace_s`` is the time between SIGTERM and SIGKILL."""

    cpu_s: float
    wall_s: float
    memory_bytes: int
    processes: int
    output_bytes: int
    tmp_bytes: int
    grace_s: float = 3.0


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """The Python that plans run on: its program, the folders and files that it needs, and where it finds packages."""

    executable: str
    needs: list[str]
    path: list[str]
    version: str


class GivenDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset as a job gets it; ``path`` is where it lies on this machine."""

    dataset_id: str
    name: str
    data_type: str
    path: str
    tags: list[str] = []
    shape: list[int] | None = None
    dtypes: dict[str, str] | None = None


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as its keeper gets it. ``inputs_format`` is null where there are no inputs.

    ``level`` is how it is confined: the strongest that the daemon found at its start. ``minimum`` is the weakest that
    the owner allows; a keeper starts nothing below it. Both are null only when somebody tries a plan of their own
    without a sandbox; see trial.py, which fills in what has a default.
    """

    job_id: str = ""
    node_id: str = "here"
    folder: str = ""
    sha256: str = ""
    name: str
    interpreter: Interpreter
    runtime: str = ""
    limits: Limits
    level: Level | None
    minimum: Level | None
    trace_bytes: int = 1_048_576
    dataset: GivenDataset | None = None
    arguments: dict[str, Any] = {}
    inputs_format: Literal["json", "npz"] | None = None
    devices: list[str] = []

    @property
    def mark(self) -> int:
        """A number of 62 bits that all processes of the job bear, known by it when nobody watches over them any more.

        It is a limit that means nothing to the kernel, is inherited by every process, and can be raised by none:
        RLIMIT_LOCKS. A plan cannot lower it either, as the filters of system calls deny that. An environment could be
        overwritten, and the same job id may run on several nodes of one machine.
        Source: Linux man-pages, getrlimit(2), "In Linux 2.4.25 and later" of RLIMIT_LOCKS.
        """
        digest = hashlib.sha256(self.folder.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") >> 2 | 1

    @property
    def cgroup(self) -> str:
        """What its cgroup is called; the same job may run on other nodes of this machine."""
        return f"fedmon-job-{self.job_id}-{self.mark:016x}"


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="started"):
    """The plan's first process runs; ``pid`` as the machine counts, ``cgroup`` a path below the hierarchies or null."""

    t: float
    pid: int
    sandbox: Level | None
    cgroup: str | None = None


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="scalar"):
    """The plan called ``context.report``."""

    t: float
    number: int
    values: dict[str, float | None]
    step: int | None = None


class Logged(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="log"):
    """The plan called ``context.log``."""

    t: float
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    message: str


Event = Started | Reported | Logged


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is to end before its time: the state that it then is in, and a sentence."""

    state: JobState
    reason: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended; ``problem`` whole, whatever of it may leave. ``result_format`` is null without a result."""

    state: JobState
    reason: str
    started: float | None = None
    ended: float = 0.0
    sandbox: Level | None = None
    exit_code: int | None = None
    problem: Problem | None = None
    usage: Usage = Usage()
    scalars: int = 0
    result_format: Literal["json", "npz"] | None = None
    result_sha256: str | None = None
    result_bytes: int = 0
