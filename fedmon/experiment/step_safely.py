"""A step of the machine that cannot be made, contained: the experiment counts as failed, and can still be released."""

from __future__ import annotations

import logging

from immutables import Map
from msgspec.structs import replace

from fedmon.experiment.events import Action, AnyEvent
from fedmon.experiment.machine import step
from fedmon.experiment.situation import State
from fedmon.experiment.states import FailureLevel

logger = logging.getLogger(__name__)


def step_safely(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...]]:
    """Return what `step` does; where that raises, a state that wants nothing any more and says so.

    That is the same whenever the event is read back from a journal, so nothing of it has to be written down.
    """
    try:
        return step(state, event)
    except Exception as error:
        logger.exception("the machine failed on %s; the experiment ends here, and can only be released", _told(event))
        reason = state.level_reason if state.is_aborted else f"the machine failed on {_told(event)}: {error!r}"
        state = replace(state, wants=Map(), watchers=Map(), level=FailureLevel.EC_FAILURE, level_reason=reason)
    # What happened has happened: without what was wanted, which is what steps stumble over, it can mostly be noted.
    try:
        return step(state, event)
    except Exception:
        logger.exception("%s is passed over", _told(event))
        return state, ()


def _told(event: AnyEvent) -> str:
    return f"{event!r:.200}"
