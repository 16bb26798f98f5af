"""What the researcher's verbs print, and with which exit code they end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fedmon.common.errors import FedmonError, NoAnswerError
from fedmon.researcher.federation import Federation
from fedmon.researcher.monitor import Watch
from fedmon.researcher.outcomes import Outcomes, OutcomeStatus

if TYPE_CHECKING:
    from rich.table import Table

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
    return 1 if statuses <= {OutcomeStatus.FAILED, OutcomeStatus.TOO_OLD} else NO_ANSWER


def verdict(watching: Watch, federation: Federation) -> FedmonError:
    """Return the error that says why nothing came."""
    if watching.refusals:
        said = "; ".join(f"{node_id}: {reason}" for node_id, reason in watching.refusals.items())
        return NoAnswerError(f"no sample came: {said}")
    return NoAnswerError(f"no sample came. {federation.nodes().explanation()}")


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Table:
    """Return a table for a terminal, with numbers to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
