"""How training plans look on the screen: the whole digest everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmon.node.owner.cli.screen import minutes, seconds, table

LIST_HEADERS = ("ID", "NAME", "STATUS", "TYPE", "FROM", "ASKED")
_ID_PREFIX = "training_plan_"
_SHORT_ID = 8


def plan_rows(plans: Sequence[Mapping[str, Any]]) -> str:
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
    head, line, *lines = table(LIST_HEADERS, rows).split("\n")
    paired = [f"{row}\n  sha256 {plan['sha256']}" for row, plan in zip(lines, plans, strict=True)]
    return "\n".join([head, line, *paired])


def plan_lines(plan: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return what is known of a plan, as names and values."""
    asked = plan.get("requested_by") or ([plan["researcher_id"]] if plan["researcher_id"] else [])
    code = "read, no problem found" if plan["checked"] else "not read yet; the running node does that"
    if plan["problem"]:
        code = f"PROBLEM: {plan['problem']}"
    elif plan["hint"]:
        code = plan["hint"]
    return [
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
