"""What a resource needs of the experiment that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fedmon.researcher.experiment.events import Verb
from fedmon.researcher.experiment.situation import Resource
from fedmon.researcher.experiment.states import ResourceState

if TYPE_CHECKING:
    from fedmon.researcher.experiment.resource import ResourceManager


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

    def _verb_failed(self, guid: int, verb: Verb, reason: str) -> None:
        """Note that a verb of a resource raised: it is tried again, or the resource fails."""
        ...

    def _seen(self, guid: int) -> Resource:
        """Return what is known of a resource. Raises KeyError."""
        ...

    def _attribute_set(self, guid: int, name: str, value: Any) -> None:
        """Note a value that an attribute is about to have; credentials come masked."""
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

    def schedule(self, date: str | None, callback: Callable[[], Any], track: bool = False) -> int:  # noqa: FBT001, FBT002 - NEPI's
        """Have something called at a time."""
        ...
