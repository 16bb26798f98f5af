"""The resources of an experiment by guid and name: registration, conditions, connections, and problems for plans."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from fedmon.common.errors import ConnectionFailedError, FedmonError, NotConnectedError
from fedmon.common.store.seq_ranges import SeqRanges
from fedmon.experiment.check.graph import Problem, refuse_circles
from fedmon.experiment.conditions import AnyCondition, action_of, checked_condition
from fedmon.experiment.document.description import check_name
from fedmon.experiment.errors import (
    DuplicateGuidError,
    InvalidConditionError,
    InvalidConnectionError,
    InvalidExperimentError,
    UnknownGuidError,
    told,
)
from fedmon.experiment.events import (
    Action,
    ConditionAdded,
    ConditionsRemoved,
    Connected,
    Recoded,
    Registered,
    Reopened,
    Retry,
    SetWanted,
    Verb,
    checked,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import ReplayedRun
from fedmon.experiment.machine import alarms, step
from fedmon.experiment.resource import SETTERS, Experiment, ResourceManager
from fedmon.experiment.situation import Guids
from fedmon.experiment.states import ResourceAction, ResourceState

logger = logging.getLogger(__name__)

_HIGHEST = 2**63
"""Journals and documents hold whole numbers below this one."""


class Registry:
    """The resources of an experiment in order of registration; safe from any thread.

    ``asked_for`` are the guids in any condition so far.
    """

    def __init__(self, ec: Experiment, left: ReplayedRun) -> None:
        self._ec = ec
        self._guids = {seen.name: guid for guid, seen in sorted(left.state.resources.items()) if seen.name}
        self._resources: dict[int, ResourceManager] = {}
        self._highest, self._coming = left.highest_guid, set[int]()
        self._numbers = itertools.count(left.conditions + 1)
        known = (condition for each in left.state.resources.values() for _, condition in each.conditions)
        self.asked_for = {guid for condition in known for guid in condition.group}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._resources))

    def __contains__(self, guid: object) -> bool:
        return guid in self._resources

    def register(
        self,
        rtype: str,
        guid: int | None,
        *,
        attributes: Mapping[str, Any] | None = None,
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        name: str = "",
        prepare: Callable[[ResourceManager], None] | None = None,
    ) -> int:
        """Make a resource, or nothing if that fails; return its guid, the next one for None.

        ``prepare`` is called with the resource before it is registered. Raises DuplicateGuidError,
        InvalidExperimentError.
        """
        engine, number = self._ec.engine, self._reserve(guid, name)
        try:
            # Without a lock: the constructor of a type may do anything.
            resource = ResourceFactory.create(rtype, self._ec, number)
            resource.registered_as = name
            for attribute, value in (attributes or {}).items():
                resource.set(attribute, value)
            if prepare is not None:
                prepare(resource)
            changed = resource.changed_attributes()
            registered = Registered(
                guid=number,
                rtype=rtype,
                name=name,
                critical=bool(resource.get("critical")),
                plain=_plain_verbs(type(resource)),
                attributes={one.name: one.as_noted(one.value, resource=resource.name) for one in changed},
                timeouts={**resource.type_timeouts, **(timeouts or {})},
                retry={**resource.type_retry, **(retry or {})},
            )
            self._resources[number] = resource
            engine.post(checked(registered))
            resource.is_registered = True
        except BaseException:
            with self._lock:
                self._coming.discard(number)
                self.remove({number})
            raise
        with self._lock:
            self._coming.discard(number)
            self._highest = max(self._highest, number)
        return number

    def _reserve(self, guid: int | None, name: str) -> int:
        """Reserve a guid, the next one for None, and a name."""
        with self._lock:
            number = max(self._highest, *self._coming, 0) + 1 if guid is None else guid
            if not 0 < number < _HIGHEST:
                raise InvalidExperimentError(
                    f"guid {number!r} is not a positive whole number below 2**63: leave it out to get the next one"
                )
            check_name(name)
            if number in self._resources or number in self._coming:
                raise DuplicateGuidError(f"guid {number} is taken: leave the guid out")
            if name in self._guids:
                raise DuplicateGuidError(f"the name {name!r} is taken by resource {self._guids[name]}")
            if name:
                self._guids[name] = number
            self._coming.add(number)
            return number

    def remove(self, guids: Collection[int]) -> None:
        """Remove those of some resources that exist."""
        for guid in guids:
            self._resources.pop(guid, None)
        for name, guid in list(self._guids.items()):
            if guid in guids:
                self._guids.pop(name, None)

    def find(self, guid: int) -> ResourceManager | None:
        """Return a resource; None for one that was removed."""
        return self._resources.get(guid)

    def get(self, guid: int | str) -> ResourceManager:
        """Return a resource by guid or name. Raises UnknownGuidError with the known ones."""
        try:
            return self._resources[self._guids[guid] if isinstance(guid, str) else guid]
        except KeyError:
            known = [_ranges(self._resources), *(list(self._guids)[:20] if isinstance(guid, str) else [])]
            raise UnknownGuidError(f"resource {guid!r:.80} not found; known: {', '.join(known)}") from None

    def guids_of(self, guids: Guids) -> tuple[int, ...]:
        """Return the guids of guids or names, each once. Raises UnknownGuidError."""
        given = [guids] if isinstance(guids, str) or not isinstance(guids, Iterable) else guids
        return tuple(dict.fromkeys([self.get(guid).guid for guid in given]))

    def of_type(self, rtype: str | type[ResourceManager]) -> list[ResourceManager]:
        """Return the resources of a type and of derived types."""
        return [one for one in list(self._resources.values()) if one.is_rm_instance(rtype)]

    # --- conditions -------------------------------------------------------------------------------------------------

    def add_condition(self, guids: Guids, action: ResourceAction | str, condition: AnyCondition) -> AnyCondition:
        """Add a condition to an action; return it with its number.

        Raises InvalidConditionError, and ImpossiblePlanError if deployed resources would then wait in a circle.
        """
        engine, waiting, action = self._ec.engine, self._members(guids), action_of(action)
        mine = self._numbered(condition)
        added = ConditionAdded(guids=waiting, action=action, condition=mine)
        resources = engine.state.resources
        deployed = [guid for guid in waiting if guid in resources and resources[guid].group is not None]
        if deployed:
            refuse_circles(step(engine.state, added)[0], deploying=deployed)
        self.asked_for.update(mine.group)
        engine.post(added)
        return mine

    def add_set(self, guids: Guids, name: str, value: Any, condition: AnyCondition | None) -> None:
        """Set an attribute when a condition holds. Raises InvalidConditionError, and the errors of setting it."""
        waiting, kept = self._members(guids), value
        for resource in map(self.get, waiting):
            if resource.state >= ResourceState.FAILED:
                raise InvalidConditionError(f"resource {resource.guid} is {resource.state.name}: it cannot be set")
            kept = resource.check_value(name, value)
        mine = None if condition is None else self._numbered(condition)
        self._ec.engine.post(SetWanted(guids=waiting, name=name, value=kept, condition=mine))

    def remove_conditions(self, guids: Guids, group: Guids, action: ResourceAction | str | None) -> None:
        """Remove a group from the conditions of an action; None: of all actions."""
        known, engine = None if action is None else action_of(action), self._ec.engine
        waiting, others = self._members(guids), self._members(group)
        engine.post(ConditionsRemoved(guids=waiting, group=others, action=known))

    def _members(self, guids: Guids) -> tuple[int, ...]:
        found = self.guids_of(guids)
        if not found:
            raise InvalidConditionError("no guids: a condition is between resources")
        return found

    def _numbered(self, condition: AnyCondition) -> AnyCondition:
        mine = checked_condition(replace(condition, group=self.guids_of(condition.group)))
        return replace(mine, number=next(self._numbers))

    # --- connections ------------------------------------------------------------------------------------------------

    def connect(self, guid1: int | str, guid2: int | str) -> None:
        """Connect two resources; if a hook fails, they are disconnected again. Raises InvalidConnectionError."""
        one, other = self.get(guid1), self.get(guid2)
        if one is other:
            raise InvalidConnectionError(f"{one.name} cannot be connected to itself")
        if other.guid in one.connections:
            return
        sides = ((one, other), (other, one))
        for asked, about in sides:
            if not _hook(asked.valid_connection, asked, about):
                raise InvalidConnectionError(f"{asked.name} takes no connection to {about.name}: nothing was connected")
        engine, done = self._ec.engine, list[tuple[ResourceManager, ResourceManager]]()
        engine.post(Connected(guid=one.guid, other=other.guid))
        try:
            for connected, neighbour in sides:
                _hook(connected.do_connect, connected, neighbour)
                done.append((connected, neighbour))
        except BaseException:
            engine.note(Connected(guid=one.guid, other=other.guid, is_on=False))
            for connected, neighbour in reversed(done):
                _undo(connected, neighbour)
            raise

    def disconnect(self, guid1: int | str, guid2: int | str) -> None:
        """Disconnect two resources; a hook that raises is logged."""
        one, other, engine = self.get(guid1), self.get(guid2), self._ec.engine
        if other.guid in one.connections:
            engine.post(Connected(guid=one.guid, other=other.guid, is_on=False))
            _undo(one, other)
            _undo(other, one)

    # --- reconnecting -----------------------------------------------------------------------------------------------

    def restore(self, left: ReplayedRun) -> None:
        """Make the resources of a state that another process left. Raises UnknownTypeError."""
        engine = self._ec.engine
        for guid, seen in sorted(left.state.resources.items()):
            resource = self._resources[guid] = ResourceFactory.create(seen.rtype, self._ec, guid)
            resource.restore(seen.attributes, seen.traces)
            resource.registered_as, resource.is_registered = seen.name, True
            plain = _plain_verbs(type(resource))
            if plain != seen.plain:
                engine.post(Recoded(guid=guid, plain=plain))

    def take_up(self, left: ReplayedRun) -> None:
        """Go on where another process stopped: timers, attributes to set, and `reconnect` of the resources."""
        engine, alone = self._ec.engine, []
        for guid, seen in sorted(left.state.resources.items()):
            rclass, is_running = type(self._resources[guid]), seen.state is ResourceState.STARTED
            is_default = rclass.do_reconnect is ResourceManager.do_reconnect
            if is_running and seen.calling is None and is_default and rclass.overrides("start"):
                alone.append(guid)
                logger.warning("resource %d was STARTED, and is not taken up: its type has no do_reconnect", guid)
        engine.note(Reopened(left_alone=tuple(alone), process=os.getpid()))
        actions: list[Action] = [*alarms(engine.state), *left.unassigned.values()]
        for action in actions:
            engine.perform(action)
        for guid, seen in sorted(left.state.resources.items()):
            if seen.state is not ResourceState.RELEASED:
                engine.run(functools.partial(self._resources[guid].take_up, seen.calling), guid, seen.calling)

    # --- problems for plans -----------------------------------------------------------------------------------------

    def missing(self, guids: Iterable[int]) -> Iterator[Problem]:
        """Yield the parts that the deploy of resources lacks: attributes, connections, and others that types name."""
        for each in filter(None, map(self.find, guids)):
            if each.state < ResourceState.READY:
                for text in each.missing_parts():
                    yield Problem(kind="missing-part", guids=(each.guid,), text=f"{each.name} {text}")
                yield from getattr(each, "foreseen_here", list)()

    def foreseen(self, *, asks: bool = True) -> Iterator[Problem]:
        """Yield the problems that resources foresee; with ``asks`` those of the federation, which may take a moment.

        Without a connection the rest is not asked.
        """
        yield from self.missing(sorted(self._resources))
        waiting = [each for _, each in sorted(self._resources.items()) if each.state < ResourceState.READY]
        asked = [each for each in waiting if asks and hasattr(each, "foreseen") and not each.missing_attributes()]
        for place, each in enumerate(asked):
            try:
                yield from each.foreseen()
            except (ConnectionFailedError, NotConnectedError) as error:
                guids, text = tuple(one.guid for one in asked[place:]), f"cannot ask the federation: {error}"
                yield Problem(kind="not-asked", severity="warning", guids=guids, text=text)
                return
            except FedmonError as error:
                text = f"{each.name} cannot be looked at: {error}"
                yield Problem(kind="not-asked", severity="warning", guids=(each.guid,), text=text)


def _plain_verbs(rclass: type[ResourceManager]) -> tuple[Verb, ...]:
    """Return the verbs for which a type has no code."""
    return tuple(verb for verb in SETTERS if not rclass.overrides(verb))


def _undo(rm: ResourceManager, other: ResourceManager) -> None:
    try:
        rm.do_disconnect(other.guid)
    except Exception as error:  # noqa: BLE001 - a type's code; the connection ends all the same
        rm.error(f"could not be disconnected from {other.name}: {told(error)}")


def _hook(hook: Callable[[int], object], rm: ResourceManager, other: ResourceManager) -> bool:
    try:
        return bool(hook(other.guid))
    except Exception as error:
        raise InvalidConnectionError(
            f"{rm.name} and {other.name} were not connected: {rm.name} failed: {told(error)}"
        ) from error


def _ranges(guids: Iterable[int]) -> str:
    """Return guids as ranges: ``1-5, 8``."""
    ranges = SeqRanges((guid, guid) for guid in sorted(guids))
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges) or "none yet"
