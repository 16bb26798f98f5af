"""Tables of flat rows: text for a terminal, HTML for a notebook; and the rows of each kind of reply."""

from __future__ import annotations

import html
import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fedmon.common.log import escape_control
from fedmon.common.wire.messages import ApprovalReply, DatasetsReply, Pong, TrainingPlanStatusReply

Row = dict[str, Any]
SHOWN_DIGEST = 12
_GAP = 2
_MIN_WIDTH = 20
_ID_WIDTH = 36
"""An id of a job or a dataset in two lines cannot be copied; longer words may be folded anywhere."""


def text_table(rows: Sequence[Row], *, width: int | None = None) -> str:
    """Return rows as aligned text; columns that are empty everywhere are left out.

    The column with most room is folded so that lines fit into ``width`` characters; None stands for the terminal's, or
    120. Where nothing can be folded without breaking ids, lines are longer.
    """
    from tabulate import tabulate

    columns = _columns(rows)
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    # tabulate makes each column two wider than its header.
    padded = [f"{column}  " for column in columns]
    limits = _limits([padded, *cells], shutil.get_terminal_size((120, 24)).columns if width is None else width)
    return tabulate(cells, headers=columns, tablefmt="simple", disable_numparse=True, maxcolwidths=limits)


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


def _limits(lines: Sequence[Sequence[str]], width: int) -> list[int | None] | None:
    """Return how wide each column may be, or None when everything fits."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    over = sum(widths) + _GAP * (len(widths) - 1) - width
    if over <= 0:
        return None
    least = [_least(column) for column in zip(*lines, strict=True)]
    folded = max(range(len(widths)), key=lambda index: widths[index] - least[index])
    return [max(least[index], widths[index] - over) if index == folded else None for index in range(len(widths))]


def _least(column: Sequence[str]) -> int:
    """Return how narrow a column may become."""
    words = (len(word) for cell in column for word in cell.split())
    return max(_MIN_WIDTH, *(length for length in (0, *words) if length <= _ID_WIDTH))


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
