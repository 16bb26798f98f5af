"""Tables of flat rows: text for a terminal, HTML for a notebook; and the rows of each kind of reply."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fedmon.common.log import escape_control
from fedmon.common.text import table
from fedmon.common.wire.messages import ApprovalReply, DatasetsReply, Pong, TrainingPlanStatusReply

Row = dict[str, Any]
SHOWN_DIGEST = 12


def text_table(rows: Sequence[Row]) -> str:
    """Return rows as aligned text that fits the terminal, or 120 columns; columns without a value are left out.

    The widest column is folded. Lines are longer where that would break an id.
    """
    columns = _columns(rows)
    return (
        table(columns, [[_cell(row.get(column)) for column in columns] for row in rows], fold=True) if columns else ""
    )


def html_table(rows: Sequence[Row], *, caption: str) -> str:
    """Return rows as an HTML table in which nothing from outside is markup."""
    columns = _columns(rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(row.get(column)))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    title = f"<caption>{html.escape(escape_control(caption))}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def local_time(moment: datetime) -> str:
    """Return a moment in the reader's zone; a node may name one that no zone knows, and that is shown as it came."""
    try:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return moment.isoformat()


def _columns(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name) not in (None, "") for row in rows)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return local_time(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_cell(part) for part in value)
    return escape_control(str(value))


def pong_rows(reply: Pong) -> list[Row]:
    """Show a sign of life."""
    return [{"agent": reply.agent_version, "boot": reply.boot}]


def dataset_rows(reply: DatasetsReply) -> list[Row]:
    """Show one row a dataset."""
    return [
        {
            "name": dataset.name,
            "type": dataset.data_type,
            "tags": dataset.tags,
            "shape": None if dataset.shape is None else " x ".join(map(str, dataset.shape)),
            "description": dataset.description,
            "dataset_id": dataset.dataset_id,
        }
        for dataset in reply.datasets
    ]


def approval_rows(reply: ApprovalReply) -> list[Row]:
    """Show where a plan stands after it was handed in."""
    return [{"plan": reply.status.value, "note": reply.note, "sha256": reply.sha256[:SHOWN_DIGEST]}]


def plan_status_rows(reply: TrainingPlanStatusReply) -> list[Row]:
    """Show where a plan stands."""
    status = "not known here" if reply.status is None else reply.status.value
    return [
        {
            "plan": status,
            "name": reply.name,
            "decided": reply.decided,
            "note": reply.note,
            "sha256": reply.sha256[:SHOWN_DIGEST],
        }
    ]
