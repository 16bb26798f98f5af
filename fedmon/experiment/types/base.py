"""The base of the types of a federation: neighbours, callbacks, traces and the end of what runs elsewhere."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.ids import NodeId
from fedmon.experiment.attributes import Attribute, Trace, TraceAttr, read_trace, trace_path
from fedmon.experiment.durations import seconds
from fedmon.experiment.engine import perform
from fedmon.experiment.errors import (
    ExperimentError,
    ExperimentOverError,
    InvalidConditionError,
    TraceNotReadableError,
    UnknownGuidError,
    told,
)
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.states import ResourceState
from fedmon.researcher.asking.outcome import OutcomeStatus
from fedmon.researcher.roster import Node as SeenNode
from fedmon.researcher.roster import NodeState

if TYPE_CHECKING:
    from fedmon.experiment.check.problems import Problem
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.session.callbacks import Subscription

ASK_TIMEOUT_S = 20.0
"""For requests that a resource depends on: no person waits for them, and a busy node may take its time."""
_SILENT = (OutcomeStatus.OFFLINE, OutcomeStatus.STALE, OutcomeStatus.TIMED_OUT)
_GONE = (NodeState.OFFLINE, NodeState.STALE)

_L = TypeVar("_L", bound="LinkedResource")


class ResourceFailedError(ExperimentError):
    """A resource cannot do what it is for; the message is its reason to be FAILED."""

    exit_code = 1


class MissingPartError(ExperimentError):
    """A resource lacks an attribute or a connection that it cannot do without."""

    def __init__(self, who: str, what: str, advice: str) -> None:
        super().__init__(f"{who} has no {what}: {advice}")


def loss_of(who: str, other: ResourceManager) -> ResourceFailedError:
    """Return the error of a resource that cannot go on without another, which failed or was released."""
    why = other.reason and f": {other.reason}"
    return ResourceFailedError(f"{who} needs {other.name}, which is {other.state.name}{why}")


def is_gone(node: SeenNode | None) -> bool:
    """Tell whether a node is away, as far as the roster knows."""
    return node is None or node.state in _GONE


class LinkedResource(ResourceManager):
    """A resource that tells its neighbours when it moves, and looks again when they do.

    ``_partners`` are the types that it can be connected to (None: all), ``_once`` those of which it takes only one.
    ``waits_for`` says in words why a verb whose hook has returned is not done ("" if nothing is awaited), and
    ``has_whole_traces`` that nothing more is written. Callbacks of the federation run under ``lock``;
    `neighbour_moved`, which neighbours call, takes no lock.
    """

    _platform: ClassVar[str | None] = "fedmon"
    _partners: ClassVar[tuple[str, ...] | None] = None
    _once: ClassVar[tuple[str, ...]] = ()
    own_attributes: ClassVar[tuple[Attribute, ...]] = ()
    own_traces: ClassVar[tuple[Trace, ...]] = ()

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.lock = threading.RLock()
        self.waits_for = ""
        self.has_whole_traces = False
        self._subscriptions: list[Subscription] = []
        self._deploy_again = False
        self._silent: frozenset[NodeId] = frozenset()
        self._silent_since: float | None = None

    @classmethod
    def _register_attributes(cls) -> None:
        for attribute in cls.own_attributes:
            cls._register_attribute(attribute)

    @classmethod
    def _register_traces(cls) -> None:
        for trace in cls.own_traces:
            cls._register_trace(trace)

    # --- the experiment and its federation ----------------------------------------------------------------------------

    @property
    def federation(self) -> Federation:
        """The federation of the experiment. Raises ConnectionFailedError."""
        found: Federation = self.controller.federation
        return found

    @property
    def folder(self) -> Path:
        """The resource's folder within that of the run; it may not exist yet."""
        return Path(self.ec.run_dir) / str(self.guid)

    def listen(self, event: str, callback: Callable[[Any], None]) -> None:
        """Call back at each event of the federation until the resource is FAILED or RELEASED."""
        self._subscriptions.append(self.federation.on(event, callback))

    def deafen(self) -> None:
        """Remove all callbacks of `listen`."""
        removed, self._subscriptions = self._subscriptions, []
        for subscription in removed:
            subscription.remove()

    def later(self, work: Callable[[], Any], after: str | None = None) -> None:
        """Run a function in a thread of the experiment; the resource fails if it raises."""
        with contextlib.suppress(ExperimentOverError):
            self.ec.schedule(after, functools.partial(self._trapped, work))

    def _trapped(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except ExperimentOverError:
            return
        except Exception as error:  # noqa: BLE001 - no verb runs that could fail in its place
            if self.state < ResourceState.FAILED:
                self.fail(told(error))

    def fixed_path(self, name: str) -> str:
        """Return the path in an attribute, made absolute there for good."""
        found = str(Path(self.get(name)).expanduser().absolute())
        if found != self.get(name):
            self._set_own(name, found)
        return found

    def note(self, name: str, value: Any) -> None:
        """Set an attribute to a fact, even if the journal cannot be written any more."""
        try:
            self._set_own(name, value)
        except StorageError:  # the experiment has failed with it, said so, and writes nothing any more
            self._set_own(name, value)

    def tell_metrics(
        self, guid: int, values: dict[str, float], *, source: str = "", nth: int | None = None, only_asked: bool = False
    ) -> None:
        """Report numbers of a resource to conditions; with ``only_asked`` only those that a condition waits for now.

        ``source`` is the node that they come from: conditions count each node by itself. ``nth`` numbers the reports of
        a source.
        """
        resource = self.controller.snapshot.resources.get(guid)
        asked = frozenset() if resource is None else {condition.metric.name for condition in resource.asked}
        for name in sorted(asked & values.keys()) if only_asked else values:
            # The resource may just have been taken out, and no condition can ask for some names.
            with contextlib.suppress(UnknownGuidError, InvalidConditionError):
                self.controller.measured(guid, name, values[name], source, nth=nth)

    # --- neighbours ---------------------------------------------------------------------------------------------------

    def valid_connection(self, guid: int) -> bool:
        """Tell whether it can be connected to another: of the right type, and not one too many."""
        other = self.ec.get_resource(guid)
        if self._partners is not None and not any(other.is_rm_instance(rtype) for rtype in self._partners):
            return False
        once = [rtype for rtype in self._once if other.is_rm_instance(rtype)]
        return not any(each.guid != guid for rtype in once for each in self.get_connected(rtype))

    def linked(self, kind: type[_L]) -> list[_L]:
        """Return its neighbours of one class."""
        found: list[_L] = []
        for guid in sorted(self.connections):
            with contextlib.suppress(UnknownGuidError):  # taken out just now
                other = self.ec.get_resource(guid)
                found += [other] if isinstance(other, kind) else []
        return found

    def ready(self, found: list[_L], at_least: int | None = None) -> list[_L] | None:
        """Return which of these resources are READY or further; None while it has to wait for one.

        `do_deploy`, which then returns, is called again when a neighbour moves. With ``at_least`` so many suffice, and
        those that wait themselves are left out. Raises ResourceFailedError if a critical one failed, or all did.
        """
        self._deploy_again = True  # before the look, so that no move in between is missed
        lost = [each for each in found if each.state >= ResourceState.FAILED]
        ready = [each for each in found if ResourceState.READY <= each.state < ResourceState.FAILED]
        if lost and (len(lost) == len(found) or (at_least is None and any(each.get("critical") for each in lost))):
            raise loss_of(self.name, lost[0])
        waiting = [each for each in found if each.state < ResourceState.READY]
        if at_least is not None and len(ready) >= at_least:
            waiting = [each for each in waiting if not each.waits_for]
        if waiting:
            self.wait_for(f"{', '.join(each.name for each in waiting)} to be READY")
            return None
        self._deploy_again = False
        return ready

    def wait_for(self, what: str) -> None:
        """Say what it waits for."""
        if what != self.waits_for:
            self.waits_for = what
            self.info(f"waits for {what}")

    def waits_for_silent(self, outcomes: Outcomes[Any], nodes: Iterable[LinkedResource]) -> bool:
        """Tell whether the only trouble is that some of these nodes are silent; `do_deploy` then returns.

        It is called again when one of them is heard or FAILED, and each second while one that counts as online does not
        answer, for at most its ``grace``.
        """
        living = {node.get("nodeId"): node for node in nodes if node.state < ResourceState.FAILED}
        failed = outcomes.failed
        if not failed or any(one.status not in _SILENT or node_id not in living for node_id, one in failed.items()):
            self._silent_since = None
            return False
        self._deploy_again = True  # before the look, as above
        self._silent = frozenset(map(NodeId, failed))
        seen, now = self.federation.nodes(), time.monotonic()
        if all(is_gone(seen.get(node_id)) for node_id in self._silent):
            self._silent_since = None
        else:
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since > max(seconds(living[node_id].get("grace")) for node_id in failed):
                return False
            self.later(lambda: self.neighbour_moved(self), after="1s")
        self.wait_for(f"node {', '.join(failed)} to answer")
        return True

    def heard(self, node: SeenNode) -> None:
        """Deploy again if a node that was silent is heard; for `listen`."""
        if node.node_id in self._silent and not is_gone(node) and node.last_seen is not None:
            self._silent = frozenset()
            self.neighbour_moved(self)

    def neighbour_moved(self, other: LinkedResource) -> None:  # noqa: ARG002 - for subclasses
        """React to a neighbour's new state; must not block."""
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
        """Return problems that this machine alone can see."""
        return []

    def foreseen(self) -> list[Problem]:
        """Return problems of the federation as it is now; asks nodes, which may take a moment."""
        return []

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_work(self) -> None:
        """End what runs elsewhere; for types."""

    def do_fail(self) -> None:
        """Set FAILED, and end what runs elsewhere."""
        super().do_fail()
        self._end_quietly()

    def do_release(self) -> None:
        """End what runs elsewhere, have the traces collected, and set RELEASED."""
        self._end_quietly()
        self.finish_release()

    def finish_release(self) -> None:
        """Have the traces collected, now that they are complete, and set RELEASED."""
        self.has_whole_traces = True
        for guid in sorted(self.connections):
            with contextlib.suppress(UnknownGuidError):  # taken out just now
                self.ec.get_resource(guid).neighbour_releases(self)
        self.set_released()

    def _end_quietly(self) -> None:
        try:
            self.end_work()
        except FedmonError as error:
            self.warning(f"could not end what runs elsewhere: {error}")

    # --- traces -------------------------------------------------------------------------------------------------------

    def trace(
        self, name: str, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0
    ) -> str | int | None:
        """Return a trace, or its path or size. Raises UnknownTraceError, a KeyError, and TraceNotReadableError."""
        self._check_trace(name)
        try:
            path = self.written(name)
        except TraceNotReadableError:
            raise
        except FedmonError as error:
            raise TraceNotReadableError(f"trace {name} of {self.name} cannot be read: {error}") from error
        return read_trace(path, attr, block, offset)

    def written(self, name: str) -> Path:
        """Return the file of a trace, brought up to date; for types."""
        return trace_path(self.folder, name)
