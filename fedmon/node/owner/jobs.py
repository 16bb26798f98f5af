"""The owner's commands about jobs that the running node watches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.node.owner.desk import Desk
from fedmon.node.registers.jobs import JobOrigin, JobRecord, JobWatches

logger = logging.getLogger(__name__)


class ListJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that takes no values."""


class FoundJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner's shell found of a batch job; of processes their numbers, each with its start in ticks."""

    origin: JobOrigin
    processes: list[tuple[int, int]]
    overhead: list[tuple[int, int]] = []
    marker: str | None = None


class WatchJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to watch: its root processes, or its cgroup, or what was found of it."""

    job_id: str
    pids: list[int] = []
    cgroup: str | None = None
    name: str = ""
    found: FoundJob | None = None
    by: str = ""


class OneJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job by its id."""

    job_id: str
    by: str = ""


def list_jobs(desk: Desk, _args: ListJobs) -> dict[str, Any]:
    """List the jobs that are watched, and those that were."""
    return {"jobs": [_shown(record) for record in _jobs(desk).records()]}


def watch_job(desk: Desk, args: WatchJob) -> dict[str, Any]:
    """Watch a job from the next sample on."""
    if args.found is None:
        record = _jobs(desk).add(args.job_id, pids=args.pids, cgroup=args.cgroup, name=args.name)
        desk.audit.record("job-watch", job_id=record.job_id, pids=record.pids, cgroup=record.cgroup, by=args.by)
        return {"job": _shown(record)}
    record = _watch_found(_jobs(desk), args, args.found)
    desk.audit.record(
        "job-watch",
        job_id=record.job_id,
        pids=[pid for pid, _ in args.found.processes],
        cgroup=record.cgroup,
        scheduler=args.found.origin.scheduler,
        method=args.found.origin.method,
        by=args.by,
    )
    return {"job": _shown(record)}


def _watch_found(jobs: JobWatches, args: WatchJob, found: FoundJob) -> JobRecord:
    from fedmon.node.job.finders.overhead import is_launcher  # what finds batch jobs is needed for these alone

    overhead = dict(found.overhead)
    if args.cgroup is not None:
        try:
            return jobs.add(
                args.job_id,
                cgroup=args.cgroup,
                name=args.name,
                overhead=overhead,
                is_launcher=is_launcher,
                origin=found.origin,
            )
        except (NotFoundError, InvalidInputError) as error:
            # A scheduler may keep lists of processes in hierarchies that count nothing for us.
            logger.info("job %s: its processes are watched, and not its cgroup: %s", args.job_id, error)
    starts = dict(found.processes)
    return jobs.add(
        args.job_id,
        pids=list(starts),
        starts=starts,
        marker=found.marker,
        name=args.name,
        overhead=overhead,
        is_launcher=is_launcher,
        origin=found.origin,
    )


def forget_job(desk: Desk, args: OneJob) -> dict[str, Any]:
    """Watch a job no longer; its processes are left alone."""
    record = _jobs(desk).remove(args.job_id)
    desk.audit.record("job-forget", job_id=record.job_id, by=args.by)
    return {"job": _shown(record)}


def _jobs(desk: Desk) -> JobWatches:
    if desk.jobs is None:
        raise ConflictError(
            "this node watches no jobs: it is stopped, or its metrics are switched off; start it with "
            "'fedmon node start', with enabled = true in [metrics]"
        )
    return desk.jobs


def _shown(record: JobRecord) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(record)
    return {"state": "watched" if record.ended is None else "ended", **document}


JOB_COMMANDS: Mapping[str, tuple[type[Any], Any]] = {
    "job-list": (ListJobs, list_jobs),
    "job-watch": (WatchJob, watch_job),
    "job-forget": (OneJob, forget_job),
}
