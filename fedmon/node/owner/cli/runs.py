"""`fedmon node runs`: the approved plans that run here, and those that did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fedmon.common.text import duration, one_line, size
from fedmon.node.owner.cli.shell import Shell, ago, fields, group, noted_table, seconds, verb

app = group("runs", "See and stop the approved plans that run here.", is_verb=True)

JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of the job, or the beginning of it as `fedmon node runs` lists it.")
]
Limit = Annotated[int, typer.Option(help="How many to list, newest first.", min=1, max=1000)]


@verb(app)
@verb(app, "list")
def runs(shell: Shell, limit: Limit = 100) -> None:
    """List the jobs of all researchers, newest first, with their states."""
    shell.show(
        "run-list", lambda found: _table(found["runs"]) if found["runs"] else "No plan has run here yet.", limit=limit
    )


@verb(app, "show")
def show(shell: Shell, job_id: JobId) -> None:
    """Show a job: researcher, plan, dataset, sandbox, usage, and output."""
    shell.show("run-show", _screen, job_id=job_id)


@verb(app, "stop")
def stop(shell: Shell, job_id: JobId) -> None:
    """Stop a job: kill its processes, and tell its researcher."""
    shell.show("run-stop", _stopped, job_id=job_id)


def _stopped(document: Mapping[str, Any]) -> str:
    run = document["run"]
    if run["ended"] is not None:
        return f"Job {run['job_id']} was over already: {run['state']}."
    return f"Job {run['job_id']} is stopped; see: fedmon node runs show {run['job_id']}"


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            run["job_id"],
            run["state"],
            run["researcher_id"],
            one_line(run["name"]),
            "" if run["usage"]["wall_s"] is None else f"{run['usage']['wall_s']:.2f}",
            ago(run["created"]),
            run["reason"],
        ]
        for run in runs
    ]
    return noted_table(["state", "researcher", "plan", "wall s", "since"], rows)


def _screen(document: Mapping[str, Any]) -> str:
    run, problem, result = document["run"], document["run"]["problem"] or {}, document["run"]["result"]
    shown = {
        "job": run["job_id"],
        "state": run["state"] + (f": {one_line(run['reason'])}" if run["reason"] else ""),
        "researcher": run["researcher_id"],
        "plan": f"{one_line(run['name'])}, SHA-256 {run['sha256']}",
        "dataset": ", ".join(filter(None, [document.get("dataset"), run["dataset_id"]])) or "none",
        "sandbox": run["sandbox"] or "not known",
        "limits": quantities(run["limits"]),
        "took": quantities(run["usage"]) or ("not known" if run["ended"] else "not over yet: see fedmon node job list"),
        "created": seconds(run["created"]),
        "started": seconds(run["started"]),
        "ended": seconds(run["ended"]),
        "exit code": run["exit_code"],
        "error": f"{problem['type']}: {problem.get('message') or ''}" if problem else None,
        "result": f"{result['bytes']} bytes, SHA-256 {result['sha256']}" if result else None,
        "files": document["folder"] or "removed, or never made",
    }
    return "\n".join(
        [
            fields(shown),
            *(["\nlast log records:", *map(one_line, document["logged"])] if document["logged"] else []),
            *(
                f"\n{name}{f' without its first {size(at)} (see files)' if at else ''}:\n{document['output'][name]}"
                for name, at in document.get("output_offset", dict.fromkeys(document["output"])).items()
                if document["output"][name]
            ),
        ]
    )


def quantities(values: Mapping[str, float | None]) -> str:
    """Return the known ones of limits or costs, each with the unit that its name ends with."""
    units = {"bytes": size, "s": duration, "j": "{:.6g} J".format}
    parts = [(*name.rpartition("_"), value) for name, value in values.items() if value is not None]
    return ", ".join(f"{what.replace('_', ' ') or unit} {units.get(unit, str)(n)}" for what, _, unit, n in parts)
