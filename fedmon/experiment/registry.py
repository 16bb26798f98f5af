"""The resources of an experiment, by guid and name."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedmon.common.errors import FedmonError
from fedmon.experiment.conditions import is_text
from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import (
    DuplicateGuidError,
    InvalidConnectionError,
    InvalidExperimentError,
    UnknownGuidError,
    told,
)
from fedmon.experiment.events import AnyEvent, Recoded, Reopened, Verb
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.journal import Left
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.situation import Guids
from fedmon.experiment.states import ResourceState

logger = logging.getLogger(__name__)

HIGHEST = 2**63
"""Readers of a journal or a document take whole numbers below this one."""


class Registry:
    """The resources of an experiment in order of registration; safe from any thread."""

    def __init__(self, highest: int) -> None:
        self.names: dict[int, str] = {}
        self._resources: dict[int, ResourceManager] = {}
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

    @contextlib.contextmanager
    def reserved(self, guid: int | None, name: str) -> Iterator[int]:
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

    def put(self, resource: ResourceManager) -> None:
        """Add a resource."""
        self._resources[resource.guid] = resource

    def remove(self, guid: int) -> None:
        """Remove a resource, if it is there."""
        self._resources.pop(guid, None)
        self.names.pop(guid, None)

    def plain_verbs(self, rclass: type[ResourceManager]) -> tuple[Verb, ...]:
        """Return the verbs that do no more than set the state, which every resource of a type is asked for."""
        if rclass not in self._plain:
            self._plain[rclass] = rclass.plain_verbs()
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

    def abandon(self, guid: int) -> int | None:
        """Leave the hook of a resource behind; return its thread."""
        resource = self._resources.get(guid)
        return None if resource is None else resource.abandon()

    def waits_for(self, guid: int) -> str:
        """Return what a resource says that it waits for."""
        return str(getattr(self._resources.get(guid), "waits_for", ""))

    # --- taking a run up again ----------------------------------------------------------------------------------------

    def restore(self, ec: Experiment, left: Left) -> None:
        """Make the resources of a state that another process left. Raises UnknownTypeError."""
        self.names.update(left.names)
        for guid, seen in sorted(left.state.resources.items()):
            resource = self._resources[guid] = ResourceFactory.create(seen.rtype, ec, guid)
            resource.restore(seen.attributes, seen.traces)
            plain = self.plain_verbs(type(resource))
            if plain != seen.plain:
                ec.engine.post(Recoded(t=ec.engine.now(), guid=guid, plain=plain))

    def take_up(self, engine: Engine, left: Left) -> None:
        """Go on where another process stopped: set timers and attributes, and have resources ask how they stand."""
        alone = []
        for guid, seen in sorted(left.state.resources.items()):
            if seen.state is ResourceState.STARTED and seen.calling is None and not self._resources[guid].takes_up():
                alone.append(guid)
                logger.warning("resource %d was STARTED, and is not taken up: its type has no do_reconnect", guid)
        engine.note(Reopened(t=engine.now(), left_alone=tuple(alone)))
        engine.resume()
        for guid, name, value in left.unassigned:
            engine.run(functools.partial(self.assign, guid, name, value))
        for guid, seen in left.state.resources.items():
            if seen.state is not ResourceState.RELEASED:
                again = functools.partial(self._resources[guid].reconnected, seen.calling)
                engine.hooks.put(again, limited=False)
        engine.hooks.start()

    def _named(self, name: str) -> int:
        return next((guid for guid, known in list(self.names.items()) if known == name), -1)


def connect(one: ResourceManager, other: ResourceManager, note: Callable[[], object]) -> None:
    """Connect two resources that both agree, and ``note`` it; if anything fails, undo what was done.

    Raises InvalidConnectionError naming the side that does not take it.
    """
    if one.guid == other.guid:
        raise InvalidConnectionError(f"{one.name} cannot be connected to itself")
    sides = ((one, other), (other, one))
    for asked, about in sides:
        if not _asked(asked.valid_connection, asked, about):
            raise InvalidConnectionError(f"{asked.name} takes no connection to {about.name}: nothing was connected")
    done: list[tuple[ResourceManager, ResourceManager]] = []
    try:
        for connected, neighbour in sides:
            _asked(connected.do_connect, connected, neighbour)
            done.append((connected, neighbour))
        note()
    except BaseException:
        for connected, neighbour in reversed(done):
            disconnect(connected, neighbour)
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
