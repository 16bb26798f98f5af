"""`fedmon node job` and `add-scalar`: the jobs that the running node watches, and values of programs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from fedmon.common.text import one_line
from fedmon.node.owner.cli.shell import Shell, fields, group, noted_table, seconds, verb

app = group("job", "Watch jobs and the usage of their processes.")


@verb(app, "watch")
def watch(
    shell: Shell,
    job_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of the job: of a batch job as its scheduler writes it, else any word."),
    ],
    pids: Annotated[
        list[int] | None, typer.Option("--pid", help="A process of the job, with all its descendants.")
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option("--cgroup", help="The job's cgroup: its folder, or its path as in /proc/PID/cgroup.")
    ] = None,
    scheduler: Annotated[
        Literal["auto", "slurm", "pbs", "oar"],
        typer.Option(help="The batch system (default: the first on PATH that writes such ids)."),
    ] = "auto",
    patterns: Annotated[
        list[str] | None,
        typer.Option("--cgroup-pattern", help="Where the scheduler keeps cgroups, such as 'site/jobs/{id}'."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="A name for people.")] = "",
) -> None:
    """Watch a job from the next sample on, in a separate stream job-ID.

    With neither --pid nor --cgroup the job ID of this host's batch system is found: by its cgroup, by asking the
    scheduler, or by the variables of its processes. A job of an array is named 4711_3 (SLURM) or 4711[3].server (PBS).

    --pid can be given several times. Where the processes have a cgroup to themselves, it is found and read. The watch
    ends with the last process of the job, when the job is forgotten, or when the node stops.
    """
    args: dict[str, Any] = {"job_id": job_id, "pids": pids or [], "cgroup": cgroup}
    if not pids and cgroup is None:
        shell.call("job-list")  # before a search whose result no node could take
        args = _found(job_id, None if scheduler == "auto" else scheduler, patterns or [])
    shell.show("job-watch", _screen, **args, name=name)


@verb(app, "list")
def list_(shell: Shell) -> None:
    """List the watched jobs, and the last 64 ended ones."""
    shell.show("job-list", _table)


@verb(app, "forget")
def forget(
    shell: Shell,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the job, its beginning, or its scheduler's id.")],
) -> None:
    """Stop watching a job; its processes continue."""
    shell.show("job-forget", _screen, job_id=job_id)


def add_scalar(
    shell: Shell,
    name: Annotated[str, typer.Argument(help="The value's name: any text of up to 256 characters.")],
    value: Annotated[str, typer.Argument(help="A number; nan and inf are kept as a missing value with its reason.")],
    step: Annotated[int | None, typer.Option(help="The program's own count, such as the epoch.")] = None,
    job: Annotated[str | None, typer.Option(help="Id of the job that the value belongs to.")] = None,
    time: Annotated[float | None, typer.Option("--time", help="Its time, in Unix seconds (default: now).")] = None,
) -> None:
    """Report a value, such as an accuracy, to the running node.

    It is published and kept on the time axis of the node's samples, in the stream user.
    """
    shown = f"{one_line(name)} = {one_line(value)}"
    shell.show("add-scalar", lambda _: shown, name=name, value=value, step=step, t=time, job=job)


def _found(job_id: str, scheduler: Literal["slurm", "pbs", "oar"] | None, patterns: Sequence[str]) -> dict[str, Any]:
    # Each verb of the owner reads this file, and none but one looks for a job: the finders are a fifth of its start.
    from fedmon.node.job.finders import look_up

    identity, found = look_up(
        job_id,
        scheduler=scheduler,
        environ=dict(os.environ),
        hostname=socket.gethostname(),
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


def _table(document: dict[str, Any]) -> str:
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
    heads = ["state", "processes", "CPU s", "method", "found by", "since"]
    return noted_table(heads, rows) if rows else "No job is watched."


def _screen(document: dict[str, Any]) -> str:
    job, origin = document["job"], document["job"]["origin"] or {}
    return fields({
        "job": job["job_id"],
        "name": job["name"] or None,
        "stream": f"job-{job['job_id']}",
        "batch job": f"{origin['job_id']} of {origin['scheduler']}" if origin else None,
        "found by": f"{origin['method']} (confidence: {origin['confidence']})" if origin else None,
        "processes": job["processes"],
        "CPU time": f"{job['cpu_seconds']:.2f} s",
        "measured by": ", ".join(f"{of}: {method}" for of, method in job["methods"].items()),
        "cgroup": job["cgroup"],
        "since": seconds(job["since"]),
        "ended": f"{seconds(job['ended'])}, {job['reason']}" if job["ended"] else None,
    })  # fmt: skip
