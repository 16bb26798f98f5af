"""Tables of flat rows, as text, in colours, as HTML or as a data frame; and the rows of each kind of reply."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control
from fedmon.common.text import rich_table, table
from fedmon.common.wire.messages import ApprovalReply, DatasetsReply, Pong, TrainingPlanStatusReply

Row = dict[str, Any]
SHOWN_DIGEST = 12
ID_WIDTH = 36
STATE_COLUMNS = ("status", "state", "nodes")
STATE_COLOURS = {
    "ok": "green", "online": "green", "succeeded": "green",
    "running": "#0087af", "starting": "#0087af", "draining": "#0087af",
    "stale": "#af8700", "unanswered": "#af8700", "timed-out": "#af8700", "stopped": "#af8700",
}  # fmt: skip
BAD_COLOUR = "red"


class NoDataframeError(FedmonError):
    """A dataframe was asked for where pandas is not installed."""


def frame(rows: Sequence[Any], *, instead: str) -> Any:
    """Return a pandas DataFrame with a row each. Raises NoDataframeError, naming the use ``instead`` of pandas."""
    try:
        # By name, because pandas belongs to the reports; here it is an optional convenience.
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise NoDataframeError(
            f"data frames need pandas, which is not installed: `pip install pandas`, or use {instead}"
        ) from None
    return pandas.DataFrame(rows)


def text_table(rows: Sequence[Row]) -> str:
    """Return rows as aligned text that fits the terminal, or 120 columns; columns without a value are left out.

    The widest column is folded. Lines are longer where that would break an id.
    """
    columns, cells = _cells(rows)
    return table(columns, cells, fold=True) if columns else ""


def html_table(rows: Sequence[Row], *, caption: str) -> str:
    """Return rows as an HTML table in which nothing from outside is markup; states have colours."""
    columns, cells = _cells(rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_html_cell, columns, row))}</tr>" for row in cells)
    title = f"<caption>{html.escape(escape_control(caption))}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rich_rows(rows: Sequence[Row], *, notes: Sequence[str] = ()) -> Any:
    """Return rows, and lines below them, for a terminal; states have colours."""
    from rich.console import Group
    from rich.text import Text

    columns, cells = _cells(rows)
    shown = rich_table()
    for column, texts in zip(columns, zip(*cells, strict=True), strict=False):
        words = [len(word) for text in texts for word in text.split() if len(word) <= ID_WIDTH]
        shown.add_column(column, overflow="fold", min_width=max(words, default=1))
    for row in cells:
        shown.add_row(
            *(Text(text, style=state_colour(column, text)) for column, text in zip(columns, row, strict=True))
        )
    return Group(*([shown] if columns else []), *(Text(escape_control(note)) for note in notes))


def state_colour(column: str, text: str) -> str:
    """Return the colour of a cell: of a state the worst that it names; empty for other columns."""
    if column not in STATE_COLUMNS or not text:
        return ""
    words = re.findall(r"[a-z][a-z-]*", re.sub(r"\(.*?\)", "", text))
    colours = {STATE_COLOURS.get(word, BAD_COLOUR) for word in words}
    return next((colour for colour in (BAD_COLOUR, *reversed(STATE_COLOURS.values())) if colour in colours), "")


def local_time(moment: datetime) -> str:
    """Return a moment in the reader's zone; a node may name one that no zone knows, and that is shown as it came."""
    try:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return moment.isoformat()


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the columns that have a value, and the text of each row's cells."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    return columns, [[_cell(row.get(column)) for column in columns] for row in rows]


def _html_cell(column: str, text: str) -> str:
    colour = state_colour(column, text)
    style = f' style="color: {colour}"' if colour else ""
    return f"<td{style}>{html.escape(text)}</td>"


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
