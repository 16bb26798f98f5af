"""The search for the processes of a batch job on this host: each method in turn, until one finds some."""

from __future__ import annotations

import enum
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.collectors.job.cgroup import Hierarchies, find_hierarchies
from fedmon.node.job.commands import CommandError, NoSuchJobError, Runner
from fedmon.node.job.commands import run as run_command
from fedmon.node.job.identity import ID_VARIABLES, JOB_IDS, JobIdentity, SchedulerName, named, own_name
from fedmon.node.job.processes import DAEMONS, Processes, folders_of, matching, members, own_paths

CGROUPS_VARIABLE = "FEDMON_JOB_CGROUPS"
_WAIT_S = 5.0
"""How long the job's own processes are waited for: SLURM shows them half a second after it has begun."""
_COMMAND_WITHIN_S = 2.0
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
    scheduler's usual places; ``{id}`` is the job's id, ``*`` anything within a level. A command of the scheduler may
    take ``command_s``. For one thread.
    """

    def __init__(
        self,
        identity: JobIdentity,
        *,
        environ: Mapping[str, str],
        run: Runner | None = None,
        roots: Roots = THIS_MACHINE,
        pids: tuple[int, ...] = (),
        exclude: Sequence[int] = (),
        cgroup_patterns: Sequence[str] = (),
        command_s: float = _COMMAND_WITHIN_S,
    ) -> None:
        self._identity, self._roots, self._exclude = identity, roots, exclude
        self._run = run or functools.partial(run_command, environ=environ)
        self._pids, self._command_s = pids, command_s
        self._guesses, self._guesses_at = False, time.monotonic() + _WAIT_S
        self._finder = FINDERS[identity.scheduler](identity, environ)
        given = filter(None, environ.get(CGROUPS_VARIABLE, "").split(":"))
        self._patterns = (*cgroup_patterns, *given, *self._finder.patterns)
        self._tried: list[Tried] = []
        self._asks_controller, self._server_said = True, "the server was not asked"
        self._is_known = True

    @functools.cached_property
    def _has_keeper(self) -> bool:
        processes = Processes(self._roots.proc)
        return any(processes.is_overhead(pid) for pid in processes.ancestors(self._exclude[0]))

    @property
    def goes_on(self) -> bool:
        """Tell whether looking again may help.

        That is so until the job has been found or waited for, and always if a scheduler or a launcher started the tool,
        and will end it: on the second host of a job nothing runs before the first step.
        """
        if self._pids or not self._is_known:
            return False
        return not self._guesses or (self._identity.scheduler != "none" and self._has_keeper)

    def find(self, *, is_last: bool = False) -> Found:
        """Look once, by one method after another; ancestors only once the job was waited for, or in the last look.

        From inside of the job the first look alone asks the controller that all hosts share. Raises JobNotFoundError,
        of which UnknownJobError says that the scheduler knows no such job. Named processes are not looked for; raises
        InvalidInputError if one is this tool.
        """
        if self._pids:
            if own := set(self._pids).intersection(self._exclude):
                raise InvalidInputError(f"process {min(own)} is this tool itself; name the processes of the job")
            return Found(pids=self._pids, method="pids", confidence=Confidence.CERTAIN, detail="named by their numbers")
        self._tried = []
        hierarchies = find_hierarchies(self._roots.cgroup)
        look = Look(Processes(self._roots.proc), hierarchies, self._run, self._command_s, self._asks_controller)
        self._asks_controller = not self._identity.inside
        methods = {"cgroup": self._by_cgroup, "scheduler": self._by_command, "environment": self._by_environment}
        self._guesses |= is_last or time.monotonic() >= self._guesses_at
        if self._guesses and self._identity.inside and self._exclude:
            methods["ancestors"] = self._by_ancestors
        found = next(filter(None, (self._attempt(name, method, look) for name, method in methods.items())), None)
        if found is None:
            raise JobNotFoundError(self._name, self._tried)
        self._guesses = True
        return found

    @property
    def _name(self) -> str:
        scheduler = self._identity.scheduler
        return f"{scheduler if scheduler != 'none' else 'this'} job {self._identity.job_id}"

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
    run: Runner | None = None,
    roots: Roots = THIS_MACHINE,
    exclude: Sequence[int] = (),
    cgroup_patterns: Sequence[str] = (),
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
    return identity, search.find()


# --- jobs of SLURM, PBS and OAR: their cgroups, commands and variables ------------------------------------------------


class MethodFailedError(Exception):
    """One method found nothing; the text says why."""


class Hit(NamedTuple):
    """The result of a method: a description, processes, and the path of the job's cgroup if it has one."""

    detail: str
    pids: frozenset[int] = frozenset()
    cgroup: str | None = None


class Look(NamedTuple):
    """The processes and hierarchies of cgroups of one moment, and a runner of commands.

    ``asks_controller`` allows a question to the scheduler's controller or server, which all hosts share.
    """

    processes: Processes
    hierarchies: Hierarchies
    run: Runner
    timeout_s: float
    asks_controller: bool = False


class Finder:
    """The signs of one job; this one of a job without a scheduler, whose owner set FEDMON_JOB_ID.

    ``patterns`` are the places of its cgroup, see `processes.matching`. ``level`` and ``keeper`` are the regular
    expressions of the last level of that cgroup, and of the title of a daemon that keeps the job; see `is_job`.
    """

    patterns: Sequence[str] = ()
    level = keeper = "(?!)"
    asks_server = True
    """Whether `ask` asks the one server of all hosts."""

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self.identity = identity
        variable = ID_VARIABLES[identity.scheduler]
        self._name = os.fsencode(variable)
        given = environ.get(variable, "") if identity.inside else ""
        self.id = os.fsencode(given or identity.raw_id or "")

    def resolve(self, _look: Look) -> str:
        """Return the id for cgroups and commands. Raises MethodFailedError and CommandError if there is none."""
        if self.identity.scheduler == "none":
            raise MethodFailedError("no scheduler started this job")
        if self.identity.raw_id is None:
            raise MethodFailedError(f"{self.identity.job_id!r} is not a job id of {self.identity.scheduler}")
        return self.identity.raw_id

    def ask(self, look: Look, raw_id: str) -> Hit:
        """Ask the scheduler. Raises MethodFailedError and CommandError."""
        raise NotImplementedError

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Return the variable in a process's environment that makes it the job's; None if there is none."""
        found = _variables(environment, self._name) if self.id else []
        return next((b"%s=%s" % (name, value) for name, value in found if self.is_id(value)), None)

    def is_id(self, value: bytes) -> bool:
        """Tell whether the value of such a variable is the job's id."""
        return value == self.id


class SlurmFinder(Finder):
    """A job of SLURM. Sources: scontrol(1), cgroup.conf(5); SLURM src/plugins/cgroup/v1 and v2."""

    asks_server = False
    level = "job_{id}"
    keeper = r"slurmstepd: \[{id}\.[^\]]*\].*"

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        super().__init__(identity, environ)
        self._node = os.fsencode(environ.get("SLURMD_NODENAME", "") if identity.inside else "")
        self.patterns = (
            # Several slurmd on one machine have cgroups under the names of their nodes.
            f"slurm_{identity.host}/uid_*/job_{{id}}",
            f"system.slice/{identity.host}_slurmstepd.scope/job_{{id}}",
            "slurm/uid_*/job_{id}",
            "slurm_*/uid_*/job_{id}",
            "system.slice/slurmstepd.scope/job_{id}",
            "system.slice/*_slurmstepd.scope/job_{id}",
        )

    def resolve(self, look: Look) -> str:
        """Return the raw id; for a task of an array squeue is asked until it tells."""
        if self.identity.raw_id is not None or self.identity.inside:
            return super().resolve(look)
        if not self.id:
            lines = set(_squeue(look, self.identity.job_id).split())
            if len(lines) != 1 or not (raw_id := lines.pop()).isdecimal():
                raise CommandError(f"squeue does not report the number of {self.identity.job_id}")
            self.id = os.fsencode(raw_id)
        return os.fsdecode(self.id)

    def ask(self, look: Look, raw_id: str) -> Hit:
        """Have the slurmd of this host list the processes of all steps."""
        argv = ["scontrol", "listpids", raw_id, *([os.fsdecode(self._node)] if self._node else [])]
        try:
            return Hit(" ".join(argv), frozenset(listed_pids(look.run(argv, look.timeout_s), raw_id)))
        except CommandError:
            if look.asks_controller:
                self._refuse_unknown(look, raw_id)
            raise

    def _refuse_unknown(self, look: Look, raw_id: str) -> None:
        """Raise CommandError if the controller knows no such job: a slurmd says the same between two steps."""
        try:
            _squeue(look, raw_id)
        except CommandError as error:
            invalid = "Invalid job id specified"  # Source: slurm_errno.c
            if invalid in str(error):
                raise NoSuchJobError(f"squeue: {invalid}") from None

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Return the variable; the processes of another slurmd on this machine are another host's."""
        environment = list(environment)
        nodes = dict(_variables(environment, b"SLURMD_NODENAME"))
        if self._node and nodes.get(b"SLURMD_NODENAME", self._node) != self._node:
            return None
        return super().mark_in(environment)


class PbsFinder(Finder):
    """A job of PBS Pro or OpenPBS. Source: OpenPBS src/hooks/cgroups/pbs_cgroups.PY."""

    patterns = (
        "*.service/jobid/{id}",
        "pbspro/{id}",
        "pbspro.slice/{id}",
        "pbspro.slice/pbspro-{number}.*.slice",
        "pbspro/pbspro-{number}.*.slice",
    )
    """The newest version first; the first level is the prefix that a site can choose."""
    level = r"{id}|[a-z_]+-{number}\..*\.slice"
    keeper = r"([^ ]*/)?pbs_mom( .*)?"
    """Its children are jobs; its title does not name them."""

    def ask(self, look: Look, raw_id: str) -> Hit:
        """Ask for the session of the job; PBS knows that of its first host."""
        command = f"qstat -f {raw_id}"
        try:
            attributes = job_attributes(look.run(command.split(), look.timeout_s), raw_id, command=command)
        except CommandError as error:
            # The last byte of PBSE_UNKJOBID. Source: OpenPBS, pbs_error.h
            if re.search(r"ended with status 153\b|Unknown Job Id", str(error)):
                raise NoSuchJobError(str(error)) from None
            raise
        first = re.split(r"[/+:(]", attributes.get("exec_host", "").lstrip("("))[0]
        if first and own_name(self.identity.host, [first]) != first:
            raise MethodFailedError(f"{command} names a session on {first} only, where the job began")
        session = attributes.get("session_id", "")
        if not session:
            raise MethodFailedError(f"{command} has no session_id")
        births = look.processes.births.values()
        pids = frozenset(birth.pid for birth in births if str(birth.session) == session)
        return Hit(f"{command}, session {session}", pids)

    def is_id(self, value: bytes) -> bool:
        """Compare ids whose server may be written with and without its domain."""
        return is_same_job(os.fsdecode(value), os.fsdecode(self.id))


class OarFinder(Finder):
    """A job of OAR; user and id make the name of its cgroup.

    Source: OAR 2.5.9, job_resource_manager_cgroups.pl and oarstat.
    """

    level = ".+_{id}"

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        super().__init__(identity, environ)
        cpuset = environ.get("OAR_CPUSET", "") if identity.inside else ""
        self.patterns = (*([cpuset] if cpuset.endswith(f"_{identity.raw_id}") else []), "oar/*_{id}")

    def ask(self, look: Look, raw_id: str) -> Hit:
        """Ask for the cpuset of the job, and look for it among the cgroups."""
        command = f"oarstat -fj {raw_id}"
        attributes = job_attributes(look.run(command.split(), look.timeout_s), raw_id, command=command)
        name, state = attributes.get("cpuset_name", ""), attributes.get("state", "unknown")
        if not name:
            raise MethodFailedError(f"{command} reports no cpuset_name; the job is {state}")
        paths = matching(look.hierarchies, ("oar/{cpuset}", "{cpuset}", "*/{cpuset}"), {"cpuset": name})
        if not paths:
            raise MethodFailedError(f"{command} reports cpuset {name}, which is not on this host; the job is {state}")
        return Hit(command, cgroup=paths[0])


FINDERS: Mapping[str, Callable[[JobIdentity, Mapping[str, str]], Finder]] = {
    "slurm": SlurmFinder,
    "pbs": PbsFinder,
    "oar": OarFinder,
    "none": Finder,
}


def is_job(expression: str, raw_id: str) -> Callable[[str], object]:
    """Return whether a text is that of a job, by a regular expression with its ``{id}`` or ``{number}``."""
    number = raw_id.partition(".")[0]
    return re.compile(expression.format(id=re.escape(raw_id), number=re.escape(number))).fullmatch


def listed_pids(output: str, raw_id: str) -> list[int]:
    """Read the table of `scontrol listpids`: process, job, step and so on; a task that is about to start is -1."""
    rows = map(str.split, output.splitlines())
    return [int(words[0]) for words in rows if words[1:2] == [raw_id] and words[0].isdecimal()]


def is_same_job(one: str, other: str) -> bool:
    """Tell whether two ids of PBS name one job: the same number, and servers that agree."""
    number, _, server = one.partition(".")
    other_number, _, other_server = other.partition(".")
    shorter, longer = sorted((server, other_server), key=len)
    return number == other_number and (not shorter or longer == shorter or longer.startswith(f"{shorter}."))


def job_attributes(output: str, raw_id: str, *, command: str) -> dict[str, str]:
    """Read the first lines of a job's attributes in `qstat -f` or `oarstat -fj`. Raises CommandError if it has none.

    PBS Pro, Torque and OAR indent by four spaces, SLURM's wrapper of PBS by a tab; a long value continues after a
    newline and a tab. If attributes are indented by tabs, a folded value that looks like one is taken for one.
    """
    found: dict[str, str] = {}
    is_wanted = is_known = False
    indent = ""
    for line in output.splitlines():
        if head := re.match(r"Job[ _]Id:(\s*)(\S+)", line):
            is_wanted, indent = is_same_job(head[2], raw_id), "\t" if head[1] == "\t" else " {4}"
            is_known |= is_wanted
        elif is_wanted and (attribute := re.fullmatch(rf"{indent}([A-Za-z_][A-Za-z0-9_.]*) = (.*)", line)):
            found[attribute[1]] = attribute[2].strip()
    if not is_known:
        raise CommandError(f"job {raw_id} is not in the output of {command}")
    return found


def _squeue(look: Look, job_id: str) -> str:
    return look.run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%A"], look.timeout_s)


def _variables(environment: Iterable[bytes], *names: bytes) -> list[tuple[bytes, bytes]]:
    """Return the variables of an environment with these names."""
    split = (entry.partition(b"=") for entry in environment)
    return [(name, value) for name, _, value in split if name in names]
