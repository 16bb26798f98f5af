"""`fedmon node plan` and `requests`: what researchers want to run here, and what the owner says to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmon.common.errors import InvalidInputError, NotFoundError
from fedmon.common.ids import MIN_PREFIX, chosen
from fedmon.common.text import plural, table
from fedmon.node.owner.cli.policy import change_policy
from fedmon.node.owner.cli.screen import ago, fields, seconds, width
from fedmon.node.owner.cli.shell import EXIT_CODES, Shell, Yes, group, login, verb

app = group("plan", "Read training plans, and approve or reject their exact bytes.")
requests = group(
    "requests", "See what waits for you, and decide.", no_args_is_help=False, invoke_without_command=True,
    epilog=EXIT_CODES,
)  # fmt: skip

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan's id or SHA-256, the beginning of one (4 characters at least), or its name.",
    ),
]
Note = Annotated[str, typer.Option(help="Why, for the researcher.")]
_HEADERS = ("ID", "NAME", "STATUS", "TYPE", "FROM", "ASKED")
_ID_PREFIX = "training_plan_"
_SHORT_ID = 8


@verb(app, "list")
def list_(
    shell: Shell,
    status: Annotated[str | None, typer.Option(help="Only pending, approved or rejected ones.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only requested, registered or default ones.")] = None,
    name: Annotated[str | None, typer.Option(help="Only plans of this name.")] = None,
    search: Annotated[str | None, typer.Option(help="Only plans with this text in a field.")] = None,
    sort: Annotated[str, typer.Option(help="Sort by this field, such as created, name or status.")] = "created",
    descending: Annotated[bool, typer.Option("--descending", help="Largest or latest first.")] = False,
) -> None:
    """List training plans.

    They were asked for by researchers, registered by you, or come from the folder of default plans.
    """
    wanted = {"status": status, "type": type_, "name": name, "search": search}
    result = shell.call("plan-list", **wanted, sort=sort, descending=descending)
    nothing = "No training plan matches." if any(wanted.values()) else "No training plans yet: nobody has asked."
    shell.emit(result, lambda: _table(result["plans"]) if result["plans"] else nothing)


@verb(app, "show")
def show(shell: Shell, plan: Which = None) -> None:
    """Show all that is known of a plan, and its source.

    Characters that a reader would not see, or that reorder what he sees, are written out as in ⟦U+202E⟧.
    """
    result = shell.call("plan-show", plan=_named(plan, shell))
    found = result["plan"]
    shell.emit(result, lambda: f"{_screen(found)}\n\n--- source, {found['size_bytes']} bytes ---\n{result['source']}")


@verb(app, "diff", epilog=f"{EXIT_CODES} Like diff(1), it ends with 1 when the plans differ.")
def diff(shell: Shell, plan: Which = None) -> None:
    """Compare a plan with the one of its name approved last."""
    result = shell.call("plan-diff", plan=_named(plan, shell))
    before, after = result["against"], result["plan"]
    lines = [("plan", after["name"]), ("-", f"approved {seconds(before['decided'])}"), ("+", after["status"])]
    difference = result["diff"].removesuffix("\n") or "The bytes are the same."
    shell.emit(result, lambda: f"{fields(lines)}\n{difference}")
    raise typer.Exit(0 if result["same"] else 1)


@verb(app, "approve")
@verb(requests, "approve")
def approve(
    shell: Shell,
    plan: Which = None,
    sha256: Annotated[
        str | None, typer.Option(help="The digest of the bytes that you read; only they are approved.")
    ] = None,
    note: Note = "",
    yes: Yes = False,
) -> None:
    """Approve a plan: its exact bytes, and nothing else.

    At a terminal you see its whole SHA-256 and are asked. Without one, give the whole id or SHA-256, or --yes.
    """
    reference = plan or sha256 or _named(None, shell)
    found = shell.call("plan-show", plan=reference)["plan"]
    whole = (found["plan_id"], found["plan_id"].removeprefix(_ID_PREFIX), found["sha256"])
    is_prefix = sha256 is not None and len(sha256) >= MIN_PREFIX and found["sha256"].startswith(sha256)
    shell.confirm(
        _screen(found),
        "Approve exactly these bytes?",
        is_exact=reference in whole or sha256 == found["sha256"],
        what=f"plan {found['plan_id']}, --sha256 {found['sha256']}",
        yes=yes or (sha256 is not None and not is_prefix),  # which is another plan's, and refused
    )
    agreed = found["sha256"] if sha256 is None or is_prefix else sha256
    _decide(shell, plan=found["plan_id"], sha256=agreed, status="approved", note=note)


@verb(app, "reject")
def reject(shell: Shell, plan: Which = None, note: Note = "") -> None:
    """Reject a plan; the researcher gets your note."""
    _decide(shell, plan=_named(plan, shell), status="rejected", note=note)


@verb(app, "reset")
def reset(shell: Shell, plan: Which = None) -> None:
    """Make a plan pending again, as if nothing had been decided."""
    _decide(shell, plan=_named(plan, shell), status="pending")


@verb(app, "register")
def register(
    shell: Shell,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A Python file.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name; without it the file's.")] = None,
    description: Annotated[str, typer.Option(help="What it does.")] = "",
) -> None:
    """Take in a plan of your own; it is approved by that."""
    path = (file or Path(shell.ask("FILE", "Python file"))).expanduser().absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInputError(f"cannot read the training plan {path}: {error.strerror}") from None
    values = {"path": str(path), "sha256": digest, "name": name or path.stem, "description": description, "by": login()}
    result = shell.call("plan-register", **values)
    shell.emit(result, lambda: f"Registered and approved:\n{_screen(result['plan'])}")


@verb(app, "delete")
def delete(shell: Shell, plan: Which = None) -> None:
    """Forget a plan, its bytes and its approval."""
    result = shell.call("plan-delete", plan=_named(plan, shell), by=login())
    deleted = result["plan"]
    lines = [("forgotten", deleted["name"]), *_identity(deleted), ("it was", deleted["status"])]
    shell.emit(result, lambda: fields(lines))


@verb(requests)
def waiting(shell: Shell) -> None:
    """List what waits for you: plans to decide about, and researchers that were refused; decide with allow, approve."""
    result = shell.call("requests")
    plans, refused = result["plans"], result["researchers"]
    heads = ("RESEARCHER", "REFUSED", "LAST", "FIRST")
    rows = [
        [each["researcher_id"], f"{each['times']} x", f"{ago(each['last'])} ago", f"{ago(each['first'])} ago"]
        for each in refused
    ]
    parts = [
        f"{plural(len(plans), 'plan waits', 'plans wait')} for your decision:\n\n{_table(plans)}\n\n"
        "Read one: fedmon node plan show ID     Decide: fedmon node requests approve ID"
        if plans else "",
        f"{plural(len(rows), 'researcher was', 'researchers were')} refused:\n\n{table(heads, rows, width=width())}\n\n"
        "Obey one from now on: fedmon node requests allow RESEARCHER"
        if rows else "",
    ]  # fmt: skip
    shell.emit(result, lambda: "\n\n".join(filter(None, parts)) or "Nothing waits for you.")


@verb(requests, "allow")
def allow(
    shell: Shell,
    researcher: Annotated[
        str | None, typer.Argument(metavar="RESEARCHER", help="A refused researcher's id, or the beginning of it.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Obey a researcher that was refused; takes effect at once."""
    refused = {each["researcher_id"]: each for each in shell.call("requests")["researchers"]}
    if not refused:
        raise NotFoundError("no researcher was refused here; allow one by name: fedmon node policy allow RESEARCHER")
    reference = researcher or shell.ask("RESEARCHER", f"Which of {', '.join(refused)}")
    name = chosen(
        reference, dict(zip(refused, refused, strict=True)), what="refused researcher", see="fedmon node requests"
    )
    shown = f"{name} was refused {refused[name]['times']} times, last {ago(refused[name]['last'])} ago."
    shell.confirm(shown, "Obey this researcher from now on?", is_exact=reference == name, what=name, yes=yes)
    change_policy(shell, "allow", researchers=[name])


def _named(plan: str | None, shell: Shell) -> str:
    """Return the plan that was named, or ask for one of those that wait for a decision, or of all."""
    if plan is not None:
        return plan
    if shell.is_interactive:
        plans = shell.call("plan-list", status="pending")["plans"] or shell.call("plan-list")["plans"]
        if not plans:
            raise NotFoundError("there are no training plans here: nobody has asked")
        print(_table(plans))
    return shell.ask("PLAN", f"{_HEADERS[0].capitalize()}, sha256 or name")


def _decide(shell: Shell, **values: Any) -> None:
    result = shell.call("plan-decide", **values, by=login())
    plan, told = result["plan"], ", ".join(result["tells"])
    lines: list[tuple[str, object]] = [("plan", plan["name"]), *_identity(plan)]
    lines.append(("is now" if result["changed"] else "was already", plan["status"]))
    if told:
        lines.append(("goes to", f"{told}; waits in the node's outbox until they have it"))
    shell.emit(result, lambda: fields(lines))


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
            f"{ago(plan['created'])} ago",
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
