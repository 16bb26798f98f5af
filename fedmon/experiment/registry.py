"""The resources of an experiment by guid and name, and what they wait for."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from fedmon.common.errors import FedmonError
from fedmon.experiment.check.graph import refuse_circles
from fedmon.experiment.conditions import AnyCondition, StateCondition, action_of, check_condition, is_text
from fedmon.experiment.engine import Engine, HookJob
from fedmon.experiment.errors import (
    DuplicateGuidError,
    InvalidConditionError,
    InvalidConnectionError,
    InvalidExperimentError,
    UnknownGuidError,
    told,
)
from fedmon.experiment.events import (
    VERB_OF,
    AnyEvent,
    ConditionAdded,
    ConditionsRemoved,
    Connected,
    Recoded,
    Registered,
    Reopened,
    Retry,
    SetWanted,
    Verb,
    checked_retries,
    checked_timeouts,
)
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import SavedRun
from fedmon.experiment.machine import step
from fedmon.experiment.resource import SETTERS, Experiment, ResourceManager
from fedmon.experiment.situation import Guids, waits_for_itself
from fedmon.experiment.states import ResourceAction, ResourceState

logger = logging.getLogger(__name__)

HIGHEST = 2**63
"""Readers of a journal or a document take whole numbers below this one."""


class Registry:
    """The resources of an experiment in order of registration; safe from any thread."""

    def __init__(self, highest: int) -> None:
        self.names: dict[int, str] = {}
        self._resources: dict[int, ResourceManager] = {}
        self.is_saved = False  # since the last change, by an experiment that saves itself
        self._highest = highest
        self._plain: dict[type[ResourceManager], tuple[Verb, ...]] = {}
        self._coming: set[int] = set()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._resources))

    def __contains__(self, guid: object) -> bool:
        return guid in self._resources

    def __len__(self) -> int:
        return len(self._resources)

    def register(
        self,
        ec: Experiment,
        rtype: str,
        guid: int | None,
        *,
        attributes: Mapping[str, Any] | None = None,
        stored: Mapping[str, Any] | None = None,
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        name: str = "",
        prepare: Callable[[ResourceManager], None] | None = None,
    ) -> int:
        """Make a resource, all of it or nothing, and return its guid: the next one for None.

        ``stored`` are values as another resource had them: no set hook sees them again. ``prepare`` is called with the
        resource before it is registered.
        """
        with self._reserved(guid, name) as number:
            # Outside of every lock: a type's constructor may do anything.
            resource = ResourceFactory.create(rtype, ec, number)
            for attribute, value in (attributes or {}).items():
                resource.set(attribute, value)
            resource.take_stored(stored or {})
            if prepare is not None:
                prepare(resource)
            registered = Registered(
                t=ec.engine.now(),
                guid=number,
                rtype=rtype,
                name=name,
                critical=resource.is_on("critical"),
                plain=self._plain_verbs(type(resource)),
                attributes=resource.notes(),
                timeouts=checked_timeouts(resource.type_timeouts, timeouts),
                retry=checked_retries(resource.type_retry, retry),
            )
            self._resources[number] = resource
            ec.engine.post(registered)
        self.is_saved = False
        return number

    @contextlib.contextmanager
    def _reserved(self, guid: int | None, name: str) -> Iterator[int]:
        """Reserve a guid, the next one for None, and a name, for a resource that is made in the block.

        What the block raises frees them again. Raises DuplicateGuidError, InvalidExperimentError.
        """
        number, before = self._reserve(guid, name)
        try:
            yield number
        except BaseException:
            with self._lock:
                self.remove(number)
                self._highest = before if self._highest == number else self._highest
            raise
        finally:
            self._coming.discard(number)

    def _reserve(self, guid: int | None, name: str) -> tuple[int, int]:
        if guid is not None and (type(guid) is not int or not 0 < guid < HIGHEST):
            raise InvalidExperimentError(
                f"guid {guid!r} is no positive whole number below 2**63: leave it out to get the next one"
            )
        with self._lock:
            number = self._highest + 1 if guid is None else guid
            if number >= HIGHEST:
                raise InvalidExperimentError(f"there is no guid after {self._highest}: give one")
            if number in self._resources:
                taken = self._resources[number].get_rtype()
                raise DuplicateGuidError(f"guid {number} is taken by a resource of type {taken}: leave the guid out")
            if number in self._coming:
                raise DuplicateGuidError(f"guid {number} is being registered by another thread: leave the guid out")
            if name:
                if not is_text(name):
                    raise InvalidExperimentError(f"the name of a resource is a text, not {name!r:.80}")
                if name in self.names.values():
                    raise DuplicateGuidError(f"the name {name!r} is taken by resource {self._named(name)}")
                self.names[number] = name
            self._coming.add(number)
            before, self._highest = self._highest, max(self._highest, number)
            return number, before

    def remove(self, guid: int) -> None:
        """Remove a resource, if it is there."""
        self._resources.pop(guid, None)
        self.names.pop(guid, None)

    def _plain_verbs(self, rclass: type[ResourceManager]) -> tuple[Verb, ...]:
        """Return the verbs that do no more than set the state, which every resource of a type is asked for."""
        if rclass not in self._plain:
            self._plain[rclass] = tuple(verb for verb in SETTERS if not rclass.overrides(verb))
        return self._plain[rclass]

    def get(self, guid: int | str) -> ResourceManager:
        """Return a resource by guid or name. Raises UnknownGuidError, which says which there are."""
        try:
            if isinstance(guid, str):
                return self._resources[self._named(guid)]
            # What only equals a whole number, as 1.0 and True do, is a mistake.
            return self._resources[-1 if isinstance(guid, bool) else operator.index(guid)]
        except (KeyError, TypeError):
            named = f", named {', '.join(list(self.names.values())[:20])}" if isinstance(guid, str) else ""
            raise UnknownGuidError(
                f"there is no resource {guid!r:.80}: there are {_ranges(self._resources)}{named}"
            ) from None

    def guids_of(self, guids: Guids) -> tuple[int, ...]:
        """Return the guids that a caller means, each once. Raises UnknownGuidError."""
        given = [guids] if isinstance(guids, str) or not isinstance(guids, Iterable) else guids
        return tuple(dict.fromkeys([self.get(guid).guid for guid in given]))

    def of_type(self, rtype: str | type[ResourceManager], *, is_exact: bool = False) -> list[ResourceManager]:
        """Return the resources of a type and, unless ``is_exact``, of types derived from it.

        Raises UnknownTypeError for a type that was never registered.
        """
        every = list(self._resources.values())
        found = [one for one in every if (one.get_rtype() == rtype if is_exact else one.is_rm_instance(rtype))]
        if not found and not isinstance(rtype, type):
            classes = {each for rclass in ResourceFactory.resource_types().values() for each in rclass.__mro__}
            # A name that only types derived from it have is a type as well.
            if not any(vars(each).get("_rtype") == rtype for each in classes):
                ResourceFactory.get_resource_type(rtype)
        return found

    # --- what the engine asks for: resources that were removed meanwhile do nothing -----------------------------------

    def call(self, guid: int, verb: Verb, reason: str) -> AnyEvent | None:
        """Call a verb of a resource; return how it ended."""
        resource = self._resources.get(guid)
        return None if resource is None else resource.called(verb, reason)

    def assign(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute, or log why that cannot be."""
        resource = self._resources.get(guid)
        try:
            if resource is not None:
                resource.set(name, value)
        except FedmonError as error:
            logger.warning("resource %d: %s", guid, error)

    def abandon(self, guid: int) -> HookJob | None:
        """Leave the hook of a resource behind; return its job."""
        resource = self._resources.get(guid)
        return None if resource is None else resource.abandon()

    def waits_for(self, guid: int) -> str:
        """Return what a resource says that it waits for."""
        return str(getattr(self._resources.get(guid), "waits_for", ""))

    def end_at_once(self, guids: Iterable[int]) -> None:
        """Have resources end what they run, without grace."""
        for guid in guids:
            try:
                self.get(guid).end_at_once()
            except Exception:  # a type's own code; the others are to end, too
                logger.exception("resource %d could not be ended at once", guid)

    # --- taking a run up again ----------------------------------------------------------------------------------------

    def restore(self, ec: Experiment, left: SavedRun) -> None:
        """Make the resources of a state that another process left. Raises UnknownTypeError."""
        self.names.update(left.names)
        for guid, seen in sorted(left.state.resources.items()):
            resource = self._resources[guid] = ResourceFactory.create(seen.rtype, ec, guid)
            resource.restore(seen.attributes, seen.traces)
            plain = self._plain_verbs(type(resource))
            if plain != seen.plain:
                ec.engine.post(Recoded(t=ec.engine.now(), guid=guid, plain=plain))

    def take_up(self, engine: Engine, left: SavedRun) -> None:
        """Go on where another process stopped: set timers and attributes, and have resources ask how they stand."""
        alone = []
        for guid, seen in sorted(left.state.resources.items()):
            if seen.state is ResourceState.STARTED and seen.calling is None and not self._resources[guid].takes_up():
                alone.append(guid)
                logger.warning("resource %d was STARTED, and is not taken up: its type has no do_reconnect", guid)
        engine.note(Reopened(t=engine.now(), left_alone=tuple(alone)))
        engine.resume()
        for (guid, name), value in left.unassigned.items():
            engine.run(functools.partial(self.assign, guid, name, value))
        for guid, seen in left.state.resources.items():
            if seen.state is not ResourceState.RELEASED:
                again = functools.partial(self._resources[guid].reconnected, seen.calling)
                engine.reconnect(guid, seen.calling, again)

    def _named(self, name: str) -> int:
        return next((guid for guid, known in list(self.names.items()) if known == name), -1)


class Conditions:
    """What resources wait for: checks conditions, numbers them and posts them; safe from any thread.

    ``asked_for`` holds the guids that a condition ever asked for.
    """

    def __init__(self, registry: Registry, engine: Engine, left: SavedRun) -> None:
        self._registry, self._engine, self._numbers = registry, engine, itertools.count(left.conditions + 1)
        known = (condition for each in left.state.resources.values() for _, condition in each.conditions)
        self.asked_for = {guid for condition in known for guid in condition.group}

    def add(self, guids: Guids, action: ResourceAction | str, condition: AnyCondition) -> AnyCondition:
        """Have an action wait for a condition; return it with its number.

        Raises InvalidConditionError, and ImpossiblePlanError where those who are deployed already would then wait for
        each other for ever.
        """
        waiting, action = self._members(guids), action_of(action)
        mine = self._numbered(condition)
        for guid in waiting:
            if isinstance(mine, StateCondition) and waits_for_itself(guid, action, mine):
                raise InvalidConditionError(
                    f"resource {guid} cannot wait for itself to be {mine.state.name} before it may "
                    f"{VERB_OF[action]}: that would be for ever"
                )
        added = ConditionAdded(t=self._engine.now(), guids=waiting, action=action, condition=mine)
        seen = self._engine.state
        deployed = [guid for guid in waiting if guid in seen.resources and seen.resources[guid].group is not None]
        if deployed:
            refuse_circles(step(seen, added)[0], deploying=deployed)
        self.asked_for.update(mine.group)
        self._engine.post(added)
        return mine

    def add_set(self, guids: Guids, name: str, value: Any, condition: AnyCondition | None) -> None:
        """Have an attribute set when a condition holds. Raises InvalidConditionError, and what setting it would."""
        waiting, kept = self._members(guids), value
        for guid in waiting:
            resource = self._registry.get(guid)
            if resource.state >= ResourceState.FAILED:
                raise InvalidConditionError(f"resource {guid} is {resource.state.name}: nothing of it will be set")
            kept = resource.check_value(name, value)
        mine = None if condition is None else self._numbered(condition)
        self._engine.post(SetWanted(t=self._engine.now(), guids=waiting, name=name, value=kept, condition=mine))

    def remove(self, guids: Guids, group: Guids, action: ResourceAction | str | None) -> None:
        """Have an action, or every one, wait for a group no longer."""
        known = None if action is None else action_of(action)
        waiting, others = self._members(guids), self._members(group)
        self._engine.post(ConditionsRemoved(t=self._engine.now(), guids=waiting, group=others, action=known))

    def _members(self, guids: Guids) -> tuple[int, ...]:
        found = self._registry.guids_of(guids)
        if not found:
            raise InvalidConditionError("no guids: a condition is between resources")
        return found

    def _numbered(self, condition: AnyCondition) -> AnyCondition:
        mine = replace(condition, group=self._members(condition.group))
        check_condition(mine)
        return replace(mine, number=next(self._numbers))


def connect(engine: Engine, one: ResourceManager, other: ResourceManager) -> None:
    """Connect two resources that both agree; the journal has it before their hooks run. If one fails, undo it.

    Raises InvalidConnectionError naming the side that does not take it.
    """
    if one.guid == other.guid:
        raise InvalidConnectionError(f"{one.name} cannot be connected to itself")
    sides = ((one, other), (other, one))
    for asked, about in sides:
        if not _asked(asked.valid_connection, asked, about):
            raise InvalidConnectionError(f"{asked.name} takes no connection to {about.name}: nothing was connected")
    done: list[tuple[ResourceManager, ResourceManager]] = []
    engine.post(Connected(t=engine.now(), guid=one.guid, other=other.guid))
    try:
        for connected, neighbour in sides:
            _asked(connected.do_connect, connected, neighbour)
            done.append((connected, neighbour))
    except BaseException:
        for connected, neighbour in reversed(done):
            disconnect(connected, neighbour)
        engine.note(Connected(t=engine.now(), guid=one.guid, other=other.guid, is_on=False))
        raise


def disconnect(rm: ResourceManager, other: ResourceManager) -> None:
    """Have a resource undo its side of a connection; the connection ends whatever its hook raises."""
    try:
        rm.do_disconnect(other.guid)
    except Exception as error:  # noqa: BLE001 - a type's own code; the connection ends all the same
        rm.error(f"could not be taken apart from {other.name}: {told(error)}")


def _asked(hook: Callable[[int], object], rm: ResourceManager, other: ResourceManager) -> bool:
    try:
        return bool(hook(other.guid))
    except Exception as error:
        raise InvalidConnectionError(
            f"{rm.name} and {other.name} were not connected, for {rm.name} failed: {told(error)}"
        ) from error


def _ranges(guids: Iterable[Any]) -> str:
    """Return guids as ranges: ``1-5, 8``."""
    found: list[list[int]] = []
    for guid in sorted(guids):
        if found and guid == found[-1][1] + 1:
            found[-1][1] = guid
        else:
            found.append([guid, guid])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found) or "none yet"
