"""What all resources of a type have in common: its name, attributes and traces, made by `clsinit` or `clsinit_copy`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from fedmon.experiment.attributes import Attribute, Flags, Types, write_refusal
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidTypeError,
    UnknownAttributeError,
    UnknownTraceError,
)
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.natures import Need
from fedmon.experiment.states import ResourceState
from fedmon.experiment.traces import Trace

_KEPT = ("critical", "hardRelease")


class Template:
    """The class side of a resource type.

    A type without `clsinit` or `clsinit_copy` shares the attributes and traces of its parent. The mappings are
    replaced and never changed, so that a resource keeps those of the moment when it was made.
    """

    _rtype: ClassVar[str] = "Resource"
    _help: ClassVar[str | None] = None
    _platform: ClassVar[str | None] = None
    _reschedule_delay: ClassVar[str] = "0.5s"
    type_timeouts: ClassVar[Mapping[Verb, float]] = {}
    """For how many seconds a verb may run, by verb."""
    type_retry: ClassVar[Mapping[Verb, Retry]] = {}
    """How often a verb that failed is tried again, by verb."""
    _attributes: ClassVar[Mapping[str, Attribute]] = {}
    _traces: ClassVar[Mapping[str, Trace]] = {}
    asks_federation: ClassVar[bool] = False
    """Whether it can do nothing without a federation."""
    # What plans and explanations go by; see `natures`.
    _needs: ClassVar[tuple[Need, ...]] = ()
    """What its verbs wait for by themselves, of what it is connected to."""
    _ends_itself: ClassVar[bool] = False
    """Whether it comes to STOPPED without being told to; what has code of its own for its start may do so anyhow."""
    _passes: ClassVar[tuple[ResourceState, ...] | None] = None
    """The states before READY that its deploy stops in; null: nobody knows where it has code of its own for that."""
    _required_attributes: ClassVar[tuple[str, ...]] = ()
    """What has to be set before it is deployed."""
    _required_connections: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """What it has to be connected to before it is deployed: to one type of each."""
    _measured_by: ClassVar[tuple[str, ...] | None] = None
    """The types that tell its metrics when they are connected to it; null where it tells some itself."""
    _measures_when_ready: ClassVar[bool] = False
    """Whether metrics of it may come before it is STARTED."""

    @classmethod
    def _clsinit(cls) -> None:
        """Begin anew, with what every resource has and what this class registers."""
        cls._attributes, cls._traces = {each.name: each for each in _of_every_resource()}, {}
        cls._register_attributes()
        cls._register_traces()

    @classmethod
    def _clsinit_copy(cls) -> None:
        """Begin with what the parent has."""
        cls._attributes, cls._traces = dict(cls._attributes), dict(cls._traces)
        cls._register_attributes()
        cls._register_traces()

    @classmethod
    def _register_attributes(cls) -> None:
        """Register what this class adds; for subclasses."""

    @classmethod
    def _register_traces(cls) -> None:
        """Register what this class adds; for subclasses."""

    @classmethod
    def _register_attribute(cls, attribute: Attribute) -> None:
        """Add an attribute, in place of one of the same name."""
        if not isinstance(attribute, Attribute):
            raise InvalidTypeError(f"{cls.__name__} registers {attribute!r}, which is no Attribute")
        cls._replace("_attributes", {**cls._attributes, attribute.name: attribute})

    @classmethod
    def _remove_attribute(cls, name: str) -> None:
        """Take an attribute out. Raises UnknownAttributeError, and InvalidTypeError for one that every resource has."""
        gone = cls._template(name)
        if name in _KEPT:
            raise InvalidTypeError(f"{cls.__name__} cannot do without the attribute {name!r}: every resource has it")
        cls._replace("_attributes", {other: each for other, each in cls._attributes.items() if each is not gone})

    @classmethod
    def _register_trace(cls, trace: Trace) -> None:
        """Add a trace, in place of one of the same name."""
        if not isinstance(trace, Trace):
            raise InvalidTypeError(f"{cls.__name__} registers {trace!r}, which is no Trace")
        cls._replace("_traces", {**cls._traces, trace.name: trace})

    @classmethod
    def _remove_trace(cls, name: str) -> None:
        """Take a trace out. Raises UnknownTraceError."""
        if name not in cls._traces:
            raise UnknownTraceError(f"type {cls._rtype} has no trace", name, cls._traces)
        cls._replace("_traces", {other: each for other, each in cls._traces.items() if other != name})

    @classmethod
    def get_rtype(cls) -> str:
        """Return the name of the type."""
        return cls._rtype

    @classmethod
    def get_help(cls) -> str | None:
        """Return what the type is for."""
        return cls._help

    @classmethod
    def get_platform(cls) -> str | None:
        """Return the platform that the type belongs to."""
        return cls._platform

    @classmethod
    def get_attributes(cls) -> list[Attribute]:
        """Return copies of the attributes; the value of one that may not be read is null."""
        return [each.listed() for each in cls._attributes.values()]

    @classmethod
    def get_attribute(cls, name: str) -> Attribute:
        """Return a copy of an attribute. Raises UnknownAttributeError."""
        return cls._template(name).shown(f"type {cls._rtype}")

    @classmethod
    def get_traces(cls) -> list[Trace]:
        """Return copies of the traces."""
        return [copy.copy(each) for each in cls._traces.values()]

    @classmethod
    def has_attribute(cls, name: str) -> bool:
        """Tell whether there is an attribute of a name."""
        return name in cls._attributes

    @classmethod
    def get_global(cls, name: str) -> Any:
        """Return the value with which resources of the type begin.

        Raises UnknownAttributeError, and AttributeAccessError for an attribute that is not Global, or NoRead.
        """
        return cls._global(name).shown(f"type {cls._rtype}").value

    @classmethod
    def set_global(cls, name: str, value: Any) -> Any:
        """Set the value with which resources of the type begin from now on, and return it.

        Those that exist keep theirs. Raises UnknownAttributeError, InvalidAttributeValueError, and AttributeAccessError
        for an attribute that is not Global, or that nobody but the type may set.
        """
        attribute, who = cls._global(name), f"type {cls._rtype}"
        refused = write_refusal(attribute, ResourceState.NEW, is_deployed=False)
        if refused is not None:
            raise AttributeAccessError(name, who, refused[0].name or "", refused[1])
        value = attribute.accepted(value, resource=who)
        attribute.as_noted(value, resource=who)
        cls._replace("_attributes", {**cls._attributes, name: attribute.with_value(value)})
        return value

    @classmethod
    def _template(cls, name: str) -> Attribute:
        found = cls._attributes.get(name)
        if found is None:
            raise UnknownAttributeError(f"type {cls._rtype} has no attribute", name, cls._attributes)
        return found

    @classmethod
    def _global(cls, name: str) -> Attribute:
        found = cls._template(name)
        if not found.has_flag(Flags.Global):
            raise AttributeAccessError(name, f"type {cls._rtype}", "Global", "is not one of the whole type: it has no")
        return found

    @classmethod
    def _replace(cls, name: str, mapping: Mapping[str, Attribute] | Mapping[str, Trace]) -> None:
        """Replace a mapping where it is: in this class, or in the parent that this one shares it with."""
        setattr(next(each for each in cls.__mro__ if name in vars(each)), name, mapping)


_T = TypeVar("_T", bound=type[Template])


def clsinit(cls: _T) -> _T:
    """Give a class attributes and traces of its own, without those of its parent."""
    cls._clsinit()
    return cls


def clsinit_copy(cls: _T) -> _T:
    """Give a class the attributes and traces of its parent, and its own."""
    cls._clsinit_copy()
    return cls


def _of_every_resource() -> tuple[Attribute, Attribute]:
    return (
        Attribute(
            "critical",
            "Whether the experiment fails when the resource does.",
            type=Types.Bool,
            default=True,
            flags=Flags.Design,
        ),
        Attribute(
            "hardRelease",
            "Whether a release takes the resource out of the experiment.",
            type=Types.Bool,
            default=False,
            flags=Flags.Design,
        ),
    )
