"""Jobs of PBS Pro, OpenPBS and Torque: their cgroups, the session that `qstat -f` tells, and PBS_JOBID."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from fedmon.node.job.commands import CommandError, Failure, Output
from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.scheduler import Asked, Look, known_id, variables
from fedmon.node.job.host_names import own_name
from fedmon.node.job.identity import JobIdentity

PATTERNS = (
    "*.service/jobid/{id}",
    "*.service/jobs/{id}",
    "pbspro/{id}",
    "pbspro.slice/{id}",
    "pbspro.slice/pbspro-{number}.*.slice",
    "pbspro/pbspro-{number}.*.slice",
    "sbp/{id}",
    "torque/{id}",
)
"""Where versions of PBS put a job, the newest first; the first level is the prefix that a site can choose.

Sources: OpenPBS src/hooks/cgroups/pbs_cgroups.PY and its tests; Torque src/resmom/trq_cgroups.c.
"""

_UNKNOWN = re.compile("ended with status 153\\b|Unknown Job Id")
"""How qstat ends for a number that no job has: the last byte of PBSE_UNKJOBID. Source: OpenPBS, pbs_error.h."""
_HEAD = re.compile(r"Job Id:\s*(\S+)")
_ATTRIBUTE = re.compile(r"(?: {4}|\t)([A-Za-z_][A-Za-z0-9_.]*) = (.*)")


class PbsFinder:
    """Knows the jobs of PBS."""

    command = "qstat -f"
    patterns = PATTERNS

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self._identity = identity
        self._id = environ.get("PBS_JOBID", "") if identity.inside else identity.job_id

    def resolve(self, _look: Look) -> str:
        """Return the id as it is."""
        return known_id(self._identity)

    def names(self, raw_id: str) -> Mapping[str, str]:
        """Return the id, and what stands before its server, for the patterns."""
        return {"id": raw_id, "number": raw_id.partition(".")[0]}

    def level(self, raw_id: str) -> re.Pattern[str]:
        """Return the names of a job's cgroup."""
        number = re.escape(raw_id.partition(".")[0])
        return re.compile(rf"{re.escape(raw_id)}|[a-z_]+-{number}\..*\.slice")

    def ask(self, look: Look, raw_id: str) -> Asked:
        """Ask for the session of the job; PBS knows that of its first host."""
        attributes, command = self._attributes(look, raw_id)
        first = re.split(r"[/+:(]", attributes.get("exec_host", "").lstrip("("))[0]
        if first and own_name(self._identity.host, [first]) != first:
            raise MethodFailedError(f"{command} tells of {first} alone, where the job began")
        session = attributes.get("session_id", "").strip()
        if not (session.isascii() and session.isdigit() and 1 < int(session) <= 2**22):
            told = f"session_id = {session[:40]}" if session else "no session_id"
            raise MethodFailedError(f"{command} tells {told}")
        births = look.processes.births.values()
        pids = frozenset(birth.pid for birth in births if birth.session == int(session))
        if not pids:
            raise MethodFailedError(f"{command} tells session {session}, in which no process is")
        return Asked(f"{command}, session {session}", pids)

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Look for PBS_JOBID, where a server may be written with and without its domain."""
        for name, value in variables(environment, b"PBS_JOBID"):
            if self._id and is_same_job(os.fsdecode(value), self._id):
                return b"%s=%s" % (name, value)
        return None

    def keeps(self, title: str) -> bool:
        """Tell a pbs_mom, whose children are jobs; of which job its title does not say."""
        return title.split(" ", maxsplit=1)[0].rpartition("/")[2] == "pbs_mom"

    def _attributes(self, look: Look, raw_id: str) -> tuple[Mapping[str, str], str]:
        """Ask for text, which every PBS gives; PBS Pro's JSON tells where that was not enough."""
        command = f"qstat -f {raw_id}"
        told: dict[str, str] = {}
        problem: CommandError | None = None
        try:
            told = attributes_of_text(look.run(["qstat", "-f", raw_id], look.timeout_s), raw_id)
        except CommandError as error:
            problem = error
            if _UNKNOWN.search(str(error)):
                raise CommandError(Failure.UNKNOWN_JOB, str(error)) from None
            if error.failure in {Failure.ABSENT, Failure.NOT_STARTED, Failure.TIMED_OUT}:
                raise
        if "session_id" in told:
            return told, command
        try:
            argv = ["qstat", "-f", "-F", "json", raw_id]
            return {**told, **attributes_of_json(look.run(argv, look.timeout_s), raw_id)}, " ".join(argv)
        except CommandError:
            if problem is not None:
                raise problem from None
            return told, command


def is_same_job(one: str, other: str) -> bool:
    """Tell whether two ids name one job: the number is the same, and no server contradicts the other."""
    number, _, server = one.partition(".")
    other_number, _, other_server = other.partition(".")
    if number != other_number:
        return False
    shorter, longer = sorted((server, other_server), key=len)
    return not shorter or longer == shorter or longer.startswith(f"{shorter}.")


def attributes_of_text(output: Output, raw_id: str) -> dict[str, str]:
    """Read `qstat -f`. Raises CommandError when the job is not in it.

    PBS Pro indents by four spaces, Torque by four, SLURM's wrapper by a tab; a long value goes on after a newline and a
    tab. An attribute begins with its name and " = "; what looks like one inside a folded value cannot be told apart
    where attributes are indented by tabs.
    """
    found: dict[str, str] = {}
    name, is_wanted, is_known, by_tab = "", False, False, False
    for line in output.checked().splitlines():
        head = _HEAD.fullmatch(line.strip()) if not line.startswith((" ", "\t")) else None
        if head is not None:
            is_wanted, name = is_same_job(head[1], raw_id), ""
            is_known |= is_wanted
            by_tab = line.startswith("Job Id:\t")
            continue
        if not is_wanted:
            continue
        attribute = _ATTRIBUTE.fullmatch(line)
        if attribute is not None and (by_tab or not line.startswith("\t")):
            name = attribute[1]
            found[name] = attribute[2]
        elif line.startswith("\t") and name:
            found[name] += line[1:]
    if not is_known:
        raise output.misunderstood(f"job {raw_id} is not in it")
    return found


def attributes_of_json(output: Output, raw_id: str) -> dict[str, str]:
    """Read `qstat -f -F json`. Raises CommandError when the job is not in it, or it is no JSON.

    PBS writes broken JSON when the job's variables hold functions of a shell (openpbs issue 2541).
    """
    try:
        document = json.loads(output.checked())
        jobs = document["Jobs"]
        wanted = next(attributes for job_id, attributes in jobs.items() if is_same_job(job_id, raw_id))
        return {name: str(value) for name, value in wanted.items() if isinstance(value, (str, int, float))}
    except StopIteration:
        raise output.misunderstood(f"job {raw_id} is not in it") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise output.misunderstood("it is no JSON of PBS") from None
