"""The search for a job's processes: each method in turn, until one does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from fedmon.common.clock import Deadline
from fedmon.node.collectors.base import THIS_MACHINE, CollectorUnavailableError, Roots
from fedmon.node.collectors.job.cgroup import Cgroups
from fedmon.node.job.commands import CommandError, Failure, Runner, Stop
from fedmon.node.job.finders import cgroups as job_cgroups
from fedmon.node.job.finders.ancestors import beginning
from fedmon.node.job.finders.explicit import explicit
from fedmon.node.job.finders.found import Confidence, Found, JobNotFoundError, MethodFailedError, Tried, UnknownJobError
from fedmon.node.job.finders.oar import OarFinder
from fedmon.node.job.finders.overhead import is_overhead
from fedmon.node.job.finders.pbs import PbsFinder
from fedmon.node.job.finders.processes import Processes
from fedmon.node.job.finders.scheduler import Look, MakeFinder
from fedmon.node.job.finders.signs import of_one_user, with_sign
from fedmon.node.job.finders.slurm import SlurmFinder
from fedmon.node.job.finders.unscheduled import UnscheduledFinder
from fedmon.node.job.identity import JobIdentity

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
