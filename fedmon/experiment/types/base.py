"""The base of the types of a federation: neighbours, callbacks, metrics, traces, and the end of remote work."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedmon.common.errors import FedmonError, StorageError
from fedmon.common.ids import NodeId
from fedmon.experiment.attributes import TraceAttr, read_trace, trace_path
from fedmon.experiment.conditions import is_text, number_of
from fedmon.experiment.durations import seconds
from fedmon.experiment.errors import (
    ExperimentError,
    ExperimentOverError,
    TraceNotReadableError,
    told,
)
from fedmon.experiment.events import Measured, WaitsFor
from fedmon.experiment.natures import needed
from fedmon.experiment.resource import Experiment, ResourceManager
from fedmon.experiment.states import ResourceState
from fedmon.researcher.asking.outcome import SILENT
from fedmon.researcher.roster import Node as SeenNode

if TYPE_CHECKING:
    from fedmon.researcher.asking.outcome import Outcomes
    from fedmon.researcher.federation import Federation
    from fedmon.researcher.session.callbacks import Subscription

ASK_TIMEOUT_S = 20.0
"""Timeout of the requests of resources, longer than at a terminal: a busy node may need it."""

_R = TypeVar("_R", bound=ResourceManager)


class ResourceFailedError(ExperimentError):
    """A resource cannot reach its goal; the message is its reason to be FAILED."""


def loss_of(other: ResourceManager) -> ResourceFailedError:
    """Return the error of a resource that needs another one, which failed or was released."""
    why = other.reason and f": {other.reason}"
    return ResourceFailedError(f"it needs {other.name}, which is {other.state.name}{why}")


def is_gone(node: SeenNode | None) -> bool:
    """Tell whether a node is away, as far as the roster knows."""
    return node is None or not node.is_online


class LinkedResource(ResourceManager):
    """A resource that tells its neighbours about each new state, and reacts to theirs.

    ``_partners`` are the types that it may be connected to (None: all), ``_once`` those of which it takes only one, and
    ``_watched`` the type whose moves have `look` called while it is STARTED. ``_reach`` is how many connections away
    its own moves are told, ``_listens_until`` the state that ends its callbacks.

    Callbacks of the federation take ``lock``; `neighbour_moved`, which neighbours call, does not.
    """

    _platform: ClassVar[str | None] = "fedmon"
    _partners: ClassVar[tuple[str, ...] | None] = None
    _once: ClassVar[tuple[str, ...]] = ()
    _watched: ClassVar[str] = ""
    _reach: ClassVar[int] = 1
    _listens_until: ClassVar[ResourceState] = ResourceState.FAILED

    def __init__(self, ec: Experiment, guid: int) -> None:
        super().__init__(ec, guid)
        self.lock = threading.RLock()
        self._subscriptions: list[Subscription] = []
        self._again = ""  # the verb that is called again when a neighbour moves
        self._silent_since = math.inf

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

    def listen(self, event: str, callback: Callable[[Any], object]) -> None:
        """Call back at each event of the federation until the resource is over."""
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

    def note(self, name: str, value: Any) -> None:
        """Set an attribute to a fact, even if the journal can no longer be written."""
        try:
            self._set_own(name, value)
        except StorageError:  # the experiment has failed with it, and writes nothing from then on
            self._set_own(name, value)

    def node_ids(self, name: str) -> list[NodeId]:
        """Return the node ids in an attribute, where commas separate them."""
        return [NodeId(node_id) for node_id in (self.get(name) or "").split(",") if node_id]

    def tell_metrics(
        self, guid: int, values: Mapping[str, float | None], *, source: str = "", nth: int | None = None
    ) -> None:
        """Report numbers of a resource to conditions: all of them or, if the process is killed meanwhile, none.

        ``source`` is the node they come from, because conditions count each node separately; ``nth`` numbers the
        reports of a source.
        """
        reports = [
            Measured(guid=guid, name=name, value=number_of(value, name), source=source, nth=nth)
            for name, value in values.items()
            if value is not None and is_text(name)
        ]
        if reports:
            self.ec.engine.note(*reports)

    # --- neighbours ---------------------------------------------------------------------------------------------------

    def valid_connection(self, guid: int) -> bool:
        """Tell whether it can be connected to another resource: of the right type, and not one too many."""
        other = self.ec.get_resource(guid)
        if self._partners is not None and not any(other.is_rm_instance(rtype) for rtype in self._partners):
            return False
        once = [rtype for rtype in self._once if other.is_rm_instance(rtype)]
        return not any(each.guid != guid for rtype in once for each in self.get_connected(rtype))

    def linked(self, kind: type[_R]) -> list[_R]:
        """Return its neighbours of one class."""
        return [each for each in self.get_connected() if isinstance(each, kind)]

    def around(self, steps: int) -> list[LinkedResource]:
        """Return the resources within a number of connections, the nearest first."""
        found: dict[LinkedResource, None] = {self: None}
        for _ in range(steps):
            found |= dict.fromkeys(far for near in list(found) for far in near.linked(LinkedResource))
        return list(found)[1:]

    def needs(self, rtype: str) -> list[LinkedResource]:
        """Return the resources of a type that its deploy waits for, as its own type declares."""
        found = needed(self._seen(), "deploy", self.ec.engine.state.resources)
        guids = dict.fromkeys(other.guid for need, other in found if need.of == rtype)
        return list(filter(None, map(self.controller.registry.find, guids)))

    def ready(self, rtype: str, at_least: int | None = None) -> list[LinkedResource] | None:
        """Return those resources of a type that it needs and that are READY or further; None while it waits for one.

        `do_deploy`, which then returns, is called again when a neighbour moves. With ``at_least``, that many suffice,
        and those that wait themselves are left out. Raises ResourceFailedError if a critical one failed, or all did.
        """
        self._again = "deploy"  # before the look, so no move in between is missed
        found = self.needs(rtype)
        lost = [each for each in found if each.state >= ResourceState.FAILED]
        ready = [each for each in found if ResourceState.READY <= each.state < ResourceState.FAILED]
        if lost and (len(lost) == len(found) or (at_least is None and any(each.get("critical") for each in lost))):
            raise loss_of(lost[0])
        waiting = [each for each in found if each.state < ResourceState.READY]
        if at_least is not None and len(ready) >= at_least:
            waiting = [each for each in waiting if not each.waits_for]
        if waiting:
            self.wait_for(f"{', '.join(each.name for each in waiting)} to be READY")
            return None
        self._again = ""
        return ready

    def do_deploy(self) -> None:
        """Be READY when the resources that its type needs are."""
        if all(self.ready(need.of) is not None for need in self._needs if need.verb == "deploy"):
            super().do_deploy()

    @property
    def waits_for(self) -> str:
        """The cause of its verb's wait after the hook has returned; "" if it does not wait."""
        return self._seen().waits_for

    def wait_for(self, what: str) -> None:
        """Set ``waits_for`` and log it."""
        if what != self.waits_for:
            self.ec.engine.note(WaitsFor(guid=self.guid, what=what))
            self.info(f"waits for {what}")

    def waits_for_silent(self, outcomes: Outcomes[Any]) -> bool:
        """Tell whether the silence of some nodes that it needs is the only problem; `do_deploy` then returns.

        It is called again when one of them is heard or FAILED; if all are said to be online, a second later, until one
        has been silent for longer than its ``grace``.
        """
        living = {node.get("nodeId"): node for node in self.needs("fedmon::Node") if node.state < ResourceState.FAILED}
        failed = outcomes.failed
        if not failed or any(one.status not in SILENT or node_id not in living for node_id, one in failed.items()):
            self._silent_since = math.inf
            return False
        self._again = "deploy"  # before the look, as above
        seen, now = self.federation.nodes(), time.monotonic()
        if all(is_gone(seen.get(NodeId(node_id))) for node_id in failed):
            self._silent_since = math.inf
        else:
            self._silent_since = min(now, self._silent_since)
            if now - self._silent_since > max(seconds(living[node_id].get("grace")) for node_id in failed):
                return False
            self.later(lambda: self.neighbour_moved(self), after="1s")
        self.wait_for(f"node {', '.join(failed)} to answer")
        return True

    def neighbour_moved(self, other: LinkedResource) -> None:
        """React to a neighbour's new state; must not block."""
        verb, self._again = self._again, ""
        if verb and self.state < ResourceState.FAILED:
            self.later(lambda: self._call(verb))
        elif self._watched and self.state is ResourceState.STARTED and other.is_rm_instance(self._watched):
            self.later(self.look)

    def _call(self, verb: str) -> None:
        with contextlib.suppress(Exception):  # the failure of a verb is noted
            getattr(self, verb)()

    def look(self) -> None:
        """Look at the watched neighbours; for types."""

    def do_reconnect(self, verb: str | None) -> None:
        """Look at the watched neighbours, or call the interrupted verb again."""
        if verb is None and self._watched and self.state is ResourceState.STARTED:
            self.look()
        else:
            super().do_reconnect(verb)

    def _set_state(self, state: ResourceState, reason: str = "") -> None:
        super()._set_state(state, reason)
        if state >= self._listens_until:
            self.deafen()
        self._tell_around()

    def _tell_around(self) -> None:
        for other in self.around(self._reach):
            other.neighbour_moved(self)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_work(self) -> None:
        """End its work elsewhere; for types."""

    def do_fail(self) -> None:
        """Set FAILED, and end its work elsewhere."""
        super().do_fail()
        self._end_quietly()

    def do_release(self) -> None:
        """End its work elsewhere, have the traces collected, and set RELEASED."""
        self._end_quietly()
        self.finish_release()

    def finish_release(self) -> None:
        """Have the traces collected, now that they are complete, and set RELEASED."""
        super()._tell_release()
        self.set_released()

    def _tell_release(self) -> None:
        """Do nothing yet: `finish_release` does."""

    def _end_quietly(self) -> None:
        try:
            self.end_work()
        except FedmonError as error:
            self.warning(f"its work elsewhere could not be ended: {error}")

    # --- traces -------------------------------------------------------------------------------------------------------

    def trace(
        self, name: str, attr: TraceAttr | str = TraceAttr.ALL, block: int = 512, offset: int = 0
    ) -> str | int | None:
        """Return a trace, or its path or size. Raises UnknownTraceError, a KeyError, and TraceNotReadableError."""
        self._check_trace(name)
        try:
            path = self.written(name)
        except FedmonError as error:
            raise TraceNotReadableError(f"trace {name} of {self.name} cannot be read: {error}") from error
        return read_trace(path, attr, block, offset)

    def written(self, name: str) -> Path:
        """Return the file of a trace, brought up to date; for types."""
        return trace_path(self.folder, name)
