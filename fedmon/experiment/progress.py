"""What hooks of resources say was reached."""

from __future__ import annotations

import datetime

from fedmon.experiment.conditional import Conditional
from fedmon.experiment.errors import InvalidStateError
from fedmon.experiment.states import ResourceState
from fedmon.experiment.verbs import as_reason

Moment = datetime.datetime | float | None


class Progress(Conditional):
    """Tells its experiment to which states it came.

    NEPI's ``time`` is taken everywhere and not looked at: a state is reached when that is said.
    """

    def set_discovered(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is DISCOVERED."""
        self._set_state(ResourceState.DISCOVERED)

    def set_reserved(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is RESERVED."""
        self._set_state(ResourceState.RESERVED)

    def set_provisioned(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is PROVISIONED."""
        self._set_state(ResourceState.PROVISIONED)

    def set_ready(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is READY."""
        self._set_state(ResourceState.READY)

    def set_started(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is STARTED."""
        self._set_state(ResourceState.STARTED)

    def set_stopped(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is STOPPED; it may do so by itself, when it came to its end."""
        self._set_state(ResourceState.STOPPED)

    def set_failed(self, reason: str | Moment = "", time: Moment = None) -> None:  # noqa: ARG002
        """Say that it FAILED, and why; a time in the place of that, as in NEPI, is none."""
        if not isinstance(reason, datetime.datetime | int | float):
            self.reason = as_reason(reason) or self.reason
        self._set_state(ResourceState.FAILED)

    def set_released(self, time: Moment = None) -> None:  # noqa: ARG002
        """Say that it is RELEASED."""
        self._set_state(ResourceState.RELEASED)

    def set_state(self, state: ResourceState, state_time_attr: str = "") -> None:  # noqa: ARG002 - NEPI's
        """Say to which state it came. Raises InvalidStateError."""
        self._set_state(_checked(state))

    def set_state_time(self, state: ResourceState, state_time_attr: str = "", time: Moment = None) -> None:  # noqa: ARG002
        """Say to which state it came. Raises InvalidStateError."""
        self._set_state(_checked(state))

    def end(self, state: ResourceState) -> None:
        """Have it FAILED or RELEASED, whatever its type does about that."""
        if self.state < state:
            self._set_state(state)

    def _set_state(self, state: ResourceState) -> None:
        reason = self.reason if state is ResourceState.FAILED else ""
        self.ec._became(self._guid, state, reason)  # noqa: SLF001 - for resources alone


def _checked(state: object) -> ResourceState:
    for known in ResourceState:
        if known == state and not isinstance(state, bool):
            return known
    raise InvalidStateError(f"{state!r:.80} is no state: take one of {', '.join(ResourceState.__members__)}")
