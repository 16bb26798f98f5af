"""A resource's own attributes and traces: who may read and set them, and what is told to the experiment."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fedmon.experiment.attributes import MASK, Attribute, Flags, write_refusal
from fedmon.experiment.errors import (
    AttributeAccessError,
    InvalidAttributeValueError,
    UnknownAttributeError,
    UnknownTraceError,
)
from fedmon.experiment.log_lines import Logged
from fedmon.experiment.protocol import Experiment
from fedmon.experiment.states import ResourceState
from fedmon.experiment.templates import Template
from fedmon.experiment.traces import Trace, TraceAttr
from fedmon.experiment.turns import Turn

_OF_THE_VIEW = frozenset({"value", "_read", "_write"})


class OwnAttribute(Attribute):
    """An attribute as it is now, whatever class it is of; setting its value asks the resource to set it.

    Templates are shared by all resources of a type: a value that is set in one would be everybody's.
    """

    def __init__(self, read: Callable[[], Attribute], write: Callable[[Any], object]) -> None:
        self._read, self._write = read, write

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_VIEW:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_read")(), name)

    @property
    def value(self) -> Any:
        """The value; setting one that does not fit raises InvalidAttributeValueError, a ValueError."""
        return self._read().value

    @value.setter
    def value(self, value: Any) -> None:
        self._write(value)


class OwnAttributes(Mapping[str, Attribute]):
    """The attributes by name."""

    def __init__(
        self, names: Mapping[str, object], read: Callable[[str], Attribute], write: Callable[[str, Any], object]
    ) -> None:
        self._names, self._read, self._write = names, read, write

    def __getitem__(self, name: str) -> Attribute:
        self._read(name)  # one that there is not is no view either
        return OwnAttribute(lambda: self._read(name), lambda value: self._write(name, value))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_NONE: frozenset[str] = frozenset()
_making_turns = threading.Lock()


class Holder(Template, Logged):
    """Holds the attributes and traces of one resource.

    Only those that differ from the type's are kept here. Flags bind everybody but the resource's own hooks, which
    are known by the turn that their thread has; types and ranges bind all.
    """

    def __init__(self, guid: int) -> None:
        self._guid = guid
        self._turn: Turn | None = None
        self._templates: Mapping[str, Attribute] = self._attributes
        self._trace_templates: Mapping[str, Trace] = self._traces
        self._own: dict[str, Attribute] = {}
        enabled = [each.name for each in self._trace_templates.values() if each.enabled]
        self._enabled: frozenset[str] = frozenset(enabled) if enabled else _NONE

    @property
    def guid(self) -> int:
        """The number of the resource."""
        return self._guid

    @property
    def turn(self) -> Turn:
        """Whose turn it is; made when the first one asks, for most resources of a large experiment are never asked."""
        found = self._turn
        if found is None:
            with _making_turns:
                found = self._turn = self._turn or Turn(self.name)
        return found

    @property
    def has_turn(self) -> bool:
        """Whether anybody has asked for its turn yet."""
        return self._turn is not None

    @property
    def name(self) -> str:
        """How messages name the resource."""
        return f"resource {self._guid} ({self._rtype})"

    @property
    def ec(self) -> Experiment:
        """The experiment."""
        raise NotImplementedError

    @property
    def state(self) -> ResourceState:
        """How far the resource is."""
        raise NotImplementedError

    @property
    def deployment_group(self) -> int | None:
        """With whom it is deployed; null before it was asked to."""
        raise NotImplementedError

    def get(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises UnknownAttributeError, a KeyError, and AttributeAccessError where it has the flag NoRead.
        """
        attribute = self._attribute(name)
        if attribute.has_flag(Flags.NoRead) and not self.turn.is_mine():
            raise AttributeAccessError(name, self.name, "NoRead", "cannot be read")
        return attribute.value

    def is_on(self, name: str) -> bool:
        """Tell whether an attribute that is there is true, for experiments, which no flag binds."""
        return bool((self._own.get(name) or self._templates[name]).value)

    def set(self, name: str, value: Any) -> Any:
        """Set an attribute, and return the value that it has now.

        Raises UnknownAttributeError, a KeyError; InvalidAttributeValueError, a ValueError; AttributeAccessError.
        """
        if not self.turn.is_mine():
            self._check_writable(self._attribute(name))
        return self._set_own(name, value)

    def check_value(self, name: str, value: Any) -> Any:
        """Return a value that conditions are to set as files hold it till then.

        Raises what `set` would once the resource is STARTED.
        """
        attribute = self._attribute(name)
        self._check_writable(attribute, ResourceState.STARTED)
        return attribute.as_plain(value, resource=self.name)

    def has_changed(self, name: str) -> bool:
        """Tell whether an attribute has another value than its default. Raises UnknownAttributeError."""
        return self._attribute(name).has_changed

    def has_flag(self, name: str, flag: int) -> bool:
        """Tell whether an attribute has a flag. Raises UnknownAttributeError."""
        return self._attribute(name).has_flag(flag)

    def get_attributes_of_instance(self) -> list[Attribute]:
        """Return copies of the attributes, with the values that they have here; what may not be read is null."""
        may_read = self.turn.is_mine()
        found = [self._own.get(name, template) for name, template in self._templates.items()]
        return [copy.copy(each) if may_read else each.listed() for each in found]

    def get_attribute_of_instance(self, name: str) -> Attribute:
        """Return a copy of an attribute, with the value that it has here, if it may be read.

        Raises UnknownAttributeError.
        """
        attribute = self._attribute(name)
        return copy.copy(attribute) if self.turn.is_mine() else attribute.shown(self.name)

    def get_traces_of_instance(self) -> list[Trace]:
        """Return copies of the traces, with whether they are written here."""
        return [Trace(each.name, each.help, each.name in self._enabled) for each in self._trace_templates.values()]

    def changed_attributes(self) -> list[Attribute]:
        """Return copies of the attributes that differ from their defaults, credentials among them."""
        own = self._own
        found = (
            [own.get(name, template) for name, template in self._templates.items()] if own else self._templates.values()
        )
        return [copy.copy(each) for each in found if each.has_changed]

    def enable_trace(self, name: str) -> None:
        """Have a trace written. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        if name not in self._enabled and self._is_registered():
            self.ec._trace_enabled(self._guid, name)  # noqa: SLF001
        self._enabled |= {name}

    def restore(self, attributes: Mapping[str, Any], traces: Iterable[str]) -> None:
        """Take the attributes and traces that another process left in the journal; credentials were not.

        What is not valid in this process, such as the name of a function that it lacks, matters to who needs it.
        """
        for name, note in attributes.items():
            attribute = self._attribute(name)
            if not (attribute.is_secret and note == MASK):
                try:
                    self.take_stored({name: attribute.from_note(note)})
                except InvalidAttributeValueError as error:
                    self.warning(f"is taken up with what it had, though {error}")
                    self._own[name] = attribute.with_value(attribute.from_note(note))
        self._enabled |= {name for name in traces if name in self._trace_templates}

    def take_stored(self, attributes: Mapping[str, Any]) -> None:
        """Take values as another resource had them, whatever their flags say, without a set hook.

        Raises UnknownAttributeError, InvalidAttributeValueError.
        """
        for name, value in attributes.items():
            attribute = self._attribute(name)
            self._own[name] = attribute.with_value(attribute.stored(value, resource=self.name))

    def give(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes again whatever their flags say, as credentials after a reconnect. Raises as `set` does."""
        for name, value in attributes.items():
            self._set_own(name, value)

    def notes(self) -> dict[str, Any]:
        """Return the values that differ from their defaults as journals hold them; an error names the attribute."""
        return {each.name: each.as_noted(each.value, resource=self.name) for each in self.changed_attributes()}

    def masked_values(self) -> dict[str, Any]:
        """Return the values that documents keep out, and that differ from their defaults."""
        return {each.name: each.value for each in self.changed_attributes() if each.is_masked}

    def trace_enabled(self, name: str) -> bool:
        """Tell whether a trace is written. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        return name in self._enabled

    def enabled_traces(self) -> list[str]:
        """Return which traces are written."""
        return [name for name in self._trace_templates if name in self._enabled]

    def trace(
        self,
        name: str,  # noqa: ARG002 - for the types that have traces
        attr: TraceAttr | str = TraceAttr.ALL,  # noqa: ARG002
        block: int = 512,  # noqa: ARG002
        offset: int = 0,  # noqa: ARG002
    ) -> str | int | None:
        """Return what is asked of a trace; null, for types say how theirs are read: see `read_trace`."""
        return None

    @property
    def _attrs(self) -> Mapping[str, Attribute]:
        """The attributes by name, for the code of resource types: what is set there is set in this resource."""
        return OwnAttributes(self._templates, self._attribute, self._set_own)

    def _set_own(self, name: str, value: Any) -> Any:
        """Set an attribute whatever its flags say, for the code of resource types outside of hooks."""
        attribute = self._attribute(name)
        value = attribute.accepted(value, resource=self.name)
        note = attribute.as_noted(value, resource=self.name)
        if self._is_registered():
            # Told before it is so: what cannot be written down did not happen.
            self.ec._attribute_set(self._guid, name, note)  # noqa: SLF001
        self._own[name] = attribute.with_value(value)
        return value

    def _is_registered(self) -> bool:
        try:
            self.ec._seen(self._guid)  # noqa: SLF001
        except KeyError:  # while it is being made, and once it was taken out
            return False
        return True

    def _attribute(self, name: object) -> Attribute:
        found = (self._own.get(name) or self._templates.get(name)) if isinstance(name, str) else None
        if found is None:
            raise UnknownAttributeError(f"{self.name} has no attribute", name, self._templates)
        return found

    def _check_writable(self, attribute: Attribute, when: ResourceState | None = None) -> None:
        state = self.state if when is None else when
        refused = write_refusal(attribute, state, is_deployed=self.deployment_group is not None)
        if refused is not None:
            flag, reason = refused
            raise AttributeAccessError(attribute.name, self.name, flag.name or "", reason)

    def _check_trace(self, name: object) -> None:
        if not isinstance(name, str) or name not in self._trace_templates:
            raise UnknownTraceError(f"{self.name} has no trace", name, self._trace_templates)
