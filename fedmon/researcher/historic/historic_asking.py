"""Asking for `Requests`: what cannot be done, and who did not answer, is logged instead of raised or returned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from fedmon.common.errors import ConnectionFailedError, InvalidIdError, NotConnectedError
from fedmon.common.wire.envelope import Reply
from fedmon.common.wire.messages import DatasetsReply
from fedmon.researcher.asking.outcome import Outcome, Outcomes, OutcomeStatus
from fedmon.researcher.historic.historic_forms import historic

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Reply)
D = TypeVar("D", bound=DatasetsReply)

_GONE = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE)


def asked(what: str, ask: Callable[[], Outcomes[R]], *, named: bool) -> Outcomes[R] | None:
    """Ask, and log why nobody could be asked, or why a node did not answer."""
    try:
        outcomes = ask()
    except (ConnectionFailedError, NotConnectedError, InvalidIdError) as error:
        logger.error("%s: %s", what, error)  # noqa: TRY400 - an error of ours says what happened
        return None
    explain(what, outcomes, named=named)
    return outcomes


def asked_for_datasets(what: str, ask: Callable[[], Outcomes[D]], *, named: bool) -> dict[str, list[dict[str, Any]]]:
    """Ask, and return the datasets of each node that answered, in the words of version 4.4."""
    outcomes = asked(what, ask, named=named)
    return {} if outcomes is None else {str(node): historic(reply)["databases"] for node, reply in outcomes.ok.items()}


def explain(what: str, outcomes: Outcomes[R], *, named: bool) -> None:
    """Log why nobody, or a node, did not do it; ``named`` when the caller asked these nodes and no others."""
    if not outcomes:
        logger.warning("%s", outcomes.explanation())
    for node_id, outcome in outcomes.failed.items():
        # Of everybody who was ever there, those who are gone are no news.
        level = logging.DEBUG if not named and outcome.status in _GONE else logging.WARNING
        logger.log(level, "%s: node %s (%s): %s", what, node_id, outcome.status.value, outcome.reason)


def has_answered(outcome: Outcome[R]) -> bool:
    """Tell whether a node that did not do it said so itself."""
    return outcome.status in (
        OutcomeStatus.REFUSED, OutcomeStatus.FAILED, OutcomeStatus.TOO_OLD, OutcomeStatus.NO_SANDBOX,
    )  # fmt: skip
