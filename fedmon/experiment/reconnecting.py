"""Taking up a run again whose process died: the journal says how it stood, the resources ask how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedmon.common.errors import StorageError
from fedmon.experiment.events import (
    Action,
    AnyEvent,
    Assign,
    AttributeSet,
    Call,
    ConditionAdded,
    Inform,
    Leveled,
    Opened,
    Registered,
    SetWanted,
)
from fedmon.experiment.journal import NAME, Journal, read_journal
from fedmon.experiment.run_folder import RunFolder, path_of, run_folder
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState
from fedmon.experiment.step_safely import step_safely


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What another process left: where, how things stood, and what was asked for and not noted as done.

    ``journal`` is held from before it was read. ``until`` is the moment of its last event; ``highest_guid`` and
    ``conditions`` are where numbers go on. ``opened`` is what the controller was told, ``names`` what a document calls
    resources; ``unjudged`` failed and nobody looked at them, ``reasons`` is why some were to fail.
    """

    folder: RunFolder
    journal: Journal | None = None
    state: State = State()
    until: float = 0.0
    highest_guid: int = 0
    conditions: int = 0
    opened: Opened | None = None
    names: dict[int, str] = {}
    unassigned: tuple[tuple[int, str, Any], ...] = ()
    unjudged: tuple[int, ...] = ()
    reasons: dict[int, str] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let others have the run where the block, which takes it up, raises."""
        try:
            yield
        except BaseException:
            if self.journal is not None:
                self.journal.close()
            raise


def left_in(run_dir: str | Path) -> Left:
    """Take a run, and return what its journal tells.

    Raises StorageError where there is none, or it is no journal of ours, and FolderInUseError where somebody has it.
    """
    where = path_of("run_dir", run_dir)
    folder = run_folder(where.parent.name, where.parent.parent, where.name)
    if not (where / NAME).is_file():
        raise StorageError(f"there is no run to take up in {where}: it has no {NAME}")
    journal = Journal(where / NAME)  # before it is read: nobody else goes on with it meanwhile
    try:
        return _replayed(folder, journal)
    except BaseException:
        journal.close()
        raise


class _Replay:
    """Collects what the events of a journal tell beside the state."""

    def __init__(self) -> None:
        self.opened: Opened | None = None
        self.names: dict[int, str] = {}
        self.highest = self.conditions = 0
        self.unassigned: dict[tuple[int, str], Any] = {}
        self.unjudged: dict[int, None] = {}
        self.reasons: dict[int, str] = {}

    def take(self, event: AnyEvent) -> None:
        """Look at an event."""
        match event:
            case Opened():
                self.opened = event
            case Registered():
                self.highest = max(self.highest, event.guid)
                if event.name:
                    self.names[event.guid] = event.name
            case AttributeSet():
                self.unassigned.pop((event.guid, event.name), None)
            case Leveled():
                self.unjudged.pop(event.guid, None)
            case ConditionAdded() | SetWanted():
                self.conditions = max(self.conditions, 0 if event.condition is None else event.condition.number)

    def take_asked(self, action: Action) -> None:
        """Look at what the machine asked for."""
        match action:
            case Assign():
                self.unassigned[action.guid, action.name] = action.value
            case Call(verb="fail"):
                self.reasons[action.guid] = action.reason
            case Inform():
                self.unjudged[action.guid] = None


def _replayed(folder: RunFolder, journal: Journal) -> Left:
    state, until, found = State(), 0.0, _Replay()
    for event in read_journal(journal.path):
        state, asked = step_safely(state, event)
        until = max(until, event.t)
        found.take(event)
        for action in asked:
            found.take_asked(action)
    return Left(
        folder=folder,
        journal=journal,
        state=state,
        until=until,
        highest_guid=found.highest,
        conditions=found.conditions,
        opened=found.opened,
        names={guid: name for guid, name in found.names.items() if guid in state.resources},
        unassigned=tuple((guid, name, value) for (guid, name), value in found.unassigned.items()),
        unjudged=tuple(guid for guid in found.unjudged if _has_failed(state, guid)),
        reasons=found.reasons,
    )


def _has_failed(state: State, guid: int) -> bool:
    resource = state.resources.get(guid)
    return resource is not None and resource.state is ResourceState.FAILED
