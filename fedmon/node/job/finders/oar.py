"""Jobs of OAR: the cpuset that oarstat and OAR_CPUSET tell, and the variables of a job."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from fedmon.node.job.commands import CommandError, Failure, Output
from fedmon.node.job.finders.cgroups import matching
from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.scheduler import Asked, Look, known_id, variables
from fedmon.node.job.identity import JobIdentity

_ID = (b"OAR_JOB_ID", b"OAR_JOBID")
_ATTRIBUTE = re.compile(r"\s+([A-Za-z_]+) = (.*)")


class OarFinder:
    """Knows the jobs of OAR. Source: OAR 2.5.9, job_resource_manager_cgroups.pl and oarstat."""

    command = "oarstat"

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self._identity = identity
        given = (environ.get("OAR_JOB_ID") or environ.get("OAR_JOBID", "")) if identity.inside else ""
        self._id = os.fsencode(given or identity.raw_id or "")
        cpuset = environ.get("OAR_CPUSET", "") if identity.inside else ""
        levels = cpuset.strip("/").split("/")
        # What an environment claims is only taken when it can be a path of this job.
        is_own = levels[-1].endswith(f"_{identity.raw_id}") and not re.search(r"[*{}]|(^|/)\.\.?(/|$)", cpuset)
        self.patterns = (*([cpuset] if is_own else []), "oar/*_{id}")

    def resolve(self, _look: Look) -> str:
        """Return the id as it is."""
        return known_id(self._identity)

    def names(self, raw_id: str) -> Mapping[str, str]:
        """Return the id for the patterns."""
        return {"id": raw_id}

    def level(self, raw_id: str) -> re.Pattern[str]:
        """Return the name of a job's cgroup, which is made of user and id."""
        return re.compile(f".+_{raw_id}")

    def ask(self, look: Look, raw_id: str) -> Asked:
        """Ask for the cpuset of the job, and look for it among the cgroups."""
        told, command = self._told(look, raw_id)
        name, state = told.get("cpuset_name", ""), told.get("state", "unknown")
        if not name:
            raise MethodFailedError(f"{command} tells no cpuset_name; the job is {state}")
        if "/" in name or not self.level(raw_id).fullmatch(name):
            raise MethodFailedError(f"{command} tells a cpuset {name[:80]!r} that cannot be of job {raw_id}")
        paths = matching(look.cgroups, ("oar/{cpuset}", "{cpuset}", "*/{cpuset}"), cpuset=name)
        if not paths:
            raise MethodFailedError(f"{command} tells cpuset {name}, which is not on this host; the job is {state}")
        return Asked(command, cgroup=paths[0])

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Look for the id."""
        for name, value in sorted(variables(environment, *_ID), reverse=True):
            if self._id and value == self._id:
                return b"%s=%s" % (name, value)
        return None

    def keeps(self, title: str) -> bool:
        """Tell an oarexec of the job by its arguments."""
        program, *words = title.split(" ")
        return program.endswith("perl") and words[-2:] == [os.fsdecode(self._id), "OAREXEC"]

    def _told(self, look: Look, raw_id: str) -> tuple[Mapping[str, str], str]:
        argv = ["oarstat", "-J", "-fj", raw_id]
        try:
            told = attributes_of_json(look.run(argv, look.timeout_s), raw_id)
        except CommandError as error:
            if error.failure in {Failure.ABSENT, Failure.NOT_STARTED, Failure.TIMED_OUT}:
                raise
            argv = ["oarstat", "-fj", raw_id]
            told = attributes_of_text(look.run(argv, look.timeout_s), raw_id)
        return told, " ".join(argv)


def attributes_of_json(output: Output, raw_id: str) -> dict[str, str]:
    """Read `oarstat -J -fj`. Raises CommandError when the job is not in it, or it is no JSON."""
    try:
        document = json.loads(output.checked())
        wanted = document[raw_id]
        return {name: str(value) for name, value in wanted.items() if isinstance(value, (str, int))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise output.misunderstood(f"it is no JSON of job {raw_id}") from None


def attributes_of_text(output: Output, raw_id: str) -> dict[str, str]:
    """Read `oarstat -fj`. Raises CommandError when the job is not in it."""
    found: dict[str, str] = {}
    is_wanted = is_known = False
    for line in output.checked().splitlines():
        if line.startswith("Job_Id:"):
            is_wanted = line.partition(":")[2].strip() == raw_id
            is_known |= is_wanted
        elif is_wanted and (attribute := _ATTRIBUTE.fullmatch(line)) is not None:
            found[attribute[1]] = attribute[2].strip()
    if not is_known:
        raise output.misunderstood(f"job {raw_id} is not in it")
    return found
