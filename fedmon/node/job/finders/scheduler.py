"""What the search for a job asks of each scheduler's finder, and the finder for a job that none started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedmon.node.collectors.job.cgroup import Cgroups
from fedmon.node.job.commands import Runner
from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.identity import JobIdentity


class Asked(NamedTuple):
    """What a scheduler's command told: processes, or the path of the job's cgroup; and which command it was."""

    command: str
    pids: frozenset[int] = frozenset()
    cgroup: str | None = None


class Look(NamedTuple):
    """What one search has to look at: the processes of now, the cgroups, and a runner of commands.

    ``asks_controller`` allows a question to the scheduler's controller, which all hosts share.
    """

    processes: Processes
    cgroups: Cgroups
    run: Runner
    timeout_s: float
    asks_controller: bool = False


class SchedulerFinder(Protocol):
    """Knows by what the jobs of one scheduler can be told; made for one job."""

    @property
    def command(self) -> str:
        """The command that lists a job's processes, for people."""
        ...

    @property
    def patterns(self) -> Sequence[str]:
        """Where the job's cgroup may lie, see cgroups.matching."""
        ...

    def resolve(self, look: Look) -> str:
        """Return the id that cgroups and commands know the job by. Raises MethodFailedError when there is none."""
        ...

    def names(self, raw_id: str) -> Mapping[str, str]:
        """Return what stands for the names in the patterns."""
        ...

    def level(self, raw_id: str) -> re.Pattern[str]:
        """Return what the last level of the cgroup's path looks like."""
        ...

    def ask(self, look: Look, raw_id: str) -> Asked:
        """Ask the scheduler. Raises MethodFailedError and CommandError."""
        ...

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Return the variable in the environment of a process that makes it the job's; None where there is none."""
        ...

    def keeps(self, title: str) -> bool:
        """Tell whether the command line of a daemon says that it keeps this job."""
        ...


MakeFinder = Callable[[JobIdentity, Mapping[str, str]], SchedulerFinder]


def known_id(identity: JobIdentity) -> str:
    """Return the id that a scheduler's commands take. Raises MethodFailedError when it cannot be one."""
    if identity.raw_id is None:
        raise MethodFailedError(f"{identity.job_id!r} is no job id of {identity.scheduler}")
    return identity.raw_id


def variables(environment: Iterable[bytes], *names: bytes) -> list[tuple[bytes, bytes]]:
    """Return those variables of an environment that have one of the names, with their values."""
    split = (entry.partition(b"=") for entry in environment)
    return [(name, value) for name, _, value in split if name in names]


class UnscheduledFinder:
    """Knows a job by a variable that its owner set."""

    command = "none"
    patterns = ()

    def __init__(self, _identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self._id = os.fsencode(environ.get("FEDMON_JOB_ID", ""))

    def resolve(self, _look: Look) -> str:
        """Say that there is no id."""
        raise MethodFailedError("no scheduler started this job")

    def names(self, _raw_id: str) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def level(self, _raw_id: str) -> re.Pattern[str]:
        """Return what no name is."""
        return re.compile("(?!)")

    def ask(self, _look: Look, _raw_id: str) -> Asked:
        """Say that there is nobody to ask."""
        raise MethodFailedError("no scheduler started this job")

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Look for FEDMON_JOB_ID."""
        for name, value in variables(environment, b"FEDMON_JOB_ID"):
            if self._id and value == self._id:
                return b"%s=%s" % (name, value)
        return None

    def keeps(self, _title: str) -> bool:
        """Know no daemon."""
        return False
