"""What connects the resources of an experiment: connections, and conditions between their actions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fedmon.experiment.book import Book
from fedmon.experiment.check.graph import refuse_circles
from fedmon.experiment.conditions import (
    COMPARE,
    AnyCondition,
    Metric,
    MetricCondition,
    StateCondition,
    is_text,
    number_of,
)
from fedmon.experiment.durations import seconds
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import InvalidConditionError, InvalidConnectionError, UnknownGuidError
from fedmon.experiment.events import (
    VERB_OF,
    ConditionAdded,
    ConditionsRemoved,
    Connected,
    Measured,
    SetWanted,
)
from fedmon.experiment.machine import step
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verbs import told
from fedmon.experiment.verdicts import waits_in_vain

if TYPE_CHECKING:
    from fedmon.experiment.protocol import Guids
    from fedmon.experiment.resource import ResourceManager


def connect(one: ResourceManager, other: ResourceManager, note: Callable[[], None]) -> None:
    """Connect two resources, unless they are; ``note`` writes it down once both have agreed and done their part.

    Raises InvalidConnectionError, and then nothing is connected: what a hook did already is undone.
    """
    if one.guid == other.guid:
        raise InvalidConnectionError(f"{one.name} cannot be connected to itself")
    if other.guid in one.connections:
        return
    for asked, about in ((one, other), (other, one)):
        if not _asked(asked.valid_connection, asked, about):
            raise InvalidConnectionError(f"{asked.name} takes no connection to {about.name}: nothing was connected")
    done: list[tuple[ResourceManager, ResourceManager]] = []
    try:
        for connected, neighbour in ((one, other), (other, one)):
            _asked(connected.do_connect, connected, neighbour)
            done.append((connected, neighbour))
        note()
    except BaseException:
        for connected, neighbour in reversed(done):
            _undo(connected, neighbour)
        raise


def disconnect(one: ResourceManager, other: ResourceManager, note: Callable[[], None]) -> None:
    """Take two resources apart, whatever their hooks say to it; ``note`` writes it down."""
    if other.guid in one.connections:
        _undo(one, other)
        _undo(other, one)
        note()


def _asked(hook: Callable[[int], object], rm: ResourceManager, other: ResourceManager) -> bool:
    try:
        return bool(hook(other.guid))
    except Exception as error:
        raise InvalidConnectionError(
            f"{rm.name} and {other.name} were not connected, for {rm.name} failed: {told(error)}"
        ) from error


def _undo(rm: ResourceManager, other: ResourceManager) -> None:
    try:
        rm.do_disconnect(other.guid)
    except Exception as error:  # noqa: BLE001 - a type's own code; the connection ends all the same
        rm.error(f"could not be taken apart from {other.name}: {told(error)}")


class Wiring:
    """Registers connections and conditions; everything is checked before anything takes effect."""

    def __init__(self, book: Book, engine: Engine, *, conditions: int = 0) -> None:
        self._book, self._engine = book, engine
        self._numbers = itertools.count(conditions + 1)

    def connect(self, guid: int, other: int) -> None:
        """Connect two resources that both find it right. Raises InvalidConnectionError naming who does not."""
        one, two = self._book.get(guid), self._book.get(other)
        connect(one, two, lambda: self._engine.post(Connected(t=self._engine.now(), guid=guid, other=other)))

    def disconnect(self, guid: int, other: int) -> None:
        """Take a connection away, if there is one."""
        one, two = self._book.get(guid), self._book.get(other)
        gone = Connected(t=self._engine.now(), guid=guid, other=other, is_on=False)
        disconnect(one, two, lambda: self._engine.post(gone))

    def condition(
        self,
        guids: Guids,
        action: ResourceAction,
        group: Guids,
        state: ResourceState | None,
        *,
        time: str | None = None,
        metric: Metric | None = None,
        at_least: int | None = None,
        timeout: str | None = None,
    ) -> AnyCondition:
        """Have an action of each of ``guids`` wait for ``group``. Raises InvalidConditionError, InvalidTimeError."""
        made = self._made(group, state, time=time, metric=metric, at_least=at_least, timeout=timeout)
        return self.add(guids, action, made)

    def add(self, guids: Guids, action: ResourceAction, condition: AnyCondition) -> AnyCondition:
        """Have an action wait for a condition that was made somewhere; it gets a number of ours, and is returned.

        Raises InvalidConditionError, and ImpossiblePlanError where those who are deployed already would then wait for
        each other for ever.
        """
        waiting, action = self._checked(guids), _action(action)
        mine = self._accepted(condition)
        for guid in waiting:
            if isinstance(mine, StateCondition) and waits_in_vain(guid, action, mine):
                raise InvalidConditionError(
                    f"resource {guid} cannot wait for itself to be {mine.state.name} before it may "
                    f"{VERB_OF[action]}: that would be for ever"
                )
        added = ConditionAdded(t=self._engine.now(), guids=waiting, action=action, condition=mine)
        seen = self._engine.state
        deployed = [guid for guid in waiting if guid in seen.resources and seen.resources[guid].group is not None]
        if deployed:
            refuse_circles(step(seen, added)[0], deploying=deployed)
        self._book.asked_for.update(mine.group)
        self._engine.post(added)
        return mine

    def add_set(self, guids: Guids, name: str, value: Any, condition: AnyCondition | None) -> None:
        """Have an attribute set when a condition holds that was made elsewhere. Raises InvalidConditionError."""
        waiting, kept = self._checked(guids), value
        for guid in waiting:
            state = self._book.get(guid).state
            if state >= ResourceState.FAILED:
                raise InvalidConditionError(f"resource {guid} is {state.name}: nothing of it will be set any more")
            kept = self._book.get(guid).check_value(name, value)
        mine = None if condition is None else self._accepted(condition)
        self._engine.post(SetWanted(t=self._engine.now(), guids=waiting, name=name, value=kept, condition=mine))

    def measured(self, guid: int, name: str, value: float, source: str, nth: int | None) -> None:
        """Tell a value to who waits for it. Raises UnknownGuidError, InvalidConditionError."""
        known = self._book.get(guid).guid
        if not (is_text(name) and (source == "" or is_text(source))):
            raise InvalidConditionError(f"{(name, source)!r:.80}: a metric and its source have texts for names")
        number = number_of(value, f"{name} of resource {guid}")
        self._engine.note(Measured(t=self._engine.now(), guid=known, name=name, value=number, source=source, nth=nth))

    def free(self, guids: Guids, group: Guids, action: ResourceAction | None) -> None:
        """Have ``guids`` wait for ``group`` no longer, in one action or in all."""
        known = None if action is None else _action(action)
        self._engine.post(
            ConditionsRemoved(
                t=self._engine.now(), guids=self._checked(guids), group=self._checked(group), action=known
            )
        )

    def set_when(
        self, guids: Guids, name: str, value: Any, group: Guids, state: ResourceState, time: str | None
    ) -> None:
        """Have an attribute of each of ``guids`` set as soon as ``group`` is there; the value is checked now."""
        self.add_set(guids, name, value, self._made(group, state, time=time))

    def _made(
        self,
        group: Guids,
        state: ResourceState | None,
        *,
        time: str | None = None,
        metric: Metric | None = None,
        at_least: int | None = None,
        timeout: str | None = None,
    ) -> AnyCondition:
        members = self._checked(group)
        timeout_s = seconds(timeout) if timeout else None
        if metric is not None:
            if state is not None:
                raise InvalidConditionError("a condition asks for a state or for a metric: register two conditions")
            return MetricCondition(number=0, group=members, metric=metric, at_least=at_least, timeout_s=timeout_s)
        return StateCondition(
            number=0,
            group=members,
            state=state_of(state),
            delay_s=seconds(time),
            at_least=at_least,
            timeout_s=timeout_s,
        )

    def _accepted(self, condition: AnyCondition) -> AnyCondition:
        """Return a condition with a number, each of its group once. Raises InvalidConditionError, UnknownGuidError."""
        group, at_least, timeout_s = self._checked(condition.group), condition.at_least, condition.timeout_s
        if at_least is not None and (type(at_least) is not int or not 1 <= at_least <= len(group)):
            raise InvalidConditionError(f"at_least={at_least!r} of {len(group)} resources: take 1 to {len(group)}")
        if timeout_s is not None and not 0 <= timeout_s < math.inf:
            raise InvalidConditionError(f"a timeout is 0 s or more, not {timeout_s!r}")
        if isinstance(condition, MetricCondition):
            _check_metric(condition.metric)
        return replace(condition, number=next(self._numbers), group=group)

    def _checked(self, guids: Guids) -> tuple[int, ...]:
        found = guids_of(guids)
        if not found:
            raise InvalidConditionError("no guids: a condition is between resources")
        for guid in found:
            self._book.get(guid)
        return found


def guids_of(guids: Guids) -> tuple[int, ...]:
    """Return guids as a tuple without repeats; one alone is taken for a list of one.

    Raises UnknownGuidError for what is no number, and none of numbers.
    """
    try:
        if not isinstance(guids, Iterable):
            return (operator.index(guids),)
        return tuple(dict.fromkeys([guid if type(guid) is int else operator.index(guid) for guid in guids]))
    except TypeError:
        raise UnknownGuidError(f"{guids!r:.80} is no guid of a resource, and no list of them") from None


def _action(value: object) -> ResourceAction:
    for action in ResourceAction:
        if action == value:
            return action
    raise InvalidConditionError(f"{value!r} is no action: take one of {', '.join(ResourceAction.__members__)}")


def state_of(value: object) -> ResourceState:
    """Return the state that a value means. Raises InvalidConditionError."""
    for state in ResourceState:
        if state == value:
            return state
    raise InvalidConditionError(f"{value!r} is no state: take one of {', '.join(ResourceState.__members__)}")


def _check_metric(metric: object) -> None:
    """Raise InvalidConditionError for what the machine could not judge, or nobody read back from the journal."""
    hint = 'take Metric(name="accuracy", comparison=">", value=0.9, samples=3)'
    value: object = metric.value if isinstance(metric, Metric) else None
    if not isinstance(metric, Metric) or not is_text(metric.name):
        raise InvalidConditionError(f"{metric!r:.80} is no metric of a condition: {hint}")
    if metric.comparison not in COMPARE:
        raise InvalidConditionError(f"{metric.comparison!r} compares nothing: take one of {', '.join(COMPARE)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidConditionError(f"a metric is compared with a finite number, not with {value!r}: {hint}")
    if type(metric.samples) is not int or metric.samples < 1:
        raise InvalidConditionError(f"a metric holds for 1 sample or more, not for {metric.samples!r}: {hint}")
