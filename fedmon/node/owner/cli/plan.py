"""`fedmon node plan`: what researchers want to run here, and what the owner says to it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.text import table
from fedmon.node.folder import NodeFolder
from fedmon.node.owner.cli.screen import ask, emit, fields, minutes, seconds, width
from fedmon.node.owner.cli.shell import EXIT_CODES, Dir, Json, call, group, login, opened

app = group("plan", "Read training plans, and approve or reject their exact bytes.")

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan's id, its SHA-256, the beginning of one of them (4 and 8 characters at least), or its name.",
    ),
]
Note = Annotated[str, typer.Option(help="Why, for the researcher.")]
_HEADERS = ("ID", "NAME", "STATUS", "TYPE", "FROM", "ASKED")
_ID_PREFIX = "training_plan_"
_SHORT_ID = 8


@app.command("list", epilog=EXIT_CODES)
def list_(
    status: Annotated[str | None, typer.Option(help="Only pending, approved or rejected ones.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only requested, registered or default ones.")] = None,
    name: Annotated[str | None, typer.Option(help="Only plans of this name.")] = None,
    search: Annotated[str | None, typer.Option(help="Only plans with this text in a field.")] = None,
    sort: Annotated[str, typer.Option(help="Sort by this field, such as created, name or status.")] = "created",
    descending: Annotated[bool, typer.Option("--descending", help="Largest or latest first.")] = False,
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """List training plans.

    They were asked for by researchers, registered by you, or come from the folder of default plans.
    """
    wanted = {"status": status, "type": type_, "name": name, "search": search}
    result = call(opened(directory), "plan list", "plan-list", **wanted, sort=sort, descending=descending)
    nothing = "No training plan matches." if any(wanted.values()) else "No training plans yet: nobody has asked."
    emit(result, lambda: _table(result["plans"]) if result["plans"] else nothing, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(plan: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Show all that is known of a plan, and its source.

    Characters that a reader would not see, or that reorder what he sees, are written out as in ⟦U+202E⟧.
    """
    folder = opened(directory)
    result = call(folder, "plan show", "plan-show", plan=_chosen(plan, folder, as_json=as_json))
    found = result["plan"]
    emit(
        result,
        lambda: f"{_screen(found)}\n\n--- source, {found['size_bytes']} bytes ---\n{result['source']}",
        as_json=as_json,
    )


@app.command("diff", epilog=f"{EXIT_CODES} Like diff(1), it ends with 1 when the plans differ.")
def diff(plan: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Compare a plan with the one of its name approved last."""
    folder = opened(directory)
    result = call(folder, "plan diff", "plan-diff", plan=_chosen(plan, folder, as_json=as_json))
    before, after = result["against"], result["plan"]
    lines = [("plan", after["name"]), ("-", f"approved {seconds(before['decided'])}"), ("+", after["status"])]
    difference = result["diff"].removesuffix("\n") or "The bytes are the same."
    emit(result, lambda: f"{fields(lines)}\n{difference}", as_json=as_json)
    raise typer.Exit(0 if result["same"] else 1)


@app.command("approve", epilog=EXIT_CODES)
def approve(
    plan: Which = None,
    sha256: Annotated[
        str | None, typer.Option(help="The digest of the bytes that you read; only they are approved.")
    ] = None,
    note: Note = "",
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Approve a plan: its exact bytes, and nothing else.

    Say which by --sha256, or by the plan's id or whole SHA-256. By name, or by the beginning of the SHA-256, you are
    asked to confirm; without a terminal that is refused.
    """
    folder = opened(directory)
    if sha256 is None and plan is None:
        plan = _chosen(plan, folder, as_json=as_json)
    reference = plan or sha256 or ""
    if sha256 is None and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        sha256 = _confirmed(folder, reference)
    values = {"plan": reference, "sha256": sha256, "by_id": True, "status": "approved", "note": note}
    _decide(folder, "plan approve", "plan-decide", values, as_json=as_json)


@app.command("reject", epilog=EXIT_CODES)
def reject(plan: Which = None, note: Note = "", directory: Dir = None, as_json: Json = False) -> None:
    """Reject a plan; the researcher gets your note."""
    folder = opened(directory)
    values = {"plan": _chosen(plan, folder, as_json=as_json), "status": "rejected", "note": note}
    _decide(folder, "plan reject", "plan-decide", values, as_json=as_json)


@app.command("reset", epilog=EXIT_CODES)
def reset(plan: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Make a plan pending again, as if nothing had been decided."""
    folder = opened(directory)
    _decide(folder, "plan reset", "plan-reset", {"plan": _chosen(plan, folder, as_json=as_json)}, as_json=as_json)


@app.command("register", epilog=EXIT_CODES)
def register(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A Python file.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name; without it the file's.")] = None,
    description: Annotated[str, typer.Option(help="What it does.")] = "",
    directory: Dir = None,
    as_json: Json = False,
) -> None:
    """Take in a plan of your own; it is approved by that."""
    folder = opened(directory)
    path = (file or Path(ask("FILE", "Python file", as_json=as_json))).expanduser().absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInputError(f"cannot read the training plan {path}: {error.strerror}") from None
    values = {"path": str(path), "sha256": digest, "name": name or path.stem, "description": description, "by": login()}
    result = call(folder, "plan register", "plan-register", **values)
    emit(result, lambda: f"Registered and approved:\n{_screen(result['plan'])}", as_json=as_json)


@app.command("delete", epilog=EXIT_CODES)
def delete(plan: Which = None, directory: Dir = None, as_json: Json = False) -> None:
    """Forget a plan, its bytes and its approval."""
    folder = opened(directory)
    reference = _chosen(plan, folder, as_json=as_json)
    result = call(folder, "plan delete", "plan-delete", plan=reference, by=login())
    deleted = result["plan"]
    lines = [("forgotten", deleted["name"]), *_identity(deleted), ("it was", deleted["status"])]
    emit(result, lambda: fields(lines), as_json=as_json)


def _chosen(plan: str | None, folder: NodeFolder, *, as_json: bool) -> str:
    """Return the plan that was named, or ask for one of those that wait for a decision, or of all."""
    if plan is not None:
        return plan
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        waiting = call(folder, "plan list", "plan-list", status="pending")["plans"]
        plans = waiting or call(folder, "plan list", "plan-list")["plans"]
        if not plans:
            raise NotFoundError("there are no training plans here: nobody has asked")
        print(_table(plans))
    return ask("PLAN", f"{_HEADERS[0].capitalize()}, sha256 or name", as_json=as_json)


def _confirmed(folder: NodeFolder, reference: str) -> str:
    """Show the plan that is about to be approved and return its digest once the owner says yes."""
    plan = call(folder, "plan approve", "plan-show", plan=reference)["plan"]
    print(_screen(plan))
    if not typer.confirm("Approve exactly these bytes?", default=False, err=True):
        raise typer.Exit(1)
    return str(plan["sha256"])


def _decide(folder: NodeFolder, purpose: str, command: str, values: dict[str, Any], *, as_json: bool) -> None:
    result = call(folder, purpose, command, **values, by=login())
    plan, told = result["plan"], ", ".join(result["tells"])
    lines: list[tuple[str, object]] = [("plan", plan["name"]), *_identity(plan)]
    lines.append(("is now" if result["changed"] else "was already", plan["status"]))
    if told:
        lines.append(("goes to", f"{told}; waits in the node's outbox until they have it"))
    emit(result, lambda: fields(lines), as_json=as_json)


def _identity(plan: dict[str, Any]) -> list[tuple[str, object]]:
    return [("id", plan["plan_id"]), ("sha256", plan["sha256"])]


def _table(plans: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of plans, with the digest of each on a line of its own."""
    rows = [
        [
            plan["plan_id"].removeprefix(_ID_PREFIX)[:_SHORT_ID],
            plan["name"],
            plan["status"],
            plan["type"],
            plan["researcher_id"] or "-",
            minutes(plan["created"]),
        ]
        for plan in plans
    ]
    head, line, *lines = table(_HEADERS, rows, width=width()).split("\n")
    paired = [f"{row}\n  sha256 {plan['sha256']}" for row, plan in zip(lines, plans, strict=True)]
    return "\n".join([head, line, *paired])


def _screen(plan: Mapping[str, Any]) -> str:
    """Return what is known of a plan, the whole digest too."""
    asked = plan.get("requested_by") or ([plan["researcher_id"]] if plan["researcher_id"] else [])
    code = "read, no problem found" if plan["checked"] else "not read yet; the running node does that"
    if plan["problem"]:
        code = f"PROBLEM: {plan['problem']}"
    elif plan["hint"]:
        code = plan["hint"]
    return fields(
        [
            ("plan", plan["name"]),
            ("id", plan["plan_id"]),
            ("sha256", plan["sha256"]),
            ("status", f"{plan['status']}{', ' + seconds(plan['decided']) if plan['decided'] else ''}"),
            *([("note", plan["note"])] if plan["note"] else []),
            ("type", plan["type"]),
            ("from", ", ".join(asked) or "-"),
            ("asked", seconds(plan["created"])),
            ("size", f"{plan['size_bytes']} bytes"),
            ("code", code),
            ("description", plan["description"] or "-"),
        ]
    )
