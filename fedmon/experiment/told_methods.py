"""The methods of a controller by which resources tell what becomes of them."""

from __future__ import annotations

from typing import Any

from fedmon.experiment.delegate import Delegate
from fedmon.experiment.doing import Doing
from fedmon.experiment.events import (
    ActionWanted,
    AttributeSet,
    Became,
    Returned,
    TraceEnabled,
    Verb,
    VerbFailed,
)
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verbs import as_reason


class ToldMethods(Delegate):
    """What resources tell; see `Experiment` for those without a docstring."""

    _doing: Doing

    def inform_failure(self, guid: int) -> None:
        """Have the failure manager look at a resource that failed; it is told of each that does. For subclasses, too.

        Raises UnknownGuidError.
        """
        self._doing.look_at(self._book.get(guid).guid)

    def measured(self, guid: int, name: str, value: float, source: str = "", *, nth: int | None = None) -> None:
        """Hand over a value that conditions may ask for; ``source`` tells apart whose it is where there are several.

        ``nth`` is which one of that source it is, for who wants to know later which were handed over.
        Raises UnknownGuidError, and InvalidConditionError for a name that is no text and a value that is no number.
        """
        self._wiring.measured(guid, name, value, source, nth)

    def _seen(self, guid: int) -> Resource:
        return self._engine.state.resources[guid]

    def _became(self, guid: int, state: ResourceState, reason: str = "") -> None:
        reason = as_reason(reason) if reason else ""
        self._engine.note(Became(t=self._engine.now(), guids=(guid,), state=state, reason=reason))

    def _returned(self, guid: int, state: ResourceState) -> None:
        self._engine.note(Returned(t=self._engine.now(), guid=guid, state=state))

    def _verb_failed(self, guid: int, verb: Verb, reason: str) -> None:
        self._engine.note(VerbFailed(t=self._engine.now(), guid=guid, verb=verb, reason=reason))

    def _failure_judged(self) -> None:
        self._doing.heed()

    def _attribute_set(self, guid: int, name: str, value: Any) -> None:
        self._engine.post(AttributeSet(t=self._engine.now(), guid=guid, name=name, value=value))

    def _trace_enabled(self, guid: int, name: str) -> None:
        self._engine.post(TraceEnabled(t=self._engine.now(), guid=guid, name=name))

    def _action_wanted(self, guid: int, action: ResourceAction) -> None:
        self._engine.post(ActionWanted(t=self._engine.now(), guid=guid, action=action))
