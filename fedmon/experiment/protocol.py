"""What a resource needs of the experiment that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from fedmon.experiment.events import Verb
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import ResourceAction, ResourceState

if TYPE_CHECKING:
    from fedmon.experiment.resource import ResourceManager

Guids = int | Iterable[int]


class Experiment(Protocol):
    """A controller, as resources see it."""

    @property
    def run_dir(self) -> str:
        """The folder of this run."""
        ...

    @property
    def resources(self) -> list[int]:
        """The guids of all resources."""
        ...

    def _became(self, guid: int, state: ResourceState, reason: str = "") -> None:
        """Note to which state a resource came; when this returns, it has it."""
        ...

    def _returned(self, guid: int, state: ResourceState) -> None:
        """Note that a resource which had failed is back in a state."""
        ...

    def _verb_failed(self, guid: int, verb: Verb, reason: str) -> None:
        """Note that a verb of a resource raised: it is tried again, or the resource fails."""
        ...

    def _failure_judged(self) -> None:
        """Note how bad the failure manager finds it."""
        ...

    def _seen(self, guid: int) -> Resource:
        """Return what is known of a resource. Raises KeyError."""
        ...

    def _attribute_set(self, guid: int, name: str, value: Any) -> None:
        """Note a value that an attribute is about to have; credentials come masked."""
        ...

    def _trace_enabled(self, guid: int, name: str) -> None:
        """Note a trace that is about to be kept."""
        ...

    def _action_wanted(self, guid: int, action: ResourceAction) -> None:
        """Have an action of a resource done as soon as its conditions hold."""
        ...

    def get_resource(self, guid: int) -> ResourceManager:
        """Return a resource. Raises UnknownGuidError."""
        ...

    def register_connection(self, guid1: int, guid2: int) -> None:
        """Connect two resources."""
        ...

    def unregister_connection(self, guid1: int, guid2: int) -> None:
        """Take two resources apart."""
        ...

    def register_condition(
        self, guids1: Guids, action: ResourceAction, guids2: Guids, state: ResourceState, time: str | None = None
    ) -> Any:
        """Have an action of resources wait for others."""
        ...

    def unregister_condition(self, guids1: Guids, guids2: Guids, action: ResourceAction | None = None) -> None:
        """Have resources wait for others no longer."""
        ...

    def set_with_conditions(
        self, name: str, value: Any, guids1: Guids, guids2: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Have an attribute of resources set when others are in a state."""
        ...

    def schedule(self, date: str | None, callback: Callable[[], Any], track: bool = False) -> int:  # noqa: FBT001, FBT002 - NEPI's
        """Have something called at a time."""
        ...
