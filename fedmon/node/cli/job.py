"""`fedmon node job`: the jobs that the running node watches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.node.cli.reach import Dir, Json, connected, login, opened
from fedmon.node.cli.screen import EXIT_CODES, fields, one_line, print_json, seconds, table
from fedmon.node.control_client import DaemonNotRunningError

app = typer.Typer(
    name="job",
    help="Watch jobs: what their processes use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job: letters, digits, '_' and '-', at most 64.")]


@app.command("watch", epilog=EXIT_CODES)
def watch(
    job_id: JobId,
    pids: Annotated[
        list[int] | None, typer.Option("--pid", help="A process of the job; all that descends from it is its, too.")
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", help="The job's cgroup: its folder, or its path as in /proc/PID/cgroup.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What people call it.")] = "",
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Watch a job from the next sample on, in a stream job-ID of its own.

    --pid can be given several times. Where the processes have a cgroup to themselves, it is found and read. The watch
    ends with the last process of the job, when the job is forgotten, or when the node stops.
    """
    document = _told(directory, "job-watch", job_id=job_id, pids=pids or [], cgroup=cgroup, name=name, by=login())
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
            seconds(job["since"]),
            job["name"] or job["reason"],
        ]
        for job in document["jobs"]
    ]
    print(
        table(["job", "state", "processes", "CPU s", "method", "since", "name"], rows) if rows else "No job is watched."
    )


@app.command("forget", epilog=EXIT_CODES)
def forget(job_id: JobId, directory: Dir = None, as_json: Json = False) -> None:
    """Watch a job no longer; its processes are left alone."""
    document = _told(directory, "job-forget", job_id=job_id, by=login())
    _print_job(document, as_json=as_json)


def _told(directory: Path | None, command: str, **args: Any) -> dict[str, Any]:
    folder = opened(directory)
    client = connected(folder)
    if client is None:
        raise DaemonNotRunningError(
            f"the node of {folder.path} is not running, and only a running node watches jobs: start it with"
            " 'fedmon node start'"
        )
    with client:
        return client.call(command, **args)


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
                ("processes", job["processes"]),
                ("CPU time", f"{job['cpu_seconds']:.2f} s"),
                ("measured by", ", ".join(f"{of}: {method}" for of, method in job["methods"].items())),
                *([("cgroup", job["cgroup"])] if job["cgroup"] else []),
                ("since", seconds(job["since"])),
                *ended,
            ]
        )
    )
