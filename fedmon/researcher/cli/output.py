"""What the researcher's verbs print, and with which exit code they end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import FedmonError, NoAnswerError
from fedmon.common.log import escape_control
from fedmon.researcher.asking.outcome import Outcomes, OutcomeStatus
from fedmon.researcher.federation import Federation
from fedmon.researcher.samples.watch import Watch

if TYPE_CHECKING:
    from rich.console import Group

    from fedmon.researcher.cli.watching.screen import Screen
    from fedmon.researcher.samples.record import Record

REFUSED, NO_ANSWER = 4, 6


def emit(document: Mapping[str, Any], *, text: str, as_json: bool) -> None:
    """Print one JSON document, or the text."""
    sys.stdout.write(f"{_json(document) if as_json else text}\n")


def emit_line(value: Any, *, text: str, as_json: bool) -> None:
    """Print one line of a stream at once."""
    sys.stdout.write(f"{_json(value) if as_json else text}\n")
    sys.stdout.flush()


def outcomes_document(federation: Federation, outcomes: Outcomes[Any]) -> dict[str, Any]:
    """Return everything that is known about a request, for programs."""
    return {
        "command": outcomes.command,
        "broker": federation.settings.broker.url,
        "researcher_id": federation.researcher_id,
        "elapsed_s": round(outcomes.elapsed_s, 6),
        "outcomes": [
            {
                "node_id": node_id,
                "status": outcome.status,
                "reason": outcome.reason,
                "elapsed_s": outcome.elapsed_s,
                "reply": outcome.reply,
            }
            for node_id, outcome in outcomes.items()
        ],
        "explanation": outcomes.explanation(),
    }


def exit_code(outcomes: Outcomes[Any], *, named: bool) -> int:
    """Return 0 when everybody who was expected did it; a node known to be offline is expected only when named."""
    expected = [outcome for outcome in outcomes.values() if named or outcome.status is not OutcomeStatus.OFFLINE]
    if not expected:
        return NO_ANSWER
    statuses = {outcome.status for outcome in expected if not outcome.ok}
    if not statuses:
        return 0
    if statuses <= {OutcomeStatus.REFUSED}:
        return REFUSED
    return 1 if statuses <= {OutcomeStatus.FAILED, OutcomeStatus.TOO_OLD, OutcomeStatus.NO_SANDBOX} else NO_ANSWER


def verdict(watching: Watch | Record, federation: Federation) -> FedmonError:
    """Return the error that says why nothing came."""
    if watching.refusals:
        said = "; ".join(f"{node_id}: {reason}" for node_id, reason in watching.refusals.items())
        return NoAnswerError(f"no sample came: {said}")
    return NoAnswerError(f"no sample came. {federation.nodes().explanation()}")


def rich_screen(screen: Screen) -> Group:
    """Return a screen of tables for a terminal, with numbers to the right and bad values in colour."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    styles = ("", "yellow", "bold red")
    parts: list[Table | Text] = []
    for one in screen.tables:
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1),
            collapse_padding=True,
            title=one.title,
            title_justify="left",
            title_style="bold",
        )
        for index, column in enumerate(one.headers):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True, overflow="ellipsis")
        for row in one.rows:
            table.add_row(*(Text(escape_control(cell.text), style=styles[cell.grade]) for cell in row.cells))
        parts.append(table)
        parts.append(Text(f"... {one.more} more, none of them worse" if one.more else ""))
    if screen.absent:
        parts.append(Text("NOT MEASURED", style="bold"))
        parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in screen.absent]
        parts.append(Text(""))
    parts.append(Text(screen.totals, style="dim"))
    return Group(*parts)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
