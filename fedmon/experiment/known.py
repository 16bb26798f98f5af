"""What is known of a resource: how far it is, since when, with whom; its experiment keeps that."""

from __future__ import annotations

import datetime
import weakref
from typing import Any

from fedmon.experiment import durations
from fedmon.experiment.conditions import MetricCondition
from fedmon.experiment.errors import ExperimentOverError
from fedmon.experiment.holder import Holder
from fedmon.experiment.protocol import Experiment
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.verbs import as_reason


class _TimeOf:
    """When a resource last came to a state, in UTC; null where it never did."""

    def __init__(self, state: ResourceState) -> None:
        self._state = state

    def __get__(self, rm: Known | None, owner: type[Known]) -> datetime.datetime | None:
        try:
            times = () if rm is None else rm._seen().times  # noqa: SLF001 - a part of that class
        except KeyError:
            return None
        found = next((t for state, t in times if state is self._state), None)
        return None if found is None else datetime.datetime.fromtimestamp(found, datetime.UTC)


class Known(Holder):
    """Reads what its experiment knows of it."""

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(guid)
        self._ec = weakref.ref(ec)
        self._reason = ""
        self._was_seen = False

    @property
    def ec(self) -> Experiment:
        """The experiment. Raises ExperimentOverError where it is no more."""
        found = self._ec()
        if found is None:
            raise ExperimentOverError(f"the experiment of {self.name} is no more")
        return found

    def is_of(self, ec: Experiment) -> bool:
        """Tell whether it belongs to an experiment."""
        return self._ec() is ec

    @property
    def state(self) -> ResourceState:
        """How far it is; NEW while it is being made, and RELEASED once it was taken out."""
        try:
            return self._seen().state
        except KeyError:
            return ResourceState.RELEASED if self._was_seen else ResourceState.NEW

    @property
    def connections(self) -> frozenset[int]:
        """The guids of what it is connected to."""
        try:
            return self._seen().connections
        except KeyError:
            return frozenset()

    @property
    def conditions(self) -> dict[ResourceAction, list[tuple[list[int], Any, str | None]]]:
        """Its conditions by action: each a group, what it asks of it, and for how long that must have been."""
        found: dict[ResourceAction, list[tuple[list[int], Any, str | None]]] = {}
        for action, each in self._seen().conditions:
            if isinstance(each, MetricCondition):
                entry: tuple[list[int], Any, str | None] = (list(each.group), each.metric, None)
            else:
                delay = durations.duration_text(each.delay_s) if each.delay_s else None
                entry = (list(each.group), each.state, delay)
            found.setdefault(action, []).append(entry)
        return found

    @property
    def deployment_group(self) -> int | None:
        """With whom it is deployed; null before it was asked to."""
        try:
            return self._seen().group
        except KeyError:
            return None

    @property
    def reschedule_delay(self) -> str:
        """After how long its verbs are to look again, where they look again."""
        return self._reschedule_delay

    @property
    def reason(self) -> str:
        """Why it failed: what was told to it, or else to the experiment; "" where nothing was."""
        try:
            return self._reason or self._seen().reason
        except (KeyError, ExperimentOverError):
            return self._reason

    @reason.setter
    def reason(self, reason: object) -> None:
        self._reason = as_reason(reason)

    def _seen(self) -> Resource:
        found = self.ec._seen(self._guid)  # noqa: SLF001 - for resources alone
        self._was_seen = True
        return found

    discover_time = _TimeOf(ResourceState.DISCOVERED)
    reserved_time = reserve_time = _TimeOf(ResourceState.RESERVED)
    provision_time = _TimeOf(ResourceState.PROVISIONED)
    ready_time = _TimeOf(ResourceState.READY)
    start_time = _TimeOf(ResourceState.STARTED)
    stop_time = _TimeOf(ResourceState.STOPPED)
    failed_time = _TimeOf(ResourceState.FAILED)
    release_time = _TimeOf(ResourceState.RELEASED)
