"""Tables of flat rows, as text, in colours, as HTML or as a data frame; and the rows of each kind of reply."""

from __future__ import annotations

import html
import importlib
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fedmon.common.errors import FedmonError
from fedmon.common.log import escape_control
from fedmon.common.text import UNLIMITED, ago, joined, moment, plural, short_ids, table
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.grants import GrantReport, rule_text
from fedmon.common.wire.messages import ApprovalReply, DatasetsReply, Pong, TrainingPlanStatusReply
from fedmon.common.wire.runs import RunReply, StopReply

Row = dict[str, Any]
SHOWN_DIGEST = 12
STATE_COLUMNS = ("status", "state", "nodes")
STATE_COLOURS = {
    "ok": "green", "online": "green", "succeeded": "green",
    "running": "#0087af", "starting": "#0087af", "draining": "#0087af",
    "stale": "#af8700", "busy": "#af8700", "unanswered": "#af8700", "timed-out": "#af8700", "stopped": "#af8700",
}  # fmt: skip
BAD_COLOUR = "red"
GIVE_WAY = ("description", "type", "began", "rounds", "shape")
"""Columns that a narrow terminal leaves out, in this order."""
MARKS = {"green": ("●", "32"), "#0087af": ("◐", "38;5;31"), "#af8700": ("○", "38;5;136"), BAD_COLOUR: ("✕", "31")}
"""The sign of a state that holds without its colour, and the colour as a code of terminals."""


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


def text_table(rows: Sequence[Row], *, colours: bool = False) -> str:
    """Return rows as aligned text that fits the terminal; columns without a value are left out, times are relative.

    The widest columns are folded, then those that give way are left out. Lines are longer where that would break a
    word. With ``colours`` states have colours and a sign before them.
    """
    columns, cells = _cells(rows, relative=True)
    if not columns:
        return ""
    marks = [
        [MARKS.get(state_colour(*cell) if colours else "", ("", "")) for cell in zip(columns, row, strict=True)]
        for row in cells
    ]
    shown = [
        [f"{sign} {text}".lstrip() for (sign, _), text in zip(signs, row, strict=True)]
        for signs, row in zip(marks, cells, strict=True)
    ]
    width = shutil.get_terminal_size((UNLIMITED, 24)).columns
    spare = next((name for name in GIVE_WAY if name in columns), None)
    if spare and max(map(len, table(columns, shown, width=width, fold=True).splitlines())) > width:
        return text_table([{**row, spare: None} for row in rows], colours=colours)
    styles = [[code for _, code in row] for row in marks] if colours else None
    return table(columns, shown, width=width, fold=True, styles=styles)


def html_table(rows: Sequence[Row], *, caption: str) -> str:
    """Return rows as an HTML table in which nothing from outside is markup; states have colours."""
    columns, cells = _cells(rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_html_cell, columns, row))}</tr>" for row in cells)
    title = f"<caption>{html.escape(escape_control(caption))}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rich_rows(rows: Sequence[Row], *, notes: Sequence[str]) -> Any:
    """Return rows, and lines below them, for a terminal; states have colours."""
    from rich.text import Text

    shown = text_table(rows, colours=True)
    return Text.from_ansi("\n".join([*([shown] if shown else []), *map(escape_control, notes)]))


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return ``a, b: reason`` for each reason, in the order of first appearance."""
    nodes: dict[str, list[str]] = {}
    for node_id, reason in reasons.items():
        nodes.setdefault(reason, []).append(node_id)
    return [f"{named(node_ids)}: {reason}" for reason, node_ids in nodes.items()]


def named(node_ids: Sequence[str]) -> str:
    """Return the names of nodes, of many the first ones and the number of others."""
    return joined(node_ids, most=20, last=", ")


def state_colour(column: str, text: str) -> str:
    """Return the colour of a cell: of a state the worst that it names; empty for other columns."""
    if column not in STATE_COLUMNS or not text:
        return ""
    words = re.findall(r"[a-z][a-z-]*", re.sub(r"\(.*?\)", "", text))
    colours = {STATE_COLOURS.get(word, BAD_COLOUR) for word in words}
    return next((colour for colour in (BAD_COLOUR, *reversed(STATE_COLOURS.values())) if colour in colours), "")


def _cells(rows: Sequence[Row], *, relative: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return the columns that have a value, and the text of each row's cells."""
    names = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
    columns = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
    return columns, [[_cell(row.get(column), relative=relative) for column in columns] for row in rows]


def _html_cell(column: str, text: str) -> str:
    colour, is_id = state_colour(column, text), "-" in text and " " not in text  # browsers break ids at their hyphens
    style = f"color: {colour}" if colour else "white-space: nowrap" if is_id else ""
    return f'<td style="{style}">{html.escape(text)}</td>' if style else f"<td>{html.escape(text)}</td>"


def _cell(value: Any, *, relative: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return ago(value) if relative else moment(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_cell(part) for part in value)
    return escape_control(str(value))


def reply_rows(reply: Reply) -> list[Row]:
    """Return the table rows of a node's answer: one, or one for each thing that it lists."""
    match reply:
        case Pong():
            return [{"agent": reply.agent_version, "boot": reply.boot}]
        case DatasetsReply():
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
        case ApprovalReply():
            return [{"plan": reply.status.value, "note": reply.note, "sha256": reply.sha256[:SHOWN_DIGEST]}]
        case TrainingPlanStatusReply():
            return [
                {
                    "plan": "not known here" if reply.status is None else reply.status.value,
                    "name": reply.name,
                    "decided": reply.decided,
                    "note": reply.note,
                    "grants": "; ".join(map(_grant, reply.grants)),
                    "sha256": reply.sha256[:SHOWN_DIGEST],
                }
            ]
        case RunReply() | StopReply():
            job = reply.job
            # An id that is folded cannot be copied: no more columns than leave room for it.
            asked = {"name": job.name, "created": job.created} if isinstance(reply, RunReply) else {}
            return [{"job": job.job_id, "state": job.state.value, **asked, "why": job.reason}]
    return []


def _grant(report: GrantReport) -> str:
    """Return the terms of a grant in which runs may differ from it."""
    grant = report.grant
    parts = [
        "any number of runs" if report.runs_left is None else f"{plural(report.runs_left, 'run')} left",
        "" if grant.until is None else f"until {grant.until:%Y-%m-%d %H:%M} UTC",
        "any dataset"
        if grant.datasets is None
        else f"datasets {', '.join(short_ids(grant.datasets).values()) or 'none'}",
        "any arguments"
        if grant.arguments is None
        else ", ".join(f"{name}: {rule_text(rule)}" for name, rule in grant.arguments.items()) or "no arguments",
    ]
    return ", ".join(filter(None, parts))
