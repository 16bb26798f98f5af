"""The search for a job's processes: each method in turn, until one does."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError, Roots
from fedmon.node.collectors.job.cgroup import Cgroups
from fedmon.node.collectors.job.files import read_file
from fedmon.node.collectors.job.members import is_thread
from fedmon.node.collectors.job.process import birth_of
from fedmon.node.job.commands import CommandError, Failure, Runner, Stop, runner
from fedmon.node.job.finders import cgroups as job_cgroups
from fedmon.node.job.finders.found import Confidence, Found, JobNotFoundError, MethodFailedError, Tried, UnknownJobError
from fedmon.node.job.finders.oar import OarFinder
from fedmon.node.job.finders.overhead import DAEMONS, is_overhead
from fedmon.node.job.finders.pbs import PbsFinder
from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.finders.scheduler import Look, MakeFinder, SchedulerFinder, UnscheduledFinder
from fedmon.node.job.finders.slurm import SlurmFinder
from fedmon.node.job.identity import JobIdentity

logger = logging.getLogger(__name__)

_FIRST_WITHIN_S = 5.0
_AGAIN_S = 2.0
_AGAIN_WITHIN_S = 2.0
"""A look again holds up nothing but the tool's own end, and of that a scheduler's command takes less than a second."""

_MAX_PID = 2**22

_SERVICES = DAEMONS | {
    *("systemd", "init", "sshd", "sshd-session", "login", "cron", "crond", "atd", "tmux: server", "screen", "su"),
    *("sudo", "runuser", "dockerd", "containerd-shim", "conmon", "supervisord", "gdm-session-wor"),
}
"""Programs below which a job begins."""

CGROUP, SCHEDULER, ENVIRONMENT, ANCESTORS = "cgroup", "scheduler", "environment", "ancestors"

CGROUPS_VARIABLE = "FEDMON_JOB_CGROUPS"

_FINDERS: Mapping[str, MakeFinder] = {
    "slurm": SlurmFinder,
    "pbs": PbsFinder,
    "oar": OarFinder,
    "none": UnscheduledFinder,
}
_PAUSE_S = 1.0
"""SLURM shows the processes of a job half a second after it has begun."""
_COMMAND_SHARE = 0.4
"""So much of the time a command may take: when it hangs, there is time to look elsewhere and for a second look."""


class _Hit(NamedTuple):
    pids: Collection[int]
    confidence: Confidence
    detail: str
    cgroup: str | None = None


def find(
    identity: JobIdentity,
    *,
    environ: Mapping[str, str],
    run: Runner,
    roots: Roots = THIS_MACHINE,
    pids: Sequence[int] = (),
    exclude: Sequence[int] = (),
    cgroup_patterns: Sequence[str] = (),
    timeout_s: float = 5.0,
    retries: int = 5,
    stop: Stop | None = None,
) -> Found:
    """Find a job's processes on this host: those named, else by cgroup, scheduler, environment, ancestors.

    ``exclude`` are this tool's own processes, the asking one first; nothing below them is the job's.
    ``cgroup_patterns``, and those in the variable FEDMON_JOB_CGROUPS with colons between them, come before those where
    the scheduler is known to keep jobs; ``{id}`` is the job's id, ``*`` anything within a level. While nothing is found
    all is looked at again, up to ``retries`` times within ``timeout_s``, or until ``stop`` is set; if any are allowed,
    the first look also asks the scheduler whether there is such a job. A tool that runs before its job's programs may
    search again later. Raises JobNotFoundError, of which UnknownJobError says that the scheduler knows no such job, and
    for ``pids`` NotFoundError and InvalidInputError.
    """
    if pids:
        return explicit(pids, roots, exclude)
    patterns = [*cgroup_patterns, *filter(None, environ.get(CGROUPS_VARIABLE, "").split(":"))]
    search = _Search(identity, environ, run, roots, exclude, patterns, timeout_s)
    deadline = Deadline(timeout_s)
    waiting = stop if stop is not None else threading.Event()
    # Without a scheduler and a variable nothing else can appear later.
    looks = retries + 1 if identity.scheduler != "none" or environ.get("FEDMON_JOB_ID") else 1
    for left in reversed(range(looks)):
        found = search.look(deadline.left_s(), asks_controller=left == retries > 0)
        if found is not None:
            return found
        if not left or deadline.passed() or waiting.wait(min(_PAUSE_S, deadline.left_s() / (left + 1))):
            break
    found = search.last_resort()
    if found is None:
        raise JobNotFoundError(search.job, search.tried)
    return found


class _Search:
    """One search; each look is at the processes of that moment."""

    def __init__(
        self,
        identity: JobIdentity,
        environ: Mapping[str, str],
        run: Runner,
        roots: Roots,
        exclude: Sequence[int],
        patterns: Sequence[str],
        timeout_s: float,
    ) -> None:
        self._identity, self._run, self._roots, self._exclude = identity, run, roots, exclude
        self._finder = _FINDERS[identity.scheduler](identity, environ)
        self._patterns = (*patterns, *self._finder.patterns)
        self._command_s = timeout_s * _COMMAND_SHARE
        self._given_up: CommandError | None = None
        named = identity.scheduler if identity.scheduler != "none" else "this"
        self.job = f"{named} job {identity.job_id}"
        self.tried: list[Tried] = []

    def look(self, left_s: float, *, asks_controller: bool) -> Found | None:
        """Try what does not guess; None when nothing did, and then ``tried`` says why. Raises UnknownJobError."""
        self.tried = []
        look = self._now(left_s, asks_controller=asks_controller)
        if look is None:
            return None
        methods: dict[str, Callable[[Look], _Hit]] = {
            CGROUP: self._by_cgroup,
            SCHEDULER: self._by_command,
            ENVIRONMENT: self._by_environment,
        }
        return next((found for name, method in methods.items() if (found := self._attempt(name, method, look))), None)

    def last_resort(self) -> Found | None:
        """Take the relatives of this tool, where it runs in the job."""
        look = self._now(0.0) if self._identity.inside and self._exclude else None
        return None if look is None else self._attempt(ANCESTORS, self._by_ancestors, look)

    def _now(self, left_s: float, *, asks_controller: bool = False) -> Look | None:
        try:
            processes = Processes(self._roots.proc)
        except CollectorUnavailableError as error:
            self.tried.append(Tried("processes", error.reason))
            return None
        cgroups, timeout_s = Cgroups.found(self._roots.cgroup), min(left_s, self._command_s)
        return Look(processes, cgroups, self._run, timeout_s, asks_controller)

    def _attempt(self, name: str, method: Callable[[Look], _Hit], look: Look) -> Found | None:
        try:
            hit = method(look)
            return self._found(name, hit, look.processes)
        except (MethodFailedError, CommandError) as error:
            self.tried.append(Tried(name, str(error)))
            return None

    def _found(self, method: str, hit: _Hit, processes: Processes) -> Found:
        excluded = processes.trees(self._exclude)
        there = processes.still_there(set(hit.pids) - excluded)
        overhead = {birth.pid: birth.start for birth in there if is_overhead(processes, birth.pid)}
        births = [birth for birth in there if birth.pid not in overhead]
        if not births:
            beside = [*(["this tool"] if set(hit.pids) & excluded else []), *(["launchers"] if overhead else [])]
            held = f"nothing but {' and '.join(beside)}" if beside else "no process"
            raise MethodFailedError(f"{hit.detail} holds {held}")
        marks = (self._finder.mark_in(processes.environment(birth.pid)) for birth in births)
        marker = next(filter(None, marks), None)
        return Found(
            pids=tuple(birth.pid for birth in births),
            starts={birth.pid: birth.start for birth in births},
            method=method,
            confidence=hit.confidence,
            cgroup=hit.cgroup,
            marker=None if marker is None else os.fsdecode(marker),
            detail=hit.detail,
            overhead=overhead,
            tried=tuple(self.tried),
        )

    def _by_cgroup(self, look: Look) -> _Hit:
        if look.cgroups.layout == "none":
            raise MethodFailedError(f"no cgroup hierarchy is mounted at {self._roots.cgroup}")
        raw_id = self._finder.resolve(look)
        paths: list[str] = []
        if self._identity.inside and self._exclude:
            paths = job_cgroups.own_paths(look.processes.cgroups(self._exclude[0]), self._finder.level(raw_id))
            paths = [path for path in paths if job_cgroups.exists(look.cgroups, path)]
        if not paths:
            paths = job_cgroups.matching(look.cgroups, self._patterns, **self._finder.names(raw_id))
        if not paths:
            raise MethodFailedError(f"there is none of job {raw_id} below {self._roots.cgroup}")
        named = [path for path in paths if self._identity.host in path]
        if len(paths) > 1 and len(named) == 1:
            paths = named
        pids = set().union(*(job_cgroups.members(look.cgroups, path) for path in paths))
        # Several nodes of a scheduler on one machine: no single cgroup is the job's.
        return _Hit(pids, Confidence.CERTAIN, f"cgroup {' and '.join(paths)}", paths[0] if len(paths) == 1 else None)

    def _by_command(self, look: Look) -> _Hit:
        raw_id = self._finder.resolve(look)
        if self._given_up is not None:
            raise self._given_up
        try:
            asked = self._finder.ask(look, raw_id)
        except CommandError as error:
            if error.failure is Failure.UNKNOWN_JOB:
                raise UnknownJobError(self.job, str(error)) from None
            if error.failure not in {Failure.ENDED_BADLY, Failure.NOT_UNDERSTOOD}:  # absent, or it hangs
                self._given_up = error
            raise
        if asked.cgroup is not None:
            pids = job_cgroups.members(look.cgroups, asked.cgroup)
            return _Hit(pids, Confidence.CERTAIN, f"{asked.command}: cgroup {asked.cgroup}", asked.cgroup)
        excluded = look.processes.trees(self._exclude)
        believed, doubts = with_sign(asked.pids, look.processes, self._finder, raw_id, excluded)
        if not believed:
            raise MethodFailedError(f"{asked.command} names no process of the job{f' ({doubts})' if doubts else ''}")
        return _Hit(believed, Confidence.HIGH, f"{asked.command}{f', but {doubts}' if doubts else ''}")

    def _by_environment(self, look: Look) -> _Hit:
        excluded = look.processes.trees(self._exclude)
        marked = {
            pid
            for pid in look.processes.births
            if pid not in excluded and self._finder.mark_in(look.processes.environment(pid))
        }
        if not marked:
            raise MethodFailedError("no process that this user may look into was started with the job's variables")
        mine, others = of_one_user(marked, look.processes)
        return _Hit(mine, Confidence.MEDIUM, f"variables of the job{f', {others}' if others else ''}")

    def _by_ancestors(self, look: Look) -> _Hit:
        first = beginning(self._identity, look.processes, self._exclude[0])
        pids = look.processes.trees([first])
        return _Hit(pids, Confidence.LOW, f"process {first}, which started this tool, and all below it")


def beginning(identity: JobIdentity, processes: Processes, own_pid: int) -> int:
    """Return the process that the job of this tool began with. Raises MethodFailedError when none can be told.

    Below the daemon of a scheduler that is the highest ancestor; elsewhere it is whoever started the tool, past
    launchers.
    """
    chain = []
    is_below_scheduler = False
    for pid in processes.ancestors(own_pid):
        name = processes.name(pid)
        is_below_scheduler = name in DAEMONS or (identity.scheduler == "oar" and is_overhead(processes, pid))
        if name in _SERVICES or is_below_scheduler:
            break
        if not is_overhead(processes, pid):
            chain.append(pid)
    if not chain:
        raise MethodFailedError("no program of the job started this tool, or it has ended")
    return chain[-1] if is_below_scheduler and identity.scheduler != "none" else chain[0]


def explicit(pids: Sequence[int], roots: Roots, exclude: Collection[int]) -> Found:
    """Return the named processes as they are, without looking for others.

    Raises NotFoundError for one that is not there or has ended, and InvalidInputError for what is no program of a job.
    """
    starts: dict[int, int] = {}
    for pid in pids:
        if not 0 < pid <= _MAX_PID:
            raise InvalidInputError(f"{pid} is no process id: those are from 1 to {_MAX_PID}")
        if pid in exclude:
            raise InvalidInputError(f"process {pid} is this tool itself; name the processes of the job")
        folder = os.fsencode(roots.proc / str(pid))
        try:
            birth = birth_of(pid, read_file(folder + b"/stat", 1024))
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise NotFoundError(f"there is no process {pid} on this host") from None
        except (OSError, ValueError, IndexError) as error:
            raise InvalidInputError(f"process {pid} cannot be read: {error}") from None
        if birth.is_kernel_thread:
            raise InvalidInputError(f"process {pid} is a thread of the kernel; a job is a program")
        if birth.is_zombie:
            raise NotFoundError(f"process {pid} has ended already, it only waits to be taken note of")
        if is_thread(folder, pid):
            raise InvalidInputError(f"{pid} is a thread of another process: name that process (its Tgid)")
        starts[pid] = birth.start
    return Found(
        pids=tuple(sorted(starts, key=lambda pid: (starts[pid], pid))),
        starts=starts,
        method="pids",
        confidence=Confidence.CERTAIN,
        detail="named by their numbers",
    )


def with_sign(
    pids: Collection[int], processes: Processes, finder: SchedulerFinder, raw_id: str, excluded: Collection[int]
) -> tuple[set[int], str]:
    """Return who of the processes is the job's, and in words who is not: empty when all are.

    A sign is the job's variable in its environment or in that of one it descends from, the job's cgroup, or that it
    descends from the scheduler's daemon for this job. What a scheduler lists is not believed without: its answer may
    be old, of another host, or made up.
    """
    doubts: Counter[str] = Counter()
    believed = set()
    for pid in pids:
        if pid in excluded:
            continue
        if pid not in processes:
            doubts["not there"] += 1
        elif pid == 1 or not _has_sign(pid, processes, finder, raw_id):
            doubts["without any sign of the job"] += 1
        else:
            believed.add(pid)
    return believed, ", ".join(f"{count} {doubt}" for doubt, count in sorted(doubts.items()))


def of_one_user(pids: Collection[int], processes: Processes) -> tuple[set[int], str]:
    """Return those processes that have the user of the oldest, and in words how many have not.

    A job is one user's; variables are easily set by another.
    """
    oldest = min(pids, key=lambda pid: (processes.births[pid].start, pid))
    user = processes.user(oldest)
    mine = {pid for pid in pids if processes.user(pid) == user}
    others = len(pids) - len(mine)
    return mine, f"{others} of another user left out" if others else ""


def _has_sign(pid: int, processes: Processes, finder: SchedulerFinder, raw_id: str) -> bool:
    if finder.mark_in(processes.environment(pid)):
        return True
    level = finder.level(raw_id)
    if any(level.fullmatch(part) for path in processes.cgroups(pid) for part in path.split("/")):
        return True
    return any(
        finder.keeps(" ".join(processes.command(ancestor))) or finder.mark_in(processes.environment(ancestor))
        for ancestor in processes.ancestors(pid)
    )


class JobSearch:
    """Finds the processes of the job that this tool runs in, or those that were named; for one thread.

    ``stop`` ends a look at once. ``goes_on`` tells whether it is worth to look again: a scheduler or a launcher started
    the tool, and will end it with the job. On the second host of a job nothing of it runs before the first step, and
    between two of them. It is not worth it where the scheduler knows no such job.
    """

    def __init__(
        self, identity: JobIdentity, *, environ: Mapping[str, str], pids: Sequence[int], stop: Stop | None = None
    ) -> None:
        self._identity, self._environ, self._pids, self._stop = identity, environ, pids, stop
        self._next = 0.0
        self.goes_on = not pids and identity.scheduler != "none" and _is_kept()

    def first(self) -> Found:
        """Look for some seconds. Raises FedmonError."""
        try:
            return self._find(_FIRST_WITHIN_S, retries=5)
        except UnknownJobError:
            self.goes_on = False
            raise
        finally:
            self._next = time.monotonic() + _AGAIN_S

    def again(self) -> Found | None:
        """Look once more when it is time to; None when there is nothing, or nothing yet."""
        if time.monotonic() < self._next:
            return None
        try:
            return self._find(_AGAIN_WITHIN_S, retries=0)
        except JobNotFoundError as error:
            logger.debug("looked again: %s", error)
            return None
        finally:
            self._next = time.monotonic() + _AGAIN_S

    def _find(self, timeout_s: float, *, retries: int) -> Found:
        return find(
            self._identity,
            environ=self._environ,
            roots=THIS_MACHINE,
            run=runner(self._environ, stop=self._stop),
            stop=self._stop,
            pids=self._pids,
            exclude=(os.getpid(),),
            timeout_s=timeout_s,
            retries=retries,
        )


def _is_kept() -> bool:
    try:
        processes = Processes(THIS_MACHINE.proc)
    except CollectorUnavailableError:
        return False
    return any(is_overhead(processes, pid) for pid in processes.ancestors(os.getpid()))
