"""Jobs of SLURM, PBS and OAR: their cgroups, the commands that list their processes, and their variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fedmon.node.collectors.job.cgroup import Hierarchies
from fedmon.node.job.commands import CommandError, NoSuchJobError, Runner
from fedmon.node.job.identity import ID_VARIABLES, JobIdentity, own_name
from fedmon.node.job.processes import Processes, matching


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
        """Return the raw id; for a task of an array squeue is asked."""
        if self.identity.raw_id is not None or self.identity.inside:
            return super().resolve(look)
        lines = set(_squeue(look, self.identity.job_id).split())
        if len(lines) != 1 or not (raw_id := lines.pop()).isdecimal():
            raise CommandError(f"squeue does not report the number of {self.identity.job_id}")
        self.id = os.fsencode(raw_id)
        return raw_id

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
