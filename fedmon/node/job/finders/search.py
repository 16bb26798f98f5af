"""The search for a job's processes: each method in turn, until one finds some."""

from __future__ import annotations

import enum
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fedmon.common.clock import Deadline
from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.collectors.job.cgroup import find_hierarchies
from fedmon.node.job.commands import CommandError, NoSuchJobError, Runner
from fedmon.node.job.finders.schedulers import FINDERS, Finder, Hit, Look, MethodFailedError, is_job
from fedmon.node.job.identity import JOB_IDS, JobIdentity, SchedulerName, named
from fedmon.node.job.processes import DAEMONS, Processes, folders_of, matching, members, own_paths

CGROUPS_VARIABLE = "FEDMON_JOB_CGROUPS"
_WITHIN_S = 5.0
_AGAIN_S = _AGAIN_WITHIN_S = 2.0
_PAUSE_S = 1.0
"""SLURM shows the processes of a job half a second after it has begun."""
_COMMAND_SHARE = 0.4
"""The share of the time for a command: if it hangs, there is time for other methods and a second look."""
_SERVICES = DAEMONS | {
    *("systemd", "init", "sshd", "sshd-session", "cron", "crond", "sudo", "su", "runuser"),
    *("tmux: server", "screen", "containerd-shim", "conmon", "supervisord"),
}
"""Programs below which a job begins."""
_COMMANDS: Mapping[SchedulerName, str] = {"slurm": "scontrol", "pbs": "qstat", "oar": "oarstat"}


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
    """A method, and why it found nothing."""

    method: str
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job on this host, each once: oldest first, or named ones as they were named, without starts.

    ``starts`` are their start times in clock ticks since the boot, which tell a reused number. ``cgroup`` is the job's
    own path inside its hierarchies. ``marker`` is the ``NAME=value`` with which its processes are started. ``overhead``
    are the scheduler's daemons and launchers beside them, which do not count; their children do. ``method`` is one of
    ``pids``, ``cgroup``, ``scheduler``, ``environment`` and ``ancestors``.
    """

    pids: tuple[int, ...]
    starts: Mapping[int, int] = {}
    method: str
    confidence: Confidence
    cgroup: str | None = None
    marker: str | None = None
    detail: str = ""
    overhead: Mapping[int, int] = {}
    tried: tuple[Tried, ...] = ()


class JobNotFoundError(NotFoundError):
    """No process of the job is on this host, or none yet; ``tried`` are the methods."""

    def __init__(self, job: str, tried: Sequence[Tried]) -> None:
        looked = "; ".join(f"{method}: {why}" for method, why in tried)
        super().__init__(
            f"no process of {job} is on this host: it has ended, has not begun, or runs elsewhere ({looked})"
        )
        self.tried = tuple(tried)


class UnknownJobError(JobNotFoundError):
    """The scheduler does not know the job, so that looking again is no use."""

    def __init__(self, job: str, why: str) -> None:
        NotFoundError.__init__(self, f"{job} not found ({why}): correct its id, or name its processes with --pid")
        self.tried = (Tried("scheduler", why),)


class JobSearch:
    """Finds a job's processes on this host: those named, else by cgroup, scheduler, environment, ancestors.

    ``exclude`` are this tool's own processes, the asking one first; nothing below them is the job's.
    ``cgroup_patterns``, and those in the variable FEDMON_JOB_CGROUPS with colons between them, come before the
    scheduler's usual places; ``{id}`` is the job's id, ``*`` anything within a level. ``stop`` ends a look at once. For
    one thread.
    """

    def __init__(
        self,
        identity: JobIdentity,
        *,
        environ: Mapping[str, str],
        run: Runner,
        roots: Roots = THIS_MACHINE,
        pids: tuple[int, ...] = (),
        exclude: Sequence[int] = (),
        cgroup_patterns: Sequence[str] = (),
        stop: Callable[[float], bool] | None = None,
    ) -> None:
        self._identity, self._run, self._roots, self._exclude = identity, run, roots, exclude
        self._pids, self._stop = pids, stop or threading.Event().wait
        self._finder = FINDERS[identity.scheduler](identity, environ)
        given = filter(None, environ.get(CGROUPS_VARIABLE, "").split(":"))
        self._patterns = (*cgroup_patterns, *given, *self._finder.patterns)
        # Without a scheduler and a variable nothing else can appear later.
        self._may_appear = identity.scheduler != "none" or bool(environ.get("FEDMON_JOB_ID"))
        self._command_s = 0.0
        self._tried: list[Tried] = []
        self._server_said = "the server was not asked"
        self._next = 0.0
        self._is_known = True

    @functools.cached_property
    def _has_keeper(self) -> bool:
        processes = Processes(self._roots.proc)
        return any(processes.is_overhead(pid) for pid in processes.ancestors(self._exclude[0]))

    @property
    def goes_on(self) -> bool:
        """Tell whether looking again may help: a scheduler or a launcher started the tool, and will end it.

        On the second host of a job nothing runs before the first step.
        """
        return self._is_known and not self._pids and self._identity.scheduler != "none" and self._has_keeper

    def again(self) -> Found | None:
        """Look once more if it is time; None if nothing was found."""
        if time.monotonic() < self._next:
            return None
        try:
            return self.find(_AGAIN_WITHIN_S, retries=0, asks_controller=False)
        except JobNotFoundError:
            return None

    def find(self, timeout_s: float = _WITHIN_S, *, retries: int = 5, asks_controller: bool = True) -> Found:
        """Look until something is found, up to ``retries`` times more within ``timeout_s``.

        With ``asks_controller`` the first look also asks the controller that all hosts share; from outside of the job
        each look does. Raises JobNotFoundError, of which UnknownJobError says that the scheduler knows no such job.
        Named processes are not looked for; raises InvalidInputError if one is this tool.
        """
        if self._pids:
            if own := set(self._pids).intersection(self._exclude):
                raise InvalidInputError(f"process {min(own)} is this tool itself; name the processes of the job")
            return Found(pids=self._pids, method="pids", confidence=Confidence.CERTAIN, detail="named by their numbers")
        self._command_s = timeout_s * _COMMAND_SHARE
        deadline = Deadline(timeout_s)
        try:
            for left in reversed(range(retries + 1 if self._may_appear else 1)):
                may_ask = asks_controller and (left == retries or not self._identity.inside)
                found = self._look(deadline.left_s(), asks_controller=may_ask)
                if found is not None:
                    return found
                if not left or deadline.passed() or self._stop(min(_PAUSE_S, deadline.left_s() / (left + 1))):
                    break
            if self._identity.inside and self._exclude:
                found = self._attempt("ancestors", self._by_ancestors, self._now(0.0))
        finally:
            self._next = time.monotonic() + _AGAIN_S
        if found is None:
            raise JobNotFoundError(self._name, self._tried)
        return found

    @property
    def _name(self) -> str:
        scheduler = self._identity.scheduler
        return f"{scheduler if scheduler != 'none' else 'this'} job {self._identity.job_id}"

    def _look(self, left_s: float, *, asks_controller: bool) -> Found | None:
        """Try each method that does not guess; None if none found any. Raises UnknownJobError."""
        self._tried = []
        look = self._now(left_s, asks_controller=asks_controller)
        methods = {"cgroup": self._by_cgroup, "scheduler": self._by_command, "environment": self._by_environment}
        return next(filter(None, (self._attempt(name, method, look) for name, method in methods.items())), None)

    def _now(self, left_s: float, *, asks_controller: bool = False) -> Look:
        hierarchies, timeout_s = find_hierarchies(self._roots.cgroup), min(left_s, self._command_s)
        return Look(Processes(self._roots.proc), hierarchies, self._run, timeout_s, asks_controller)

    def _attempt(self, name: str, method: Callable[[Look], tuple[Hit, Confidence]], look: Look) -> Found | None:
        try:
            hit, confidence = method(look)
            return self._found(name, hit, confidence, look.processes)
        except (MethodFailedError, CommandError) as error:
            if name == "scheduler":
                self._server_said = str(error)
            self._tried.append(Tried(name, str(error)))
            return None

    def _found(self, method: str, hit: Hit, confidence: Confidence, processes: Processes) -> Found:
        excluded = processes.trees(self._exclude)
        alive = processes.still_there(set(hit.pids) - excluded)
        overhead = {birth.pid: birth.start for birth in alive if processes.is_overhead(birth.pid)}
        births = [birth for birth in alive if birth.pid not in overhead]
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
            confidence=confidence,
            cgroup=hit.cgroup,
            marker=None if marker is None else os.fsdecode(marker),
            detail=hit.detail,
            overhead=overhead,
            tried=tuple(self._tried),
        )

    def _by_cgroup(self, look: Look) -> tuple[Hit, Confidence]:
        raw_id = self._finder.resolve(look)
        paths: list[str] = []
        if self._identity.inside and self._exclude:
            paths = own_paths(look.processes.cgroups(self._exclude[0]), is_job(self._finder.level, raw_id))
            paths = [path for path in paths if folders_of(look.hierarchies, path)]
        if not paths:
            names = {"id": raw_id, "number": raw_id.partition(".")[0]}
            paths = matching(look.hierarchies, self._patterns, names)
        if not paths:
            raise MethodFailedError(f"no cgroup of job {raw_id} below {self._roots.cgroup}")
        of_host = [path for path in paths if self._identity.host in path]
        if len(paths) > 1 and len(of_host) == 1:
            paths = of_host
        pids = frozenset().union(*(members(look.hierarchies, path) for path in paths))
        # Several nodes of a scheduler on one machine: no single cgroup is the job's.
        hit = Hit(f"cgroup {' and '.join(paths)}", pids, paths[0] if len(paths) == 1 else None)
        return hit, Confidence.CERTAIN

    def _by_command(self, look: Look) -> tuple[Hit, Confidence]:
        raw_id = self._finder.resolve(look)
        if self._finder.asks_server and not look.asks_controller:
            raise MethodFailedError(self._server_said)
        try:
            hit = self._finder.ask(look, raw_id)
        except NoSuchJobError as error:
            self._is_known = False
            raise UnknownJobError(self._name, str(error)) from None
        if hit.cgroup is not None:
            pids = frozenset(members(look.hierarchies, hit.cgroup))
            return Hit(f"{hit.detail}: cgroup {hit.cgroup}", pids, hit.cgroup), Confidence.CERTAIN
        # A scheduler's list is not believed without a sign: it may be old, or of another host.
        pids = hit.pids - look.processes.trees(self._exclude)
        believed = frozenset(pid for pid in pids if _has_sign(pid, look.processes, self._finder, raw_id))
        doubts = f"{len(pids - believed)} without any sign of the job"
        if not believed:
            raise MethodFailedError(f"{hit.detail} names no process of the job{f' ({doubts})' if pids else ''}")
        return Hit(f"{hit.detail}{f', but {doubts}' if pids - believed else ''}", believed), Confidence.HIGH

    def _by_environment(self, look: Look) -> tuple[Hit, Confidence]:
        processes = look.processes
        marked = {
            pid
            for pid in processes.births.keys() - processes.trees(self._exclude)
            if self._finder.mark_in(processes.environment(pid))
        }
        if not marked:
            raise MethodFailedError("no process that this user may look into was started with the job's variables")
        # A job is one user's; variables are easily set by another.
        user = processes.user(min(marked, key=lambda pid: (processes.births[pid].start, pid)))
        mine = frozenset(pid for pid in marked if processes.user(pid) == user)
        others = f", {len(marked - mine)} of another user left out" if marked - mine else ""
        return Hit(f"variables of the job{others}", mine), Confidence.MEDIUM

    def _by_ancestors(self, look: Look) -> tuple[Hit, Confidence]:
        first = beginning(self._identity, look.processes, self._exclude[0])
        pids = frozenset(look.processes.trees([first]))
        return Hit(f"process {first}, which started this tool, and all below it", pids), Confidence.LOW


def beginning(identity: JobIdentity, processes: Processes, own_pid: int) -> int:
    """Return the process that the job of this tool began with. Raises MethodFailedError if there is none.

    Below the daemon of a scheduler that is the highest ancestor; elsewhere the parent of the tool, past launchers.
    """
    chain = []
    is_below_scheduler = False
    for pid in processes.ancestors(own_pid):
        name = processes.name(pid)
        is_below_scheduler = name in DAEMONS or (identity.scheduler == "oar" and processes.is_overhead(pid))
        if name in _SERVICES or is_below_scheduler:
            break
        if not processes.is_overhead(pid):
            chain.append(pid)
    if not chain:
        raise MethodFailedError("no program of the job started this tool, or it has ended")
    return chain[-1] if is_below_scheduler and identity.scheduler != "none" else chain[0]


def _has_sign(pid: int, processes: Processes, finder: Finder, raw_id: str) -> bool:
    """Tell whether a process bears a sign of the job.

    A sign is the job's variable in its environment or in that of an ancestor, the job's cgroup, or the scheduler's
    daemon for this job as an ancestor.
    """
    if pid not in processes or pid == 1:
        return False
    if finder.mark_in(processes.environment(pid)):
        return True
    if any(map(is_job(finder.level, raw_id), "/".join(processes.cgroups(pid)).split("/"))):
        return True
    keeps = is_job(finder.keeper, raw_id)
    return any(
        keeps(" ".join(processes.command(ancestor))) or finder.mark_in(processes.environment(ancestor))
        for ancestor in processes.ancestors(pid)
    )


def look_up(
    job_id: str,
    *,
    scheduler: SchedulerName | None,
    environ: Mapping[str, str],
    hostname: str,
    run: Runner,
    roots: Roots = THIS_MACHINE,
    exclude: Sequence[int] = (),
    cgroup_patterns: Sequence[str] = (),
    timeout_s: float = _WITHIN_S,
) -> tuple[JobIdentity, Found]:
    """Find a job from outside by its id.

    Without a ``scheduler`` it is of the first that writes such ids and has its command on PATH, else of the first that
    writes them. Raises InvalidInputError for an id that the scheduler does not write, and JobNotFoundError with every
    method tried.
    """
    if scheduler is None:
        path = environ.get("PATH", "")
        those = [name for name, (pattern, _) in JOB_IDS.items() if pattern.fullmatch(job_id)]
        scheduler = next((name for name in those if shutil.which(_COMMANDS[name], path=path)), next(iter(those), None))
    if scheduler is None:
        raise InvalidInputError(
            f"{job_id[:64]!r} is not the id of a batch job, such as 4711, 4711_3 or 4711.server; else name its"
            " processes with --pid, or its --cgroup"
        )
    identity = named(job_id, scheduler, hostname=hostname)
    search = JobSearch(
        identity, environ=environ, run=run, roots=roots, exclude=exclude, cgroup_patterns=cgroup_patterns
    )
    return identity, search.find(timeout_s, retries=1)
