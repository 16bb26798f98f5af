"""`fedmon node runs`: the approved plans that run here, and those that did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedmon.node.owner.cli.reach import Dir, Json, call, login, opened
from fedmon.node.owner.cli.screen import (
    EXIT_CODES,
    fields,
    minutes,
    one_line,
    print_json,
    seconds,
    shorten,
    table,
    width,
)

app = typer.Typer(
    name="runs",
    help="See and stop the approved plans that run here.",
    rich_markup_mode=None,
    invoke_without_command=True,
    epilog=EXIT_CODES,
)

JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of the job, or the beginning of it as `fedmon node runs` lists it.")
]
Limit = Annotated[int, typer.Option(help="How many to list, newest first.", min=1, max=1000)]


_SHOWN = 13
"""Of an id: so many letters tell jobs of different milliseconds apart; more are shown where it takes more."""
_MIB = 2**20


@app.callback()
def runs(context: typer.Context, limit: Limit = 100, directory: Dir = None, as_json: Json = False) -> None:
    """List the jobs of all researchers, newest first: what runs, and how each ended."""
    if context.invoked_subcommand is None:
        _list(limit, directory, as_json=as_json)


@app.command("list", epilog=EXIT_CODES)
def list_(limit: Limit = 100, directory: Dir = None, as_json: Json = False) -> None:
    """List the jobs of all researchers, newest first."""
    _list(limit, directory, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(job_id: JobId, directory: Dir = None, as_json: Json = False) -> None:
    """Show a job: who runs what on which data, how it is confined, what it took, and what it printed."""
    document = call(opened(directory), "runs show", "run-show", job_id=job_id)
    if as_json:
        print_json(document)
        return
    print(fields([*_lines(document["run"]), ("files", document["folder"] or "removed, or never made")]))
    if document["logged"]:
        print("\n".join(["\nlogged, the last of it:", *map(one_line, document["logged"])]))
    for name, text in document["output"].items():
        if text:
            print(f"\n{name}:\n{text}")


@app.command("stop", epilog=EXIT_CODES)
def stop(job_id: JobId, directory: Dir = None, as_json: Json = False) -> None:
    """Stop a job: it is asked to end, and killed when it does not; its researcher is told."""
    document = call(opened(directory), "runs stop", "run-stop", job_id=job_id, by=login())
    if as_json:
        print_json(document)
        return
    run = document["run"]
    if run["ended"] is None:
        print(f"Job {run['job_id']} is stopped; see: fedmon node runs show {run['job_id']}")
    else:
        print(f"Job {run['job_id']} was over already: {run['state']}.")


def _list(limit: int, directory: Any, *, as_json: bool) -> None:
    document = call(opened(directory), "runs list", "run-list", limit=limit)
    if as_json:
        print_json(document)
        return
    ids = [run["job_id"] for run in document["runs"]]
    enough = next(size for size in range(_SHOWN, 65) if len({job_id[:size] for job_id in ids}) == len(ids))
    rows = [
        [
            run["state"],
            run["researcher_id"],
            one_line(run["name"]),
            _number(run["usage"]["wall_s"], "{:.2f}"),
            minutes(run["created"]),
        ]
        for run in document["runs"]
    ]
    heads = ["state", "researcher", "plan", "wall s", "since"]
    if not rows:
        print("No plan has run here yet.")
        return
    # An id that is cut finds nothing, and a reason, which is a sentence, would take the room of everything else.
    head, rule, *lines = table(heads, rows, columns=width() - enough - 2).splitlines()
    print(f"{'job':<{enough}}  {head}\n{'-' * enough}  {rule}")
    for line, run in zip(lines, document["runs"], strict=True):
        print(f"{run['job_id']:<{enough}.{enough}}  {line}")
        if run["reason"]:
            print(f"  {shorten(one_line(run['reason']), width() - 2)}")


def _lines(run: Mapping[str, Any]) -> list[tuple[str, object]]:
    limits = ", ".join(_quantity(name, value) for name, value in run["limits"].items() if value is not None)
    usage = ", ".join(_quantity(name, value) for name, value in run["usage"].items() if value is not None)
    problem = run["problem"] or {}
    result = run["result"]
    return [
        ("job", run["job_id"]),
        ("state", run["state"] + (f": {one_line(run['reason'])}" if run["reason"] else "")),
        ("researcher", run["researcher_id"]),
        ("plan", f"{one_line(run['name'])}, SHA-256 {run['sha256']}"),
        ("dataset", run["dataset_id"] or "none"),
        ("sandbox", run["sandbox"] or "not known"),
        ("limits", limits),
        ("took", usage or ("not known" if run["ended"] else "not over yet: fedmon node job list shows what it uses")),
        ("created", seconds(run["created"])),
        ("started", seconds(run["started"])),
        ("ended", seconds(run["ended"])),
        *([("exit code", run["exit_code"])] if run["exit_code"] is not None else []),
        *([("error", f"{one_line(problem['type'])}: {one_line(problem.get('message') or '')}")] if problem else []),
        *([("result", f"{result['bytes']} bytes, SHA-256 {result['sha256']}")] if result else []),
    ]


def _quantity(name: str, value: float) -> str:
    """Return a quantity with its unit, of which its name ends with."""
    for ending, unit, size in (("_bytes", "MiB", _MIB), ("_s", "s", 1), ("_j", "J", 1)):
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')} {value / size:.6g} {unit}"
    return f"{name} {value:g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
