"""An experiment without files, of types that need not be registered by their test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedmon.experiment import ExperimentController, FailureManager, ResourceFactory, ResourceManager
from fedmon.experiment.situation import State
from tests.support.waiting import wait_until


class SmallExperiment(ExperimentController):
    """Keeps no journal."""

    def __init__(self, fm: FailureManager | None = None, *, run_dir: str | None = None) -> None:
        super().__init__("small", run_dir, fm=fm, journal=False)

    def add(self, rclass: type[ResourceManager], **options: Any) -> Any:
        """Register a type and a resource of it, and return that."""
        ResourceFactory.register_type(rclass)
        return self.get_resource(self.register_resource(rclass.get_rtype(), **options))

    def condition(self, *arguments: Any) -> None:
        """Register a condition."""
        self.register_condition(*arguments)

    def work(self) -> None:
        """Wait until nothing is left to do."""
        wait_until(lambda: not self.engine.hooks.is_busy, timeout_s=10)

    @property
    def machine(self) -> State:
        """What the machine knows."""
        return self.snapshot

    def states(self) -> list[str]:
        """Return the names of the states of all."""
        return [self.get_resource(guid).state.name for guid in self.resources]


def names(resources: Iterable[ResourceManager]) -> list[int]:
    """Return the guids of resources."""
    return [rm.guid for rm in resources]
