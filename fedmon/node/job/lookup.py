"""Finding a batch job of this host by its id, from outside."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from fedmon.common.errors import InvalidInputError
from fedmon.node.collectors.base import THIS_MACHINE, Roots
from fedmon.node.job.commands import Runner
from fedmon.node.job.finders import Found, JobNotFoundError, Tried, find
from fedmon.node.job.identity import SCHEDULERS, JobIdentity, SchedulerName, named

_COMMANDS: Mapping[SchedulerName, str] = {"slurm": "scontrol", "pbs": "qstat", "oar": "oarstat"}
_TIMEOUT_S = 5.0
_RETRIES = 1


def look_up(
    job_id: str,
    *,
    scheduler: str | None,
    environ: Mapping[str, str],
    hostname: str,
    run: Runner,
    roots: Roots = THIS_MACHINE,
    exclude: Sequence[int] = (),
    cgroup_patterns: Sequence[str] = (),
    timeout_s: float = _TIMEOUT_S,
) -> tuple[JobIdentity, Found]:
    """Find the job with this id, of one scheduler or of those that such an id can be of.

    Raises InvalidInputError for an id that no scheduler writes, and JobNotFoundError with all that was tried.
    """
    candidates = _candidates(job_id, scheduler, environ, hostname)
    tried: list[Tried] = []
    for identity in candidates:
        try:
            return identity, find(
                identity,
                environ=environ,
                run=run,
                roots=roots,
                exclude=exclude,
                cgroup_patterns=cgroup_patterns,
                timeout_s=timeout_s / len(candidates),
                retries=_RETRIES,
            )
        except JobNotFoundError as error:
            prefix = f"{identity.scheduler} " if len(candidates) > 1 else ""
            tried += [Tried(f"{prefix}{method}", why) for method, why in error.tried]
    of = f"{candidates[0].scheduler} " if len(candidates) == 1 else ""
    raise JobNotFoundError(f"{of}job {job_id}", tried)


def _candidates(job_id: str, scheduler: str | None, environ: Mapping[str, str], hostname: str) -> list[JobIdentity]:
    if scheduler is not None:
        return [named(job_id, _known(scheduler), hostname=hostname)]
    found = []
    for each in SCHEDULERS:
        try:
            found.append(named(job_id, each, hostname=hostname))
        except InvalidInputError:
            continue
    if not found:
        raise InvalidInputError(
            f"{job_id[:64]!r} is no id of a batch job, such as 4711, 4711_3 or 4711.server; of any other job name its"
            " processes with --pid, or its --cgroup"
        )
    # Compute nodes often lack the commands of their scheduler, and a job can be found without.
    present = [each for each in found if shutil.which(_COMMANDS[each.scheduler], path=environ.get("PATH", ""))]
    return present or found


def _known(scheduler: str) -> SchedulerName:
    for each in SCHEDULERS:
        if each == scheduler:
            return each
    raise InvalidInputError(f"there is no scheduler {scheduler!r}: name one of {', '.join(SCHEDULERS)}")
