"""The resources of an experiment: made, found by guid or type, and taken out."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from fedmon.experiment.engine import Engine
from fedmon.experiment.errors import DuplicateGuidError, InvalidExperimentError, InvalidPolicyError, UnknownGuidError
from fedmon.experiment.events import Recoded, Registered, Removed, Retry, Verb
from fedmon.experiment.factory import ResourceFactory
from fedmon.experiment.holder import Holder
from fedmon.experiment.resource import CALLED
from fedmon.experiment.situation import State
from fedmon.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.resource import Experiment, ResourceManager


_VERBS: tuple[str, ...] = get_args(Verb)
_MOST = 10**9


def checked_timeouts(*given: Mapping[Verb, float] | None) -> dict[Verb, float]:
    """Return timeouts in seconds by verb, later mappings over earlier ones. Raises InvalidPolicyError."""
    found: dict[Verb, float] = {}
    for mapping in given:
        if mapping is None:
            continue
        _check_mapping(mapping, "timeouts")
        for verb, timeout_s in mapping.items():
            _check_verb(verb, "timeouts")
            if not _is_number(timeout_s) or not 0 < timeout_s < math.inf:
                raise InvalidPolicyError(
                    f"the timeout of {verb} is {timeout_s!r:.80}: take a number of seconds above 0"
                )
            found[verb] = float(timeout_s)
    return found


def checked_retries(*given: Mapping[Verb, Retry] | None) -> dict[Verb, Retry]:
    """Return how often verbs are tried again, later mappings over earlier ones. Raises InvalidPolicyError."""
    found: dict[Verb, Retry] = {}
    for mapping in given:
        if mapping is None:
            continue
        _check_mapping(mapping, "retry")
        for verb, retry in mapping.items():
            _check_verb(verb, "retry")
            if not isinstance(retry, Retry):
                raise InvalidPolicyError(f"the retry of {verb} is {retry!r}: take Retry(times=3, delay_s=1.0)")
            if type(retry.times) is not int or not 0 <= retry.times < _MOST:
                raise InvalidPolicyError(f"times of the retry of {verb} is {retry.times!r}: take a whole number from 0")
            for name in ("delay_s", "factor", "max_delay_s"):
                value = getattr(retry, name)
                if not _is_number(value) or not 0 <= value < math.inf:
                    raise InvalidPolicyError(f"{name} of the retry of {verb} is {value!r:.80}: take a number from 0")
            found[verb] = retry
    return found


def _check_mapping(given: object, what: str) -> None:
    if not (given is None or type(given) is dict or isinstance(given, Mapping)):  # the second one is the fast one
        raise InvalidPolicyError(f"{what} {given!r:.80} are not by verb: take {{'deploy': ...}}")


def _check_verb(verb: str, what: str) -> None:
    if verb not in _VERBS:
        raise InvalidPolicyError(f"{what} of {verb!r}, which is no verb: there are {', '.join(_VERBS)}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**63


HIGHEST = 2**63
"""Numbers from here on are no whole numbers any more to who reads a journal or a document."""


class Book:
    """Every resource by its guid; safe from any thread.

    A guid that is not given is the next one after the highest there ever was.
    """

    def __init__(self, ec: Experiment, engine: Engine) -> None:
        self._ec, self._engine = ec, engine
        self._resources: dict[int, ResourceManager] = {}
        self._coming: set[int] = set()
        self._plain: dict[type[ResourceManager], tuple[Verb, ...]] = {}
        self.names: dict[int, str] = {}
        """What the document that they come from calls those that have a name there."""
        self.asked_for: set[int] = set()
        """Those that a condition ever asked for."""
        self._highest = 0
        self._lock = threading.Lock()

    def __contains__(self, guid: int) -> bool:
        return guid in self._resources

    @property
    def guids(self) -> list[int]:
        """All guids, in order of registration."""
        return list(self._resources)

    def register(
        self,
        rtype: str,
        guid: int | None,
        *,
        attributes: Mapping[str, Any] | None = None,
        stored: Mapping[str, Any] | None = None,
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        name: str = "",
    ) -> int:
        """Make a resource of a type, with values for its attributes, and return its guid; all of it or nothing.

        ``name`` is what a document calls it.
        ``stored`` are values as another resource had them: no set hook sees them again.
        ``timeouts`` and ``retry`` are by verb, and over those of the type. Raises UnknownTypeError, DuplicateGuidError,
        InvalidAttributeValueError, InvalidPolicyError, and InvalidExperimentError for a guid that is no positive
        number.
        """
        if guid is not None and (type(guid) is not int or not 0 < guid < HIGHEST):
            raise InvalidExperimentError(
                f"guid {guid!r} is no positive whole number below 2**63: leave it out to get the next one"
            )

        number, before = self._take_number(guid)
        try:
            # Outside of every lock: what a type's constructor does is its own affair.
            resource = ResourceFactory.create(rtype, self._ec, number)
            if attributes:
                for attribute, value in attributes.items():
                    resource.set(attribute, value)
            if stored:
                resource.take_stored(stored)
            notes = resource.notes()
            self._resources[number] = resource
            if name:
                self.names[number] = name
            self._engine.post(
                Registered(
                    t=self._engine.now(),
                    guid=number,
                    rtype=rtype,
                    name=name,
                    critical=is_set(resource, "critical"),
                    plain=self._plain_verbs(type(resource)),
                    attributes=notes,
                    timeouts=checked_timeouts(resource.type_timeouts, timeouts),
                    retry=checked_retries(resource.type_retry, retry),
                )
            )
        except BaseException:
            self._resources.pop(number, None)
            self.names.pop(number, None)
            with self._lock:
                self._highest = before if self._highest == number else self._highest
            raise
        finally:
            with self._lock:
                self._coming.discard(number)
        return number

    def _take_number(self, guid: int | None) -> tuple[int, int]:
        with self._lock:
            number = self._highest + 1 if guid is None else guid
            if number >= HIGHEST:
                raise InvalidExperimentError(f"there is no guid after {self._highest}: give one")
            if number in self._resources:
                taken = self._resources[number].get_rtype()
                raise DuplicateGuidError(f"guid {number} is taken by a resource of type {taken}: leave the guid out")
            if number in self._coming:
                raise DuplicateGuidError(f"guid {number} is being registered by another thread: leave the guid out")
            self._coming.add(number)
            before, self._highest = self._highest, max(self._highest, number)
            return number, before

    def take_up(self, state: State, *, highest: int, names: Mapping[int, str]) -> None:
        """Make the resources of a state that another process left. Raises UnknownTypeError."""
        self._highest = highest
        self.names.update(names)
        for guid, seen in sorted(state.resources.items()):
            resource = ResourceFactory.create(seen.rtype, self._ec, guid)
            self._resources[guid] = resource
            self.asked_for.update(other for _, condition in seen.conditions for other in condition.group)
            resource.restore(seen.attributes, seen.traces)
            plain = self._plain_verbs(type(resource))
            if plain != seen.plain:
                self._engine.post(Recoded(t=self._engine.now(), guid=guid, plain=plain))

    def has_code(self, resource: ResourceManager) -> bool:
        """Tell whether anything is called when the experiment deploys, starts, stops, releases or fails a resource."""
        return len(self._plain_verbs(type(resource))) < len(CALLED)

    def _plain_verbs(self, rclass: type[ResourceManager]) -> tuple[Verb, ...]:
        found = self._plain.get(rclass)
        if found is None:
            found = self._plain[rclass] = rclass.plain_verbs()
        return found

    def get(self, guid: int) -> ResourceManager:
        """Return a resource. Raises UnknownGuidError, which says which there are."""
        try:
            # What only equals a whole number, as 1.0 and True do, is a mistake.
            return self._resources[guid if type(guid) is int else _index(guid)]
        except (KeyError, TypeError):
            raise UnknownGuidError(f"there is no resource {guid!r:.80}: there are {_ranges(self._resources)}") from None

    def all(self) -> list[ResourceManager]:
        """Return all resources as they are now, in order of registration."""
        return list(self._resources.values())

    def remove(self, guids: Iterable[int]) -> None:
        """Take resources out; they are no more."""
        self.discard([self.get(guid).guid for guid in guids])

    def discard(self, guids: Iterable[int]) -> None:
        """Take those resources out that are still there."""
        gone = tuple(guid for guid in guids if guid in self._resources)
        self._engine.note(Removed(t=self._engine.now(), guids=gone))
        for guid in gone:
            self._resources.pop(guid, None)  # another thread may have been faster

    def where(self, fits: Callable[[ResourceManager], bool]) -> list[int]:
        """Return the guids of those that fit."""
        return [resource.guid for resource in self.all() if fits(resource)]

    def new(self) -> list[int]:
        """Return the guids of those that nobody deployed yet."""
        seen = self._engine.state.resources
        # Those that another thread is registering just now, or takes out, are none of them.
        return [guid for guid in self.guids if guid in seen and seen[guid].state is ResourceState.NEW]


def is_set(resource: ResourceManager, name: str) -> bool:
    """Tell whether an attribute that every resource has is on, whatever code of its own its type has for that."""
    return Holder.is_on(resource, name)


def _index(guid: Any) -> int:
    if isinstance(guid, bool):
        raise TypeError("no guid")
    return operator.index(guid)


def _ranges(guids: Iterable[int]) -> str:
    """Return guids as ranges: ``1-5, 8``."""
    found: list[list[int]] = []
    for guid in sorted(guids):
        if found and guid == found[-1][1] + 1:
            found[-1][1] = guid
        else:
            found.append([guid, guid])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found) or "none yet"
