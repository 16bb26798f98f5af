"""Jobs of SLURM: `scontrol listpids`, the cgroups of slurmstepd, and the variables of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from fedmon.node.job.commands import CommandError, Failure, Output
from fedmon.node.job.finders.found import MethodFailedError
from fedmon.node.job.finders.scheduler import Asked, Look, known_id, variables
from fedmon.node.job.identity import JobIdentity

_HEADER = ("PID", "JOBID", "STEPID", "LOCALID", "GLOBALID")
_NOT_STARTED = "-1"
"""In place of the process of a task that its slurmstepd is about to start."""
_INVALID = "Invalid job id specified"
"""What the controller answers for a number that no job has, or has any more. Source: slurm_errno.c."""
_TITLE = re.compile(r"slurmstepd: \[([0-9]+)\.[^\]]*\]")
_ID = (b"SLURM_JOB_ID", b"SLURM_JOBID")
_ARRAY = (b"SLURM_ARRAY_JOB_ID", b"SLURM_ARRAY_TASK_ID")


class SlurmFinder:
    """Knows the jobs of SLURM.

    Sources: scontrol(1); SLURM src/plugins/cgroup/v1 and v2; cgroup.conf(5) for the names with and without a node.
    """

    command = "scontrol listpids"

    def __init__(self, identity: JobIdentity, environ: Mapping[str, str]) -> None:
        self._identity = identity
        self._node = environ.get("SLURMD_NODENAME", "") if identity.inside else ""
        given = (environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")) if identity.inside else ""
        self._id = os.fsencode(given or identity.raw_id or "")
        # Where several slurmd run on one machine, each has cgroups under the name of its node.
        named = (f"slurm_{identity.host}/uid_*/job_{{id}}", f"system.slice/{identity.host}_slurmstepd.scope/job_{{id}}")
        self.patterns = (
            *named,
            "slurm/uid_*/job_{id}",
            "slurm_*/uid_*/job_{id}",
            "system.slice/slurmstepd.scope/job_{id}",
            "system.slice/*_slurmstepd.scope/job_{id}",
        )

    def resolve(self, look: Look) -> str:
        """Return the raw id; that of a task of an array is asked for, and looked for in what runs."""
        if self._identity.raw_id is not None or self._identity.inside:
            return known_id(self._identity)
        job_id = self._identity.job_id
        try:
            argv = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%A"]
            lines = look.run(argv, look.timeout_s).checked().split()
            why = "squeue knows no such job"
        except CommandError as error:
            lines, why = [], str(error)
        if len(set(lines)) == 1 and lines[0].isascii() and lines[0].isdigit():
            self._id = os.fsencode(lines[0])
            return lines[0]
        for pid in look.processes.births:
            values = dict(variables(look.processes.environment(pid), *_ARRAY, _ID[0]))
            task = b"_".join(values.get(name, b"") for name in _ARRAY)
            if task == os.fsencode(job_id) and values.get(_ID[0], b"").isdigit():
                self._id = values[_ID[0]]
                return self._id.decode()
        raise MethodFailedError(f"the raw id of {job_id} is not known: {why}")

    def names(self, raw_id: str) -> Mapping[str, str]:
        """Return the id for the patterns."""
        return {"id": raw_id}

    def level(self, raw_id: str) -> re.Pattern[str]:
        """Return the name of a job's cgroup."""
        return re.compile(f"job_{raw_id}")

    def ask(self, look: Look, raw_id: str) -> Asked:
        """Have the slurmd of this host list the processes of all steps."""
        argv = ["scontrol", "listpids", raw_id, *([self._node] if self._node else [])]
        output = look.run(argv, look.timeout_s)
        try:
            return Asked(" ".join(argv), frozenset(listed_pids(output, raw_id)))
        except CommandError:
            if look.asks_controller:
                _refuse_unknown(look, raw_id)
            raise

    def mark_in(self, environment: Iterable[bytes]) -> bytes | None:
        """Look for the id; the processes of another slurmd on this machine are another host's."""
        found = dict(variables(environment, *_ID, b"SLURMD_NODENAME"))
        if not self._id or self._id not in (found.get(_ID[0]), found.get(_ID[1])):
            return None
        if self._node and found.get(b"SLURMD_NODENAME", os.fsencode(self._node)) != os.fsencode(self._node):
            return None
        name = _ID[0] if found.get(_ID[0]) == self._id else _ID[1]
        return b"%s=%s" % (name, self._id)

    def keeps(self, title: str) -> bool:
        """Tell a slurmstepd of the job by its title, such as ``slurmstepd: [7.batch]``."""
        found = _TITLE.match(title)
        return found is not None and os.fsencode(found[1]) == self._id


def _refuse_unknown(look: Look, raw_id: str) -> None:
    """Raise CommandError where the controller knows no such job: a slurmd says the same between two steps."""
    try:
        output = look.run(["squeue", "--noheader", f"--jobs={raw_id}", "--format=%A"], look.timeout_s)
    except CommandError:
        return
    if output.rc and _INVALID in output.stderr:
        raise CommandError(Failure.UNKNOWN_JOB, f"squeue: {_INVALID}")


def listed_pids(output: Output, raw_id: str) -> list[int]:
    """Read the table of `scontrol listpids`. Raises CommandError when it is none, or the job is not known."""
    lines = [line.split() for line in output.checked().splitlines() if line.strip()]
    if not lines or tuple(lines[0]) != _HEADER:
        raise output.misunderstood(f"it does not begin with {' '.join(_HEADER)}")
    found = []
    for words in lines[1:]:
        if words[0] == _NOT_STARTED:
            continue
        if len(words) != len(_HEADER) or not (words[0].isascii() and words[0].isdigit() and len(words[0]) < 10):
            raise output.misunderstood(f"{' '.join(words)[:80]!r} is no process of a step")
        if words[1] == raw_id:
            found.append(int(words[0]))
    return found
