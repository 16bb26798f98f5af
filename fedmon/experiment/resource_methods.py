"""The methods of a controller about resources, their connections and their conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmon.experiment.conditions import AnyCondition, Metric
from fedmon.experiment.delegate import Delegate, Guids
from fedmon.experiment.events import Retry, Verb
from fedmon.experiment.resource import ResourceManager
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.templates import Template
from fedmon.experiment.type_names import nothing_of
from fedmon.experiment.wiring import guids_of


class ResourceMethods(Delegate):
    """What an experiment consists of."""

    @property
    def resources(self) -> list[int]:
        """The guids of all resources."""
        return self._book.guids

    def register_resource(
        self,
        rtype: str,
        guid: int | None = None,
        *,
        autoDeploy: bool = False,  # noqa: N803 - NEPI's name
        connectedTo: Guids | None = None,  # noqa: N803 - NEPI's name
        timeouts: Mapping[Verb, float] | None = None,
        retry: Mapping[Verb, Retry] | None = None,
        **attributes: Any,
    ) -> int:
        """Make a resource and return its guid; further keywords set attributes.

        Raises UnknownTypeError, DuplicateGuidError, InvalidAttributeValueError, and ExperimentAbortedError where it
        can be deployed no more; nothing is registered then.
        """
        if autoDeploy:
            self._life.check_deployable()
        else:
            self._life.check_open()
        others = () if connectedTo is None else guids_of(connectedTo)
        for other in others:
            self._book.get(other)
        number = self._book.register(rtype, guid, attributes=attributes, timeouts=timeouts, retry=retry)
        try:
            for other in others:
                self._wiring.connect(number, other)
            if autoDeploy:
                self._life.deploy(number, wait_all_ready=True, group=None)
        except BaseException:
            self._book.discard([number])
            raise
        return number

    def remove_resource(self, guid: int) -> None:
        """Take a resource out."""
        self._book.remove([guid])

    def get_resource(self, guid: int) -> ResourceManager:
        """Return a resource. Raises UnknownGuidError."""
        return self._book.get(guid)

    def get_resources_by_type(self, rtype: str) -> list[ResourceManager]:
        """Return the resources of exactly a type; `filter_resources` gives guids. Raises UnknownTypeError."""
        found = [resource for resource in self._book.all() if resource.get_rtype() == rtype]
        return found or nothing_of(rtype)

    def filter_resources(self, rtype: str | type[Template]) -> list[int]:
        """Return the guids of the resources of a type and of types derived from it. Raises UnknownTypeError."""
        found = self._book.where(lambda resource: resource.is_rm_instance(rtype))
        return found or nothing_of(rtype)

    def register_connection(self, guid1: int, guid2: int) -> None:
        """Connect two resources. Raises InvalidConnectionError naming the side that does not take it."""
        self._wiring.connect(guid1, guid2)

    def unregister_connection(self, guid1: int, guid2: int) -> None:
        """Take a connection away."""
        self._wiring.disconnect(guid1, guid2)

    def register_condition(
        self,
        guids1: Guids,
        action: ResourceAction,
        guids2: Guids,
        state: ResourceState | None = None,
        time: str | None = None,
        *,
        metric: Metric | None = None,
        at_least: int | None = None,
        timeout: str | None = None,
    ) -> AnyCondition:
        """Have an action of ``guids1`` wait for ``guids2`` to be at a state since ``time``, or for a metric of theirs.

        Raises InvalidConditionError, InvalidTimeError, UnknownGuidError.
        """
        return self._wiring.condition(
            guids1, action, guids2, state, time=time, metric=metric, at_least=at_least, timeout=timeout
        )

    def unregister_condition(self, guids1: Guids, guids2: Guids, action: ResourceAction | None = None) -> None:
        """Have ``guids1`` wait for ``guids2`` no longer."""
        self._wiring.free(guids1, guids2, action)
