"""Taking up a run again whose process died: the journal says how it stood, the resources ask how it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.researcher.experiment.events import AnyEvent, Assign, AttributeSet, ConditionAdded, Registered, SetWanted
from fedmon.researcher.experiment.journal import NAME, read_journal
from fedmon.researcher.experiment.machine import step
from fedmon.researcher.experiment.run_folder import RunFolder, run_folder
from fedmon.researcher.experiment.situation import State


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What another process left: where, how things stood, and what was asked for and not noted as done.

    ``until`` is the moment of its last event; ``highest_guid`` and ``conditions`` are where numbers go on.
    """

    folder: RunFolder
    state: State = State()
    until: float = 0.0
    highest_guid: int = 0
    conditions: int = 0
    unassigned: tuple[tuple[int, str, Any], ...] = ()


def left_in(run_dir: str | Path) -> Left:
    """Return what the journal of a run tells. Raises StorageError where there is none, or it is no journal of ours."""
    where = Path(run_dir).expanduser().absolute()
    folder = run_folder(where.parent.name, where.parent.parent, where.name)
    if not (where / NAME).is_file():
        raise StorageError(f"there is no run to take up in {where}: it has no {NAME}")
    state, until, highest, conditions = State(), 0.0, 0, 0
    unassigned: dict[tuple[int, str], Any] = {}
    for event in read_journal(where / NAME):
        state, asked = step(state, event)
        until = max(until, event.t)
        for action in asked:
            if isinstance(action, Assign):
                unassigned[action.guid, action.name] = action.value
        if isinstance(event, Registered):
            highest = max(highest, event.guid)
        elif isinstance(event, AttributeSet):
            unassigned.pop((event.guid, event.name), None)
        conditions = max(conditions, _number(event))
    return Left(
        folder=folder,
        state=state,
        until=until,
        highest_guid=highest,
        conditions=conditions,
        unassigned=tuple((guid, name, value) for (guid, name), value in unassigned.items()),
    )


def _number(event: AnyEvent) -> int:
    condition = event.condition if isinstance(event, ConditionAdded | SetWanted) else None
    return 0 if condition is None else condition.number
