"""`fedmon node plan` and `requests`: training plans and refused researchers, and the owner's decisions about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedmon.common.errors import ConflictError, InvalidInputError, NotFoundError
from fedmon.common.ids import MIN_PREFIX, chosen
from fedmon.common.options import each as words_of
from fedmon.common.text import one_line, plural, short_ids, table
from fedmon.common.wire.grants import ReleaseMode, rule_text
from fedmon.node.owner.cli.policy import change_policy
from fedmon.node.owner.cli.shell import Note, Shell, Yes, ago, fields, folded, group, seconds, verb

app = group("plan", "Read training plans, and approve or reject their exact bytes.")
requests = group("requests", "List plans and researchers that wait for you, and decide.", is_verb=True)

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan's id or SHA-256, the beginning of one (4 characters at least), or its name.",
    ),
]
_ID_PREFIX = "training_plan_"
_SEARCHED = ("name", "description", "note", "plan_id", "sha256", "researcher_id", "problem")


@verb(app, "list")
def list_(
    shell: Shell,
    status: Annotated[
        Literal["pending", "approved", "rejected"] | None,
        typer.Option(metavar="STATUS", help="Only pending, approved or rejected ones."),
    ] = None,
    type_: Annotated[
        Literal["requested", "registered", "default"] | None,
        typer.Option("--type", metavar="TYPE", help="Only requested, registered or default ones."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only plans of this name.")] = None,
    search: Annotated[str, typer.Option(help="Only plans with this text in a field.")] = "",
    sort: Annotated[str, typer.Option(help="Sort by this field, such as created, name or status.")] = "created",
    descending: Annotated[bool, typer.Option("--descending", help="Largest or latest first.")] = False,
) -> None:
    """List training plans.

    They were asked for by researchers, registered by you, or come from the folder of default plans.
    """
    plans, wanted = shell.call("plan-list")["plans"], {"status": status, "type": type_, "name": name}
    if plans and sort not in plans[0]:
        raise InvalidInputError(f"plans cannot be sorted by {sort!r}; use one of {', '.join(plans[0])}")
    found = [
        plan
        for plan in plans
        if all(value in (None, plan[field]) for field, value in wanted.items())
        and any(search.casefold() in (plan[field] or "").casefold() for field in _SEARCHED)
    ]
    present = sorted((plan for plan in found if plan[sort] is not None), key=itemgetter(sort), reverse=descending)
    found = [*present, *(plan for plan in found if plan[sort] is None)]
    nothing = "No training plan matches." if plans else "No training plans yet."
    shell.emit({"plans": found}, lambda: _table(found) or nothing)


@verb(app, "show")
def show(shell: Shell, plan: Which = None) -> None:
    """Show the record of a plan, its grants, and its source.

    Invisible characters, and those that reorder text, are written out as in ⟦U+202E⟧.
    """
    shell.show(
        "plan-show", lambda found: f"{_whole(found)}\n\n--- source ---\n{found['source']}", plan=_named(plan, shell)
    )


@verb(app, "diff")
def diff(shell: Shell, plan: Which = None) -> None:
    """Compare a plan with the one of its name approved last.

    Like diff(1), it ends with 1 if they differ.
    """
    result = shell.show("plan-diff", _difference, plan=_named(plan, shell))
    raise typer.Exit(0 if result["same"] else 1)


@verb(app, "approve")
@verb(requests, "approve")
def approve(
    shell: Shell,
    plan: Which = None,
    sha256: Annotated[
        str | None, typer.Option(help="The digest of the bytes that you read; only they are approved.")
    ] = None,
    researchers: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="IDS", help="Researchers, such as alice,bob (default: who asked); '*' is all."),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="A dataset (default: those asked for); may be repeated; '*' is all."),
    ] = None,
    arguments: Annotated[
        Path | None, typer.Option(help="A JSON file with a rule for each argument (default: as declared).")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="How many runs (default: no limit).")] = None,
    until: Annotated[
        str | None, typer.Option(help="The last day, such as 2027-06-30, or never (default: in a year).")
    ] = None,
    values: Annotated[int | None, typer.Option(min=0, help="Most numbers in a result (default: as declared).")] = None,
    release: Annotated[ReleaseMode | None, typer.Option(help="How results leave (default: the node's mode).")] = None,
    note: Note = "",
    yes: Yes = False,
) -> None:
    """Approve the exact bytes of a plan, under a grant.

    At a terminal you see its whole SHA-256 and the grant, and are asked. Without one, give the whole id or SHA-256, or
    --yes. Another approval adds a grant; reset the plan first to replace its grants.
    """
    reference = plan or sha256 or _named(None, shell)
    given = {
        "researchers": words_of(researchers, "--for"),
        "datasets": datasets,
        "arguments": None if arguments is None else _rules(arguments),
        "runs": runs,
        "until": until,
        "values": values,
        "release": None if release is None else release.value,
    }
    terms = {name: value for name, value in given.items() if value is not None}
    shown = shell.call("plan-show", plan=reference, **({"terms": terms} if terms else {}))
    plan_id, digest = shown["plan"]["plan_id"], shown["plan"]["sha256"]
    if sha256 is not None and not (len(sha256) >= MIN_PREFIX and digest.startswith(sha256)):
        raise ConflictError(
            f"plan {plan_id} has SHA-256 {digest} and not {sha256}: look at it again: fedmon node plan show {plan_id}"
        )
    shell.confirm(
        _whole(shown),
        "Approve exactly these bytes, under this grant?",
        is_exact=reference in (plan_id, plan_id.removeprefix(_ID_PREFIX), digest) or sha256 == digest,
        what=f"plan {plan_id}, --sha256 {digest}",
        yes=yes,
    )
    shell.show(
        "plan-decide", lambda result: _decided(result, shown),
        plan=plan_id, status="approved", note=note, grant=shown["proposed"], asked=shown["asked"],
    )  # fmt: skip


@verb(app, "reject")
def reject(shell: Shell, plan: Which = None, note: Note = "") -> None:
    """Reject a plan; the researcher gets your note."""
    shell.show("plan-decide", _decided, plan=_named(plan, shell), status="rejected", note=note)


@verb(app, "reset")
def reset(shell: Shell, plan: Which = None) -> None:
    """Make a plan pending again."""
    shell.show("plan-decide", _decided, plan=_named(plan, shell), status="pending")


@verb(app, "register")
def register(
    shell: Shell,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A Python file.")] = None,
    name: Annotated[str | None, typer.Option(help="Its name (default: the file's).")] = None,
    description: Annotated[str, typer.Option(help="Its purpose.")] = "",
) -> None:
    """Register and approve your own plan."""
    from fedmon.common.plan_source import read_plan  # only what registers needs them
    from fedmon.node.registers.plan_source import check_now

    path = file or Path(shell.ask("FILE", "Python file"))
    source = read_plan(path, 2**26)  # the most that the settings of a node allow
    shell.show(
        "plan-register",
        lambda result: f"Registered and approved:\n{_screen(result)}",
        source=source,
        name=name or path.stem,
        description=description,
        check=check_now(source),
    )


@verb(app, "delete")
def delete(shell: Shell, plan: Which = None) -> None:
    """Forget a plan, its bytes and its approval."""
    shell.show(
        "plan-delete",
        lambda result: fields(
            {"forgotten": result["plan"]["name"], **_identity(result), "it was": result["plan"]["status"]}
        ),
        plan=_named(plan, shell),
    )


@verb(requests)
def waiting(shell: Shell) -> None:
    """List plans to decide about, and refused researchers; decide with allow and approve."""
    shell.show("requests", _waiting)


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
    shown = f"{name} was refused {plural(refused[name]['times'], 'time')}, last {ago(refused[name]['last'])}."
    shell.confirm(shown, "Obey this researcher from now on?", is_exact=reference == name, what=name, yes=yes)
    change_policy(shell, "allow", researchers=[name])


def _named(plan: str | None, shell: Shell) -> str:
    """Return the plan that was named, or ask for one of those that wait for a decision, or of all."""
    if plan is None and shell.is_interactive:
        print(_table(shell.call("requests")["plans"] or shell.call("plan-list")["plans"]) or "No training plans yet.")
    return plan or shell.ask("PLAN", "Id, sha256 or name")


def _difference(result: Mapping[str, Any]) -> str:
    before, after = result["against"], result["plan"]
    shown = {"plan": after["name"], "-": f"approved {seconds(before['decided'])}", "+": after["status"]}
    return f"{fields(shown)}\n{result['diff'].removesuffix(chr(10)) or 'The bytes are the same.'}"


def _rules(path: Path) -> Any:
    """Return the rules of a JSON file. Raises InvalidInputError."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"cannot read the rules {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not JSON: {error}") from None


def _whole(shown: Mapping[str, Any]) -> str:
    """Return the record of a plan, who asks for it, its grants, and the one that is proposed, as text."""
    proposed, before = shown["proposed"], shown["before"]
    parts = [_screen(shown)]
    asked = []
    for wish in shown["asked"]:
        why = f": {wish['purpose']}" if wish["purpose"] else ""
        again = "asks" if wish["is_open"] else "asked"
        asked += folded(one_line(f"{wish['researcher_id']} {again} for {_dataset_names(wish, shown)}{why}"))
    parts += ["--- request ---\n" + "\n".join(asked)] if asked else []
    for one in shown["grants"]:
        left = "" if one["runs_left"] is None else f", {plural(one['runs_left'], 'run')} left"
        parts.append(f"--- grant{left} ---\n{fields(_terms(one['grant'], shown))}")
    parts.append(f"--- proposed grant ---\n{fields(_terms(proposed, shown))}")
    if before is not None:
        new, old = _terms(proposed, shown), _terms(before, shown)
        changed = [
            line
            for name in new
            if new[name] != old[name]
            for sign, terms in (("-", old), ("+", new))
            for line in folded(one_line(f"{sign}{name}: {terms[name]}"))
        ]
        lines = "\n".join(changed) or "none"
        parts.append(f"--- difference to the grant of the approved version (its source: plan diff) ---\n{lines}")
    return "\n\n".join(parts)


def _dataset_names(terms: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    found, names = terms.get("datasets"), shown["datasets"]
    return (
        "all listed"
        if found is None
        else ", ".join(f"{names.get(each, 'removed')} ({each})" for each in found) or "none"
    )


def _terms(grant: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, object]:
    """Return the terms of a grant as an owner reads them, beside the result of ``plan-show``."""
    researchers, rules, scalars = (grant.get(name) for name in ("researchers", "arguments", "scalars"))
    texts, limit, rule = grant.get("texts", []), grant.get("values"), shown["release"]
    return {
        "for": "every researcher that is obeyed" if researchers is None else ", ".join(researchers) or "nobody",
        "datasets": _dataset_names(grant, shown),
        "arguments": "any"
        if rules is None
        else "; ".join(f"{name}: {rule_text(rule)}" for name, rule in rules.items()) or "none",
        "scalars": "any, and none where the release gate checks" if scalars is None else ", ".join(scalars) or "none",
        "texts": f"long ones in {', '.join(texts)}" if texts else "short ones",
        "values": f"{rule['max_numbers_per_row']:g} a row, by the node's rule" if limit is None else f"at most {limit}",
        "runs": grant.get("runs", "no limit"),
        "until": seconds(grant["until"]) if grant.get("until") else "without end",
        "release": grant.get("release", f"{rule['mode']}, the node's mode"),
    }


def _decided(result: Mapping[str, Any], shown: Mapping[str, Any] | None = None) -> str:
    told = ", ".join(result["tells"])
    says = {
        "plan": result["plan"]["name"],
        **_identity(result),
        "is now" if result["changed"] else "was already": result["plan"]["status"],
        "goes to": f"{told}; waits in the node's outbox until they have it" if told else None,
        **(_terms(result["grant"], shown) if shown and result["grant"] else {}),
    }
    return fields(says)


def _identity(result: Mapping[str, Any]) -> dict[str, object]:
    return {"id": result["plan"]["plan_id"], "sha256": result["plan"]["sha256"]}


def _waiting(result: Mapping[str, Any]) -> str:
    plans, refused = result["plans"], result["researchers"]
    heads = ("researcher", "refused", "last", "first")
    rows = [[each["researcher_id"], f"{each['times']} x", ago(each["last"]), ago(each["first"])] for each in refused]
    parts = []
    if plans:
        parts += [
            f"{plural(len(plans), 'plan waits', 'plans wait')} for your decision:",
            _table(plans),
            "Read one: fedmon node plan show ID\nDecide: fedmon node requests approve ID",
        ]
    if rows:
        parts += [
            f"{plural(len(rows), 'researcher was', 'researchers were')} refused:",
            table(heads, rows),
            "Obey one from now on: fedmon node requests allow RESEARCHER",
        ]
    return "\n\n".join(parts) or "Nothing waits for you."


def _table(plans: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of plans; empty if there are none."""
    ids = short_ids([plan["plan_id"] for plan in plans])
    rows = [
        [
            ids[plan["plan_id"]],
            plan["name"],
            "asked again" if plan.get("asked_again") else plan["status"],
            plan["type"],
            ", ".join(plan.get("requested_by") or ()) or plan["researcher_id"] or "-",
            ago(plan.get("requested") or plan["created"]),
        ]
        for plan in plans
    ]
    return table(["id", "name", "status", "type", "from", "asked"], rows) if rows else ""


def _screen(result: Mapping[str, Any]) -> str:
    """Return the record of a plan as text, the whole digest too."""
    plan = result["plan"]
    asked = plan.get("requested_by") or ([plan["researcher_id"]] if plan["researcher_id"] else [])
    code = "read, no problem found" if plan["checked"] else "not read yet; the running node does that"
    shown = {
        "plan": plan["name"],
        **_identity(result),
        "status": f"{plan['status']}{', ' + seconds(plan['decided']) if plan['decided'] else ''}",
        "note": plan["note"] or None,
        "type": plan["type"],
        "from": ", ".join(asked) or "-",
        "asked": seconds(plan["created"]),
        "size": f"{plan['size_bytes']} bytes",
        "code": f"PROBLEM: {plan['problem']}" if plan["problem"] else plan["hint"] or code,
        "description": plan["description"] or "-",
    }
    return fields(shown)
