"""What the types of a federation have in common: they wait for what they are connected to without a thread."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from fedmon.common.errors import FedmonError, StorageError
from fedmon.experiment.errors import (
    ExperimentOverError,
    InvalidConditionError,
    TraceNotReadableError,
    UnknownGuidError,
    told,
)
from fedmon.experiment.hooks import perform
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.states import ResourceState
from fedmon.experiment.traces import TraceAttr, read_trace, trace_path
from fedmon.experiment.types.errors import NeighbourLostError

if TYPE_CHECKING:
    from fedmon.experiment.controller import ExperimentController
    from fedmon.experiment.plan_problems import Problem
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.session.callbacks import Subscription

ASK_TIMEOUT_S = 20.0
"""For answers that a resource cannot do without: nobody sits before it, and a busy node may take its time."""

_L = TypeVar("_L", bound="LinkedResource")


class LinkedResource(ResourceManager):
    """Tells those that it is connected to when it moves on, and looks again when they do.

    ``_partners`` are the types that it takes connections to, null for all; ``_once`` those of which it takes one only.
    ``waits_for`` says for what a verb of it that has returned waits, "" for nothing.
    What the federation calls back runs under ``lock``; `neighbour_moved`, which others call, takes none.
    """

    _platform: ClassVar[str | None] = "fedmon"
    _partners: ClassVar[tuple[str, ...] | None] = None
    _once: ClassVar[tuple[str, ...]] = ()

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.lock = threading.RLock()
        self._subscriptions: list[Subscription] = []
        self._deploy_again = False
        self.waits_for = ""

    # --- the experiment and its federation ----------------------------------------------------------------------------

    @property
    def controller(self) -> ExperimentController:
        """The controller of the experiment."""
        return cast("ExperimentController", self.ec)

    @property
    def federation(self) -> Federation:
        """The federation of the experiment. Raises ConnectionFailedError."""
        return self.controller.federation

    @property
    def folder(self) -> Path:
        """The folder of its own in that of the run; nothing is made yet."""
        return Path(self.ec.run_dir) / str(self.guid)

    def listen(self, event: str, callback: Callable[[Any], None]) -> None:
        """Have a method called at each event of the federation, until the resource is over."""
        self._subscriptions.append(self.federation.on(event, callback))

    def deafen(self) -> None:
        """End what `listen` began."""
        ended, self._subscriptions = self._subscriptions, []
        for subscription in ended:
            subscription.remove()

    def later(self, work: Callable[[], Any], after: str | None = None) -> None:
        """Have something done in a thread of the experiment; the resource fails where it raises."""
        try:
            self.ec.schedule(after, functools.partial(self._trapped, work))
        except ExperimentOverError:  # nobody is left to whom it would matter
            return

    def _trapped(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except ExperimentOverError:
            return
        except Exception as error:  # noqa: BLE001 - no verb runs that could fail in its place
            if self.state < ResourceState.FAILED:
                self.fail(told(error))

    def fixed_path(self, name: str) -> str:
        """Return the path that an attribute holds, which holds it in full from then on, wherever it is asked next."""
        found = str(Path(self.get(name)).expanduser().absolute())
        if found != self.get(name):
            self._set_own(name, found)
        return found

    def _note_own(self, name: str, value: Any) -> None:
        """Set an attribute to what is so, which comes to the machine even where the value cannot be written down."""
        try:
            self._set_own(name, value)
        except StorageError:  # the experiment failed with it, and said so; it writes nothing down any more
            self._set_own(name, value)

    def tell_metrics(
        self,
        guid: int,
        values: dict[str, float],
        *,
        source: str = "",
        nth: int | None = None,
        only_asked: bool = False,
    ) -> None:
        """Hand values of a resource to conditions, those that are registered later, too, unless ``only_asked``.

        ``source`` is the node they are from, for a resource that has several: conditions count for each by itself.
        ``nth`` is which values of the source they are, where it counts them.
        """
        resource = self.controller.snapshot.resources.get(guid)
        asked = frozenset() if resource is None else {condition.metric.name for condition in resource.asked}
        for name in sorted(asked & values.keys()) if only_asked else values:
            # It was taken out just now, or the name is one that no condition can ask for.
            with contextlib.suppress(UnknownGuidError, InvalidConditionError):
                self.controller.measured(guid, name, values[name], source, nth=nth)

    # --- what it is connected to --------------------------------------------------------------------------------------

    def valid_connection(self, guid: int) -> bool:
        """Tell whether it takes a connection to another: of the right type, and not one too many."""
        other = self.ec.get_resource(guid)
        if self._partners is not None and not any(other.is_rm_instance(rtype) for rtype in self._partners):
            return False
        once = [rtype for rtype in self._once if other.is_rm_instance(rtype)]
        return not any(each.guid != guid for rtype in once for each in self.get_connected(rtype))

    def linked(self, kind: type[_L]) -> list[_L]:
        """Return what it is connected to, of one type."""
        found: list[_L] = []
        for guid in sorted(self.connections):
            with contextlib.suppress(UnknownGuidError):  # it was taken out just now
                other = self.ec.get_resource(guid)
                found += [other] if isinstance(other, kind) else []
        return found

    def ready(self, kind: type[_L]) -> list[_L] | None:
        """Return those of a type that it is connected to and that live; null while one is not READY.

        `do_deploy`, which is to return then, is called again when one moves. Raises NeighbourLostError where one failed
        that is critical, or all did.
        """
        self._deploy_again = True  # before the look: what moves in between calls for another
        found = self.linked(kind)
        lost = [each for each in found if each.state >= ResourceState.FAILED]
        if lost and (len(lost) == len(found) or any(each.get("critical") for each in lost)):
            raise NeighbourLostError(self.name, lost[0].name, lost[0].state.name, lost[0].reason)
        waiting = [each for each in found if each.state < ResourceState.READY]
        if waiting:
            self.wait_for(f"{', '.join(each.name for each in waiting)} to be READY")
            return None
        self._deploy_again = False
        return [each for each in found if each not in lost]

    def wait_for(self, what: str) -> None:
        """Say for what it waits."""
        if what != self.waits_for:
            self.waits_for = what
            self.info(f"waits for {what}")

    def neighbour_moved(self, other: LinkedResource) -> None:  # noqa: ARG002 - for subclasses
        """Hear that one that it is connected to came to another state; must not block."""
        if self._deploy_again and self.state < ResourceState.READY:
            self._deploy_again = False
            self.later(lambda: perform(self, "deploy"))

    def _set_state(self, state: ResourceState) -> None:
        super()._set_state(state)
        if state >= ResourceState.READY:
            self.waits_for = ""
        if state >= ResourceState.FAILED:
            self.deafen()
        for other in self.linked(LinkedResource):
            other.neighbour_moved(self)

    def missing(self) -> list[Problem]:
        """Return what of it is not there on this machine; it asks nobody."""
        return []

    def foreseen(self) -> list[Problem]:
        """Return what stands in its way as the federation is now; it asks nodes, so that may take a moment."""
        return []

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_work(self) -> None:
        """End what it has running elsewhere; for types."""

    def do_fail(self) -> None:
        """Say that it failed, and end what it has running."""
        super().do_fail()
        self._quietly(self.end_work)

    def do_release(self) -> None:
        """End what it has running, have its traces collected while they are there, and say that it is RELEASED."""
        self._quietly(self.end_work)
        self.finish_release()

    def finish_release(self) -> None:
        """Do what is left when nothing of it runs any more."""
        from fedmon.experiment.types.collector import Collector

        for collector in self.linked(Collector):
            collector.collect(self)
        self.set_released()

    def _quietly(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FedmonError as error:
            self.warning(f"could not end what it has running: {error}")

    # --- traces -------------------------------------------------------------------------------------------------------

    def trace(
        self, name: str, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0
    ) -> str | int | None:
        """Return what is asked of a trace. Raises UnknownTraceError, a KeyError, and TraceNotReadableError."""
        self._check_trace(name)
        try:
            path = self.written(name)
        except TraceNotReadableError:
            raise
        except FedmonError as error:
            raise TraceNotReadableError(f"trace {name} of {self.name} cannot be had: {error}") from error
        return read_trace(path, attr, block, offset)

    def written(self, name: str) -> Path:
        """Return the file of a trace, brought up to date; for types."""
        return trace_path(self.folder, name)
