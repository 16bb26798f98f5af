"""`fedmon node job`: the jobs that the running node watches."""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.node.owner.cli.reach import Dir, Json, connected, login, opened
from fedmon.node.owner.cli.screen import EXIT_CODES, fields, one_line, print_json, seconds, table
from fedmon.node.owner.control import ControlClient, DaemonNotRunningError

app = typer.Typer(
    name="job",
    help="Watch jobs: what their processes use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Scheduler(enum.StrEnum):
    """Batch systems whose jobs are found."""

    AUTO = "auto"
    SLURM = "slurm"
    PBS = "pbs"
    OAR = "oar"


JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job: letters, digits, '_' and '-', at most 64.")]
BatchId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the job: of a batch job as its scheduler writes it, else any word.")
]


@app.command("watch", epilog=EXIT_CODES)
def watch(
    job_id: BatchId,
    pids: Annotated[
        list[int] | None, typer.Option("--pid", help="A process of the job; all that descends from it is its, too.")
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", help="The job's cgroup: its folder, or its path as in /proc/PID/cgroup.")
    ] = None,
    scheduler: Annotated[
        Scheduler, typer.Option("--scheduler", help="Whose job it is; found out from the id and this host.")
    ] = Scheduler.AUTO,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--cgroup-pattern", help="Where the scheduler keeps cgroups, such as 'site/jobs/{id}'."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What people call it.")] = "",
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Watch a job from the next sample on, in a stream job-ID of its own.

    With neither --pid nor --cgroup the job ID of this host's batch system is found: by its cgroup, by asking the
    scheduler, or by the variables of its processes. A job of an array is named 4711_3 (SLURM) or 4711[3].server (PBS).

    --pid can be given several times. Where the processes have a cgroup to themselves, it is found and read. The watch
    ends with the last process of the job, when the job is forgotten, or when the node stops.
    """
    if pids or cgroup is not None:
        document = _told(directory, "job-watch", job_id=job_id, pids=pids or [], cgroup=cgroup, name=name, by=login())
    else:
        _client(directory).close()  # before a search whose result nobody could take
        args = _found(job_id, scheduler, patterns or [])
        document = _told(directory, "job-watch", **args, name=name, by=login())
    _print_job(document, as_json=as_json)


@app.command("list", epilog=EXIT_CODES)
def list_(directory: Dir = None, as_json: Json = False) -> None:
    """List the jobs that are watched, and the last 64 that were."""
    document = _told(directory, "job-list")
    if as_json:
        print_json(document)
        return
    rows = [
        [
            job["job_id"],
            job["state"],
            job["processes"],
            f"{job['cpu_seconds']:.2f}",
            job["methods"]["cpu"],
            job["origin"]["method"] if job["origin"] else "",
            seconds(job["since"]),
            job["name"] or job["reason"],
        ]
        for job in document["jobs"]
    ]
    print(
        table(["job", "state", "processes", "CPU s", "method", "found by", "since", "name"], rows)
        if rows
        else "No job is watched."
    )


@app.command("forget", epilog=EXIT_CODES)
def forget(job_id: JobId, directory: Dir = None, as_json: Json = False) -> None:
    """Watch a job no longer; its processes are left alone."""
    document = _told(directory, "job-forget", job_id=job_id, by=login())
    _print_job(document, as_json=as_json)


def _found(job_id: str, scheduler: Scheduler, patterns: Sequence[str]) -> dict[str, Any]:
    # Each verb of the owner reads this file, and none but one looks for a job: the finders are a fifth of its start.
    from fedmon.node.job.commands import runner
    from fedmon.node.job.lookup import look_up

    environ = dict(os.environ)
    identity, found = look_up(
        job_id,
        scheduler=None if scheduler is Scheduler.AUTO else scheduler.value,
        environ=environ,
        hostname=socket.gethostname(),
        run=runner(environ),
        exclude=(os.getpid(),),
        cgroup_patterns=patterns,
    )
    origin = {
        "scheduler": identity.scheduler,
        "job_id": identity.job_id,
        "method": found.method,
        "confidence": found.confidence.value,
    }
    return {
        "job_id": identity.key,
        "cgroup": found.cgroup,
        "found": {
            "origin": origin,
            "processes": list(found.starts.items()),
            "overhead": list(found.overhead.items()),
            "marker": found.marker,
        },
    }


def _told(directory: Path | None, command: str, **args: Any) -> dict[str, Any]:
    with _client(directory) as client:
        return client.call(command, **args)


def _client(directory: Path | None) -> ControlClient:
    folder = opened(directory)
    client = connected(folder)
    if client is None:
        raise DaemonNotRunningError(
            f"the node of {folder.path} is not running, and only a running node watches jobs: start it with"
            " 'fedmon node start'"
        )
    return client


def _print_job(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    job = document["job"]
    ended = [] if job["ended"] is None else [("ended", f"{seconds(job['ended'])}, {job['reason']}")]
    print(
        fields(
            [
                ("job", job["job_id"]),
                *([("name", one_line(job["name"]))] if job["name"] else []),
                ("stream", f"job-{job['job_id']}"),
                *(_origin(job["origin"]) if job["origin"] else []),
                ("processes", job["processes"]),
                ("CPU time", f"{job['cpu_seconds']:.2f} s"),
                ("measured by", ", ".join(f"{of}: {method}" for of, method in job["methods"].items())),
                *([("cgroup", job["cgroup"])] if job["cgroup"] else []),
                ("since", seconds(job["since"])),
                *ended,
            ]
        )
    )


def _origin(origin: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        ("batch job", f"{one_line(origin['job_id'])} of {origin['scheduler']}"),
        ("found by", f"{origin['method']} (confidence: {origin['confidence']})"),
    ]
