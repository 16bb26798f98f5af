"""The machine of an experiment: ``step(state, event)`` returns the next state and what is to be done.

It knows no clock, no thread and no network: whatever happened, and when, is in the event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedmon.experiment import contents, events, happening, wanting
from fedmon.experiment.change import Change
from fedmon.experiment.events import Action, AnyEvent
from fedmon.experiment.situation import State


def step(state: State, event: AnyEvent) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event, and what it asks to be done, in this order. The old state stays as it was."""
    at_once = _AT_ONCE.get(type(event))
    if at_once is not None:
        return at_once(state, event), ()
    change = Change(state, event.t)
    _HANDLERS[type(event)](change, event)
    while change.awake or change.due or change.to_stop:
        while change.awake:
            wanting.judge(change, change.awake.popleft())
        if change.due:
            happening.come(change)
        else:
            wanting.begin_stops(change)
    return change.finish(), tuple(change.actions)


# Of these there are as many as resources and connections, nobody waits for them, and they touch one map alone.
_AT_ONCE: dict[type[AnyEvent], Callable[[State, Any], State]] = {
    events.Opened: contents.opened,
    events.Registered: contents.registered,
    events.Connected: contents.connected,
}
_HANDLERS: dict[type[AnyEvent], Callable[[Change, Any], None]] = {
    events.Recoded: contents.recoded,
    events.Removed: contents.removed,
    events.AttributeSet: contents.attribute_set,
    events.TraceEnabled: contents.trace_enabled,
    events.ConditionAdded: contents.condition_added,
    events.ConditionsRemoved: contents.conditions_removed,
    events.SetWanted: contents.set_wanted,
    events.DeployAsked: wanting.deploy_asked,
    events.ActionWanted: wanting.action_wanted,
    events.ReleaseAsked: wanting.release_asked,
    events.Became: happening.became,
    events.Returned: happening.returned,
    events.VerbFailed: happening.verb_failed,
    events.Fired: happening.fired,
    events.Measured: happening.measured,
    events.Leveled: happening.leveled,
}
