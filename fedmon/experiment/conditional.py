"""What a resource waits for, and what is done with it as soon as it waits no longer."""

from __future__ import annotations

from typing import Any

from fedmon.experiment.known import Known
from fedmon.experiment.protocol import Guids
from fedmon.experiment.states import ResourceAction, ResourceState


class Conditional(Known):
    """Hands on to its experiment what it is to wait for."""

    def register_condition(
        self, action: ResourceAction, group: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Have an action wait until a group is in a state, and has been for a time. Raises InvalidConditionError."""
        self.ec.register_condition(self._guid, action, group, state, time)

    def unregister_condition(self, group: Guids, action: ResourceAction | None = None) -> None:
        """Have an action, or every one, wait for a group no longer."""
        self.ec.unregister_condition(self._guid, group, action)

    def set_with_conditions(
        self, name: str, value: Any, group: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Have an attribute set when a group is in a state and this resource is STARTED."""
        self.ec.set_with_conditions(name, value, self._guid, group, state, time)

    def deploy_with_conditions(self) -> None:
        """Have it deployed as soon as its conditions hold; nothing where it is READY or further."""
        self.ec._action_wanted(self._guid, ResourceAction.DEPLOY)  # noqa: SLF001 - for resources alone

    def start_with_conditions(self) -> None:
        """Have it started as soon as it is READY and its conditions hold; also again, once it stopped."""
        self.ec._action_wanted(self._guid, ResourceAction.START)  # noqa: SLF001

    def stop_with_conditions(self) -> None:
        """Have it stopped as soon as it is STARTED and its conditions hold."""
        self.ec._action_wanted(self._guid, ResourceAction.STOP)  # noqa: SLF001
