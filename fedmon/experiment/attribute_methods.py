"""The methods of a controller about attributes, traces, states and times of resources."""

from __future__ import annotations

import datetime
from typing import Any

from fedmon.experiment.attributes import Attribute
from fedmon.experiment.delegate import Delegate, Guids
from fedmon.experiment.states import ResourceState, ResourceState2str
from fedmon.experiment.traces import Trace, TraceAttr
from fedmon.experiment.types import ResourceFactory


class AttributeMethods(Delegate):
    """What is known of resources, and set."""

    def get_attributes(self, guid: int) -> list[Attribute]:
        """Return the attributes of a resource."""
        return self._book.get(guid).get_attributes_of_instance()

    def get_attribute(self, guid: int, name: str) -> Attribute:
        """Return one attribute of a resource."""
        return self._book.get(guid).get_attribute_of_instance(name)

    def get(self, guid: int, name: str) -> Any:
        """Return the value of an attribute."""
        return self._book.get(guid).get(name)

    def set(self, guid: int, name: str, value: Any) -> None:
        """Set an attribute. Raises InvalidAttributeValueError."""
        self._book.get(guid).set(name, value)

    def get_global(self, rtype: str, name: str) -> Any:
        """Return a global attribute of a type."""
        return ResourceFactory.get_resource_type(rtype).get_global(name)

    def set_global(self, rtype: str, name: str, value: Any) -> None:
        """Set a global attribute of a type."""
        ResourceFactory.get_resource_type(rtype).set_global(name, value)

    def set_with_conditions(
        self, name: str, value: Any, guids1: Guids, guids2: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Set an attribute of ``guids1`` when ``guids2`` are at a state and they themselves STARTED."""
        self._wiring.set_when(guids1, name, value, guids2, state, time)

    def enable_trace(self, guid: int, name: str) -> None:
        """Have a trace kept."""
        self._book.get(guid).enable_trace(name)

    def trace_enabled(self, guid: int, name: str) -> bool:
        """Tell whether a trace is kept."""
        return self._book.get(guid).trace_enabled(name)

    def get_traces(self, guid: int) -> list[Trace]:
        """Return the traces of a resource."""
        return self._book.get(guid).get_traces_of_instance()

    def trace(self, guid: int, name: str, attr: TraceAttr = TraceAttr.ALL, block: int = 512, offset: int = 0) -> Any:
        """Return what a trace holds, a part of it, or where it lies."""
        return self._book.get(guid).trace(name, attr, block, offset)

    def state(self, guid: int, hr: bool = False) -> ResourceState | str:  # noqa: FBT001, FBT002 - NEPI's signature
        """Return the state of a resource; its name where ``hr`` is true."""
        found = self._book.get(guid).state
        return ResourceState2str[found] if hr else found

    def get_discover_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was DISCOVERED."""
        found: datetime.datetime | None = self._book.get(guid).discover_time
        return found

    def get_reserved_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was RESERVED."""
        found: datetime.datetime | None = self._book.get(guid).reserved_time
        return found

    def get_provision_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was PROVISIONED."""
        found: datetime.datetime | None = self._book.get(guid).provision_time
        return found

    def get_ready_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was READY."""
        found: datetime.datetime | None = self._book.get(guid).ready_time
        return found

    def get_start_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was STARTED."""
        found: datetime.datetime | None = self._book.get(guid).start_time
        return found

    def get_stop_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was STOPPED."""
        found: datetime.datetime | None = self._book.get(guid).stop_time
        return found

    def get_failed_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource FAILED."""
        found: datetime.datetime | None = self._book.get(guid).failed_time
        return found

    def get_release_time(self, guid: int) -> datetime.datetime | None:
        """Return when a resource was RELEASED."""
        found: datetime.datetime | None = self._book.get(guid).release_time
        return found
