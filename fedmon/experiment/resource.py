"""The resource: what it is connected to, how far it is, and its verbs with the hooks that types override."""

from __future__ import annotations

import contextlib
import datetime
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fedmon.experiment import durations
from fedmon.experiment.conditions import MetricCondition
from fedmon.experiment.errors import ExperimentOverError, InvalidStateError
from fedmon.experiment.events import Verb
from fedmon.experiment.holder import Holder
from fedmon.experiment.hook_calls import HookCall, is_within
from fedmon.experiment.protocol import Experiment, Guids
from fedmon.experiment.situation import Resource
from fedmon.experiment.states import ResourceAction, ResourceState
from fedmon.experiment.templates import Template, clsinit, clsinit_copy
from fedmon.experiment.verbs import as_reason, failtrap, states_for, told

__all__ = ["Experiment", "ResourceManager", "clsinit", "clsinit_copy", "failtrap"]


def nothing_of(rtype: object) -> list[Any]:
    """Return that there is no resource of a type. Raises UnknownTypeError where nobody registered such a type."""
    # Types are made of resources, and so is what asks here.
    from fedmon.experiment.factory import ResourceFactory

    known = ResourceFactory.resource_types().values()
    # A name that only types derived from it have is a type as well.
    is_known = isinstance(rtype, type) or any(
        vars(each).get("_rtype") == rtype for rclass in known for each in rclass.__mro__
    )
    if not is_known:
        ResourceFactory.get_resource_type(rtype)  # type: ignore[arg-type] # which says so for what is no name
    return []


class _TimeOf:
    """When a resource last came to a state, in UTC; null where it never did."""

    def __init__(self, state: ResourceState) -> None:
        self._state = state

    def __get__(self, rm: ResourceManager | None, owner: type[ResourceManager]) -> datetime.datetime | None:
        try:
            times = () if rm is None else rm._seen().times  # noqa: SLF001 - a part of that class
        except KeyError:
            return None
        found = next((t for state, t in times if state is self._state), None)
        return None if found is None else datetime.datetime.fromtimestamp(found, datetime.UTC)


Moment = datetime.datetime | float | None


def _checked(state: object) -> ResourceState:
    for known in ResourceState:
        if known == state and not isinstance(state, bool):
            return known
    raise InvalidStateError(f"{state!r:.80} is no state: take one of {', '.join(ResourceState.__members__)}")


CALLED: tuple[Verb, ...] = ("deploy", "start", "stop", "release", "fail")
_SETTERS: Mapping[str, str] = {
    "discover": "set_discovered",
    "reserve": "set_reserved",
    "provision": "set_provisioned",
    "deploy": "set_ready",
    "start": "set_started",
    "stop": "set_stopped",
    "fail": "set_failed",
    "release": "set_released",
}


@clsinit
class ResourceManager(Holder):
    """A resource of an experiment.

    Types override the ``do_`` hooks and end them with the parent's, which says that the state was reached; a hook that
    returns without it leaves the resource as it is, and may have scheduled its verb again. A `do_release` that has
    scheduled nothing then counts as done. One verb runs at a time. A hook that does not end holds back neither `fail`,
    which waits for nobody, nor `release`, which waits for
    ``_release_patience_s`` seconds. All methods are safe from any thread.
    """

    _release_patience_s: ClassVar[float] = 5.0
    __is_in_release = False  # mangled, for types have flags of much the same name

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

    @classmethod
    def overrides(cls, verb: str) -> bool:
        """Tell whether the type does anything of its own when a verb is called; else the verb only sets the state."""
        read, base = _BASE[verb]
        return bool(read(cls) != base)

    @classmethod
    def plain_verbs(cls) -> tuple[Verb, ...]:
        """Return those of the verbs that an experiment calls that do no more than set the state."""
        return tuple([verb for verb in CALLED if not cls.overrides(verb)])

    # --- what it is connected to --------------------------------------------------------------------------------------

    def register_connection(self, guid: int) -> None:
        """Connect it to another, if both agree. Raises InvalidConnectionError, UnknownGuidError."""
        self.ec.register_connection(self._guid, guid)

    def unregister_connection(self, guid: int) -> None:
        """Take it apart from another. Raises UnknownGuidError."""
        self.ec.unregister_connection(self._guid, guid)

    def valid_connection(self, guid: int) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether it takes a connection to another; for types to say."""
        return True

    def do_connect(self, guid: int) -> None:
        """Do what being connected takes; for types."""

    def do_disconnect(self, guid: int) -> None:
        """Undo what being connected took; for types."""

    def get_connected(self, rtype: str | type[Template] | None = None) -> list[ResourceManager]:
        """Return what it is connected to, by guid: all, or those of a type and of the types derived from it.

        Raises UnknownTypeError for a type that nobody registered.
        """
        connected = [self.ec.get_resource(guid) for guid in sorted(self.connections)]
        found = [each for each in connected if rtype is None or each.is_rm_instance(rtype)]
        return found if found or rtype is None else nothing_of(rtype)

    def is_rm_instance(self, rtype: str | type[Template]) -> bool:
        """Tell whether it is of a type, or of one derived from it."""
        if isinstance(rtype, type):
            return isinstance(self, rtype)
        return any(vars(each).get("_rtype") == rtype for each in type(self).__mro__)

    # --- verbs --------------------------------------------------------------------------------------------------------

    @failtrap
    def discover(self) -> None:
        """Find what the resource stands for."""
        self._run("discover", self.do_discover)

    @failtrap
    def reserve(self) -> None:
        """Reserve it."""
        self._run("reserve", self.do_reserve)

    @failtrap
    def provision(self) -> None:
        """Provide it."""
        self._run("provision", self.do_provision)

    @failtrap
    def configure(self) -> None:
        """Configure it; that is no state."""
        self._run("configure", self.do_configure)

    @failtrap
    def deploy(self) -> None:
        """Make it ready."""
        self._run("deploy", self.do_deploy)

    @failtrap
    def start(self) -> None:
        """Start it; also again, once it stopped."""
        self._run("start", self.do_start)

    @failtrap
    def stop(self) -> None:
        """Stop it."""
        self._run("stop", self.do_stop)

    def fail(self, reason: str = "") -> None:
        """Have it fail, now, even while another verb runs; its hook clears up when it is FAILED already."""
        self.reason = as_reason(reason) or self.reason
        has_turn = self.turn.take(timeout_s=0, even_if_over=True)
        try:
            if self.state < ResourceState.FAILED:
                # First the state, for others wait for it, and nobody knows how long the hook takes.
                self.end(ResourceState.FAILED)
                self._finish(self.do_fail, "fail")
        finally:
            if has_turn:
                self.turn.give()

    def release(self) -> None:
        """Give back what it holds. A hook that raises is logged, and the resource is RELEASED all the same."""
        self.turn.dismiss()
        has_turn = self.turn.take(timeout_s=self._release_patience_s, even_if_over=True)
        if not has_turn:
            self.warning(f"is released while a verb of it still runs, after {self._release_patience_s:g} s")
        try:
            # One that is being released already, as by a hook that asks for just that, is not begun again.
            if self.state is not ResourceState.RELEASED and not self.__is_in_release:
                self.__is_in_release = True
                try:
                    with HookCall(self, "release") as call:
                        is_well = self._finish(self._give_back, "release")
                    if not (is_well and call.has_scheduled):  # nobody is left who would say it
                        self.end(ResourceState.RELEASED)
                finally:
                    self.__is_in_release = False
        finally:
            if has_turn:
                self.turn.give()

    @failtrap
    def reconnect(self, verb: str | None) -> None:
        """Take up again what a process that died had begun; ``verb`` is the one that was under way."""
        if self.state >= ResourceState.FAILED and verb != "release":
            return
        has_turn = self.turn.take(even_if_over=True)
        try:
            with HookCall(self, "reconnect"):
                self.do_reconnect(verb)
        finally:
            if has_turn:
                self.turn.give()

    def _run(self, verb: str, hook: Callable[[], Any]) -> None:
        if not self._may(verb) or not self.turn.take(is_over=lambda: self.state >= ResourceState.FAILED):
            return
        try:
            if is_within(self, verb):
                self.debug(f"{verb} does nothing within itself")
            elif self._may(verb):  # it may have moved on while we waited
                with HookCall(self, verb):
                    hook()
        finally:
            self.turn.give()

    def _may(self, verb: str) -> bool:
        state = self.state
        if state in states_for(verb):
            return True
        # Who called too late, when it is all over, did nothing wrong.
        say = self.debug if state >= ResourceState.FAILED else self.error
        say(f"{verb} does nothing in state {state.name}")
        return False

    def _finish(self, hook: Callable[[], Any], verb: str) -> bool:
        """Run the hook of a last verb; false where it raised."""
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - a type's own code; the resource ends all the same
            self.warning(f"{verb} raised {told(error)}")
            return False
        except BaseException:
            self.end(ResourceState.FAILED if verb == "fail" else ResourceState.RELEASED)
            raise
        return True

    def _give_back(self) -> None:
        for guid in sorted(self.connections):
            with contextlib.suppress(KeyError):  # taken out just now
                self.ec.get_resource(guid).neighbour_releases(self)
        self.do_release()

    def neighbour_releases(self, other: ResourceManager) -> None:
        """Take what it needs of a neighbour whose release is about to begin; for types."""

    def end_at_once(self) -> None:
        """End what runs, for nobody waits for its release any longer; for types, which must not block here."""

    # --- hooks: types override them -----------------------------------------------------------------------------------

    def do_discover(self) -> None:
        """Find it."""
        self.set_discovered()

    def do_reserve(self) -> None:
        """Reserve it."""
        self.set_reserved()

    def do_provision(self) -> None:
        """Provide it."""
        self.set_provisioned()

    def do_configure(self) -> None:
        """Configure it."""

    def do_deploy(self) -> None:
        """Make it ready."""
        self.set_ready()

    def do_start(self) -> None:
        """Start it."""
        self.set_started()

    def do_stop(self) -> None:
        """Stop it."""
        self.set_stopped()

    def do_release(self) -> None:
        """Give back what it holds."""
        self.set_released()

    def do_fail(self) -> None:
        """Clear up after a failure; the resource is FAILED already."""
        self.set_failed()

    def do_reconnect(self, verb: str | None) -> None:
        """Call a verb anew that was under way; types whose work goes on elsewhere ask there how it stands."""
        if verb is not None:
            getattr(self, verb)()


def _methods_of(verb: str) -> tuple[Callable[[type[ResourceManager]], Any], Any]:
    # A type with traces has code of its own at its release: they are read before it.
    names = (verb, f"do_{verb}", _SETTERS.get(verb, verb), *(("trace",) if verb == "release" else ()))
    read = operator.attrgetter(*names)
    return read, read(ResourceManager)


# How to read what a verb calls, by verb, and those methods that do nothing but set the state.
_BASE = {verb: _methods_of(verb) for verb in (*_SETTERS, "configure")}
