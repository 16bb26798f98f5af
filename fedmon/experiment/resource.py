"""The resource: attributes, traces, connections, state, and its verbs with their hooks."""

from __future__ import annotations

import contextlib
import copy
import datetime
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args

from fedmon.common.errors import FedmonError
from fedmon.experiment import durations
from fedmon.experiment.attributes import MASK, Attribute, Flags, Trace, TraceAttr, Types
from fedmon.experiment.conditions import MetricCondition, state_of
from fedmon.experiment.engine import Engine, Hook, failtrap, here
from fedmon.experiment.errors import (
    AttributeAccessError,
    ExperimentError,
    ExperimentOverError,
    InvalidAttributeValueError,
    InvalidConditionError,
    InvalidStateError,
    UnknownAttributeError,
    UnknownGuidError,
    UnknownTraceError,
    as_reason,
    told,
)
from fedmon.experiment.events import (
    ActionWanted,
    AttributeSet,
    Became,
    Retry,
    TraceEnabled,
    Verb,
    VerbBegan,
    VerbFailed,
    VerbReturned,
)
from fedmon.experiment.situation import MAY, Guids, Need, Resource
from fedmon.experiment.states import ResourceAction, ResourceState

_T = TypeVar("_T", bound="type[ResourceManager]")
_VERBS: frozenset[str] = frozenset(get_args(Verb))
_UNREGISTERED = Resource(guid=0, rtype="")
Moment = datetime.datetime | float | None
logger = logging.getLogger(__name__)

__all__ = ["Experiment", "ResourceManager", "clsinit", "clsinit_copy", "failtrap"]


class Experiment(Protocol):
    """The controller as resources see it; naming its class here would be a circle."""

    engine: Engine
    run_dir: str

    @property
    def resources(self) -> list[int]:
        """The guids of all resources."""

    def get_resource(self, guid: int) -> ResourceManager:
        """Return a resource."""

    def schedule(self, date: str | None, callback: Callable[[], Any]) -> int:
        """Call a function later."""


def clsinit(cls: _T) -> _T:
    """Give a class its own attributes and traces, without those of its parent."""
    cls._clsinit()
    return cls


def clsinit_copy(cls: _T) -> _T:
    """Give a class the attributes and traces of its parent, and its own, as a class without a decorator has them."""
    cls._clsinit_copy()
    return cls


def _time_of(state: ResourceState) -> property:
    def time(self: ResourceManager) -> datetime.datetime | None:
        found = next((t for known, t in self._seen().times if known is state), None)
        return None if found is None else datetime.datetime.fromtimestamp(found, datetime.UTC)

    return property(time, doc=f"When the resource last became {state.name}, in UTC; None if it never did.")


def _set_by(state: ResourceState) -> Callable[..., None]:
    def set_to(self: ResourceManager, time: Moment = None) -> None:  # noqa: ARG001 - NEPI's
        self._set_state(state)

    set_to.__doc__ = f"Set the state {state.name}, as of now: ``time`` is ignored."
    return set_to


def _want(action: ResourceAction) -> Callable[[Any], None]:
    def with_conditions(self: ResourceManager) -> None:
        self.ec.engine.post(ActionWanted(guid=self.guid, action=action))

    with_conditions.__doc__ = f"{action.name.capitalize()} the resource as soon as its conditions hold."
    return with_conditions


def _verb(name: str) -> Callable[[Any], None]:
    def verb(self: ResourceManager) -> None:
        self._run(name)

    verb.__name__ = name
    verb.__doc__ = f"Call `do_{name}`. Raises InvalidStateError in a wrong state, and the errors of the hook."
    return verb


def _hook(setter: str) -> Callable[[Any], None]:
    def hook(self: ResourceManager) -> None:
        getattr(self, setter)()

    hook.__doc__ = f"Call `{setter}`; types override this, and call it last."
    return hook


def _log_at(level: int) -> Callable[..., None]:
    def log(self: ResourceManager, text: str, out: str | None = None, err: str | None = None) -> None:
        if self.logger.isEnabledFor(level):
            parts = (text, out and f"stdout: {out}", err and f"stderr: {err}")
            self.logger.log(level, "%s", self.log_message(" ".join(part for part in parts if part)))

    log.__doc__ = f"Log a text as {logging.getLevelName(level)}; ``out`` and ``err`` are the output of a command."
    return log


SETTERS: dict[Verb, str] = {
    "deploy": "set_ready", "start": "set_started", "stop": "set_stopped", "fail": "set_failed",
    "release": "set_released",
}  # fmt: skip
_EVERY = (
    Attribute("critical", "Whether the experiment fails when the resource does.", Types.Bool, Flags.Design,
              default=True),
    Attribute("hardRelease", "Whether a release takes the resource out of the experiment.", Types.Bool, Flags.Design,
              default=False),
)  # fmt: skip


class ResourceManager:
    """A resource of an experiment.

    Types override the ``do_`` hooks and end them with the parent's, which sets the state. A hook that returns without
    that leaves the state alone, and may have scheduled its verb again; a `do_release` that scheduled nothing counts as
    done. One verb runs at a time, until its hook returns; only `fail` does not wait for it, and `release` waits for
    ``_release_patience_s`` seconds. Hooks of the resource ignore the flags of attributes. Safe from any thread.
    """

    _rtype: ClassVar[str] = "Resource"
    _help: ClassVar[str | None] = None
    _platform: ClassVar[str | None] = None
    _reschedule_delay: ClassVar[str] = "0.5s"
    type_timeouts: ClassVar[Mapping[Verb, float]] = {}
    """Timeouts of verbs, in seconds."""
    type_retry: ClassVar[Mapping[Verb, Retry]] = {}
    """Retries of verbs that failed."""
    _attributes: ClassVar[dict[str, Attribute]] = {each.name: each for each in _EVERY}
    """By name; a class that registers none shares those of its parent."""
    _traces: ClassVar[dict[str, Trace]] = {}
    own_attributes: ClassVar[tuple[Attribute, ...]] = ()
    own_traces: ClassVar[tuple[Trace, ...]] = ()
    _release_patience_s: ClassVar[float] = 5.0
    asks_federation: ClassVar[bool] = False
    """Whether it needs a federation."""
    # Declarations for plans and explanations; see `natures`.
    _needs: ClassVar[tuple[Need, ...]] = ()
    """Connected resources that its verbs wait for without a condition."""
    _ends_itself: ClassVar[bool] = False
    """Whether it always reaches STOPPED without a stop; code for its start may do that without this."""
    _required_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that must be set before its deploy."""
    _required_connections: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Connections that must exist before its deploy: one to a type of each."""
    _measures_when_ready: ClassVar[bool] = False
    """Whether its metrics may come before it is STARTED."""

    # --- the class --------------------------------------------------------------------------------------------------

    @classmethod
    def _clsinit(cls) -> None:
        """Begin with the attributes of every resource, and register those of this class."""
        cls._attributes, cls._traces = {each.name: each for each in _EVERY}, {}
        cls._register_attributes()
        cls._register_traces()

    @classmethod
    def _clsinit_copy(cls) -> None:
        """Begin with those of the parent, and register those of this class."""
        parent = next(vars(each) for each in cls.__mro__[1:] if "_attributes" in vars(each))
        cls._attributes, cls._traces = dict(parent["_attributes"]), dict(parent["_traces"])
        cls._register_attributes()
        cls._register_traces()

    def __init_subclass__(cls) -> None:
        """Register the attributes and traces of a subclass that declares some."""
        super().__init_subclass__()
        if not {"own_attributes", "own_traces", "_register_attributes", "_register_traces"}.isdisjoint(vars(cls)):
            cls._clsinit_copy()

    @classmethod
    def _register_attributes(cls) -> None:
        """Register the attributes of this class, by default ``own_attributes``; for subclasses."""
        for attribute in cls.own_attributes:
            cls._register_attribute(attribute)

    @classmethod
    def _register_traces(cls) -> None:
        """Register the traces of this class, by default ``own_traces``; for subclasses."""
        for trace in cls.own_traces:
            cls._register_trace(trace)

    @classmethod
    def _register_attribute(cls, attribute: Attribute) -> None:
        """Add an attribute, in place of one of the same name."""
        cls._attributes[attribute.name] = attribute

    @classmethod
    def _remove_attribute(cls, name: str) -> None:
        """Remove an attribute. Raises UnknownAttributeError."""
        del cls._attributes[cls._template(name).name]

    @classmethod
    def _register_trace(cls, trace: Trace) -> None:
        """Add a trace, in place of one of the same name."""
        cls._traces[trace.name] = trace

    @classmethod
    def _remove_trace(cls, name: str) -> None:
        """Remove a trace. Raises UnknownTraceError."""
        if name not in cls._traces:
            raise UnknownTraceError(f"type {cls._rtype} has no trace", name, cls._traces)
        del cls._traces[name]

    @classmethod
    def get_rtype(cls) -> str:
        """Return the name of the type."""
        return cls._rtype

    @classmethod
    def get_help(cls) -> str | None:
        """Return the description of the type."""
        return cls._help

    @classmethod
    def get_platform(cls) -> str | None:
        """Return the platform of the type."""
        return cls._platform

    @classmethod
    def get_attributes(cls) -> list[Attribute]:
        """Return copies of the attributes; those that may not be read have the value None."""
        return [each.listed() for each in cls._attributes.values()]

    @classmethod
    def get_attribute(cls, name: str) -> Attribute:
        """Return a copy of an attribute. Raises UnknownAttributeError."""
        return cls._template(name).shown(f"type {cls._rtype}")

    @classmethod
    def get_traces(cls) -> list[Trace]:
        """Return copies of the traces."""
        return [copy.copy(each) for each in cls._traces.values()]

    @classmethod
    def has_attribute(cls, name: str) -> bool:
        """Tell whether the type has an attribute."""
        return name in cls._attributes

    @classmethod
    def get_global(cls, name: str) -> Any:
        """Return the value of a global attribute of the type.

        Raises UnknownAttributeError, and AttributeAccessError for an attribute that is not Global, or NoRead.
        """
        return cls._global(name).shown(f"type {cls._rtype}").value

    @classmethod
    def set_global(cls, name: str, value: Any) -> Any:
        """Set a global attribute for all resources that did not set it; return the value stored.

        Raises UnknownAttributeError, InvalidAttributeValueError, and AttributeAccessError for an attribute that is not
        Global, or that only the type sets.
        """
        attribute, who = cls._global(name), f"type {cls._rtype}"
        attribute.check_writable(who, ResourceState.NEW, is_deployed=False)
        value = attribute.accepted(value, resource=who)
        attribute.as_noted(value, resource=who)
        cls._attributes[name] = attribute.with_value(value)
        return value

    @classmethod
    def _template(cls, name: str) -> Attribute:
        found = cls._attributes.get(name)
        if found is None:
            raise UnknownAttributeError(f"type {cls._rtype} has no attribute", name, cls._attributes)
        return found

    @classmethod
    def _global(cls, name: str) -> Attribute:
        found = cls._template(name)
        if not found.has_flag(Flags.Global):
            raise AttributeAccessError(name, f"type {cls._rtype}", "Global", "is not one of the whole type")
        return found

    @classmethod
    def overrides(cls, verb: Verb) -> bool:
        """Tell whether the type has code for a verb; without, the verb only sets the state."""
        names = (verb, f"do_{verb}", SETTERS[verb])
        return any(getattr(cls, name) is not getattr(ResourceManager, name) for name in names)

    # --- the resource -----------------------------------------------------------------------------------------------

    def __init__(self, ec: Experiment, guid: int) -> None:
        self._guid, self._ec = guid, weakref.ref(ec)
        self.is_registered = self.__is_releasing = False
        self.registered_as = ""
        self.__is_cleared = False  # by `do_fail`
        self.__turn, self.__assigning = threading.RLock(), threading.Lock()
        self.__running: Hook | None = None
        self.assigned = deque[tuple[str, Any]]()
        self._own: dict[str, Attribute] = {}
        self._enabled = frozenset(each.name for each in self._traces.values() if each.enabled)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def guid(self) -> int:
        """The number of the resource."""
        return self._guid

    @property
    def name(self) -> str:
        """The name of the resource in messages."""
        return f"resource {self._guid} ({self.registered_as or self._rtype})"

    @property
    def ec(self) -> Experiment:
        """The experiment. Raises ExperimentOverError if it was deleted."""
        found = self._ec()
        if found is None:
            raise ExperimentOverError(f"the experiment of {self.name} was deleted")
        return found

    @property
    def controller(self) -> Any:
        """The experiment with all methods of `ExperimentController`."""
        return self.ec

    @property
    def state(self) -> ResourceState:
        """The state; NEW until it is registered, RELEASED after it was removed."""
        seen = self._seen()
        return ResourceState.RELEASED if self.is_registered and seen is _UNREGISTERED else seen.state

    @property
    def connections(self) -> frozenset[int]:
        """The guids of connected resources."""
        return self._seen().connections

    @property
    def conditions(self) -> dict[ResourceAction, list[tuple[list[int], Any, str | None]]]:
        """Its conditions by action: each a group, the state or metric asked for, and a delay."""
        found: dict[ResourceAction, list[tuple[list[int], Any, str | None]]] = {}
        for action, each in self._seen().conditions:
            if isinstance(each, MetricCondition):
                asked: tuple[Any, str | None] = (each.metric, None)
            else:
                asked = (each.state, durations.duration_text(each.delay_s) if each.delay_s else None)
            found.setdefault(action, []).append((list(each.group), *asked))
        return found

    @property
    def deployment_group(self) -> int | None:
        """The group that it is deployed with; None before its deployment was asked for."""
        return self._seen().group

    @property
    def reschedule_delay(self) -> str:
        """The delay after which its verbs check again."""
        return self._reschedule_delay

    @property
    def reason(self) -> str:
        """Why it failed; "" if unknown."""
        return self._seen().reason

    def _seen(self) -> Resource:
        """Return it as the experiment knows it; _UNREGISTERED before it is registered and after it was removed."""
        return self.ec.engine.state.resources.get(self._guid, _UNREGISTERED)

    discover_time = _time_of(ResourceState.DISCOVERED)
    reserved_time = reserve_time = _time_of(ResourceState.RESERVED)
    provision_time = _time_of(ResourceState.PROVISIONED)
    ready_time = _time_of(ResourceState.READY)
    start_time = _time_of(ResourceState.STARTED)
    stop_time = _time_of(ResourceState.STOPPED)
    failed_time = _time_of(ResourceState.FAILED)
    release_time = _time_of(ResourceState.RELEASED)

    def register_condition(
        self, action: ResourceAction, group: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Delay an action until a group is in a state, and has been for a time. Raises InvalidConditionError."""
        self.controller.register_condition(self._guid, action, group, state, time)

    def unregister_condition(self, group: Guids, action: ResourceAction | None = None) -> None:
        """Remove a group from the conditions of an action; None: of all actions."""
        self.controller.unregister_condition(self._guid, group, action)

    def set_with_conditions(
        self, name: str, value: Any, group: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Set an attribute when a group is in a state and this resource is STARTED."""
        self.controller.set_with_conditions(name, value, self._guid, group, state, time)

    deploy_with_conditions = _want(ResourceAction.DEPLOY)
    start_with_conditions = _want(ResourceAction.START)
    stop_with_conditions = _want(ResourceAction.STOP)

    set_discovered = _set_by(ResourceState.DISCOVERED)
    set_reserved = _set_by(ResourceState.RESERVED)
    set_provisioned = _set_by(ResourceState.PROVISIONED)
    set_ready = _set_by(ResourceState.READY)
    set_started = _set_by(ResourceState.STARTED)
    set_stopped = _set_by(ResourceState.STOPPED)
    set_released = _set_by(ResourceState.RELEASED)

    def set_failed(self, reason: str | Moment = "", time: Moment = None) -> None:  # noqa: ARG002
        """Set the state FAILED, and the reason; a time in place of the reason, as in NEPI, is ignored."""
        is_time = isinstance(reason, datetime.datetime | int | float)
        self._set_state(ResourceState.FAILED, "" if is_time else as_reason(reason))

    def set_state(self, state: ResourceState, state_time_attr: str = "") -> None:  # noqa: ARG002 - NEPI's
        """Set the state. Raises InvalidStateError for an unknown one."""
        try:
            self._set_state(state_of(state))
        except InvalidConditionError as error:
            raise InvalidStateError(str(error)) from None

    def set_state_time(self, state: ResourceState, state_time_attr: str = "", time: Moment = None) -> None:  # noqa: ARG002
        """Set the state, as of now. Raises InvalidStateError for an unknown one."""
        self.set_state(state)

    def _set_state(self, state: ResourceState, reason: str = "") -> None:
        running = next((hook for hook in here.hooks if hook.rm is self), None)
        if running is not None and running.is_abandoned:
            self.debug(f"ignored {state.name} of a hook that was abandoned")
        elif not (state >= ResourceState.FAILED and self.state is state):
            self.ec.engine.note(Became(guids=(self._guid,), state=state, reason=reason))

    # --- connections --------------------------------------------------------------------------------------------------

    def register_connection(self, guid: int) -> None:
        """Connect it to another resource, if both agree. Raises InvalidConnectionError, UnknownGuidError."""
        self.controller.register_connection(self._guid, guid)

    def unregister_connection(self, guid: int) -> None:
        """Disconnect it from another resource. Raises UnknownGuidError."""
        self.controller.unregister_connection(self._guid, guid)

    def valid_connection(self, guid: int) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether it can be connected to another; for types."""
        return True

    def do_connect(self, guid: int) -> None:
        """Set up a new connection; for types. If it raises, the two are disconnected."""

    def do_disconnect(self, guid: int) -> None:
        """Undo a connection; for types."""

    def neighbour_releases(self, other: ResourceManager) -> None:
        """Read traces of a connected resource for the last time, before it is RELEASED; for types."""

    def _tell_release(self) -> None:
        for other in self.get_connected():
            try:
                other.neighbour_releases(self)
            except Exception as error:  # noqa: BLE001 - a type's code; this one is released all the same
                self.warning(f"the release of a resource raised in {other.name}: {told(error)}")

    def get_connected(self, rtype: str | type[ResourceManager] | None = None) -> list[ResourceManager]:
        """Return the connected resources by guid: all, or those of a type and of types derived from it."""
        connected = list[ResourceManager]()
        for guid in sorted(self.connections):
            with contextlib.suppress(UnknownGuidError):  # removed just now
                connected.append(self.ec.get_resource(guid))
        return [each for each in connected if rtype is None or each.is_rm_instance(rtype)]

    def is_rm_instance(self, rtype: str | type[ResourceManager]) -> bool:
        """Tell whether it is of a type, or of one derived from it."""
        if isinstance(rtype, type):
            return isinstance(self, rtype)
        return any(vars(each).get("_rtype") == rtype for each in type(self).__mro__)

    # --- verbs --------------------------------------------------------------------------------------------------------

    discover, reserve, provision, configure = map(_verb, ("discover", "reserve", "provision", "configure"))
    deploy, start, stop = map(_verb, ("deploy", "start", "stop"))

    def fail(self, reason: str = "") -> None:
        """Set FAILED at once, even while another verb runs, and then call `do_fail`, once."""
        if self.state < ResourceState.FAILED:
            # Others wait for the state, and the hook may take long.
            ResourceManager._set_state(self, ResourceState.FAILED, as_reason(reason))
        if self.state is ResourceState.FAILED and not self.__is_cleared:
            self.__is_cleared = True
            try:
                with Hook(self, "fail"):
                    self.do_fail()
            except Exception as error:  # noqa: BLE001 - a type's code; the resource has failed all the same
                self.__is_cleared = False
                self.warning(f"fail raised {told(error)}")

    def release(self) -> None:
        """Give back all that it holds; if the hook raises, that is logged, and the resource is RELEASED."""
        if here.is_in(self, "release"):
            return
        turn = self.__turn
        has_turn = turn.acquire(timeout=self._release_patience_s)
        try:
            if self.state is ResourceState.RELEASED or (self.__is_releasing and not has_turn):
                return
            if not has_turn:
                self.warning(f"is released while a verb of it still runs, after {self._release_patience_s:g} s")
            self.__is_releasing = True
            try:
                self._release()
            finally:
                self.__is_releasing = False
        finally:
            if has_turn:
                turn.release()

    def _release(self) -> None:
        is_done = True
        try:
            self._tell_release()
            with Hook(self, "release") as hook:
                self.do_release()
            is_done = not hook.has_scheduled
        except Exception as error:  # noqa: BLE001 - a type's code; the resource ends all the same
            self.warning(f"release raised {told(error)}")
        finally:
            if is_done and self.state is not ResourceState.RELEASED:
                self._set_state(ResourceState.RELEASED)

    def reconnect(self, verb: str | None) -> None:
        """Continue after the death of another process; ``verb`` is the one that was running."""
        if self.state < ResourceState.FAILED or verb == "release":
            self.do_reconnect(verb)

    def _run(self, verb: str) -> None:
        if here.is_in(self, verb):
            self.debug(f"ignored {verb} within itself")
        elif here.is_in(self):  # a part of the running verb, or that verb itself, called by the experiment
            self._check_may(verb)
            if verb == "deploy" and (text := next(self.missing_parts(), "")):
                raise ExperimentError(f"{self.name} {text}")
            with Hook(self, verb):
                getattr(self, f"do_{verb}")()
        else:
            with self.__turn:
                self._check_may(verb)
                seen = self._seen()
                if verb in ("deploy", "start", "stop") and seen.calling != verb:
                    if seen.calling is not None:
                        raise InvalidStateError(f"{verb} of {self.name} does nothing: its {seen.calling} is under way")
                    self.ec.engine.note(VerbBegan(guid=self._guid, verb=cast("Verb", verb)))
                error = self._outermost(verb, lambda: self._run(verb))
            if error is not None:
                raise error

    def _outermost(self, verb: str, call: Callable[[], object]) -> BaseException | None:
        """Call the code of a verb, note its end, and return its exception."""
        error: BaseException | None = None
        hook = self.__running = Hook(self, "")
        try:
            with hook:
                call()
        except BaseException as raised:  # noqa: BLE001 - any exception of a type's code fails the verb
            error = raised
        if self.__running is hook:
            self.__running = None
        # Noted before the turn of another verb, which must not find this one under way.
        if hook.is_abandoned:
            self.debug(f"{verb} ended after it was abandoned")
        elif error is not None:
            self.trap(verb, error)
        elif verb in _VERBS:
            self.ec.engine.note(VerbReturned(guid=self._guid, verb=cast("Verb", verb), scheduled=hook.has_scheduled))
        return error

    def trap(self, verb: str, error: BaseException) -> None:
        """Retry a verb that raised, or fail; also for a method that is no hook, see `failtrap`."""
        here.reported = error
        place = None if isinstance(error, FedmonError) else error
        logger.error("%s of %s failed: %s", verb, self.name, told(error), exc_info=place)
        if verb == "release":
            self._set_state(ResourceState.RELEASED)
        elif verb in _VERBS:
            self.ec.engine.note(VerbFailed(guid=self._guid, verb=cast("Verb", verb), reason=told(error)))
        else:
            self.fail(f"{verb} failed: {told(error)}")

    def run_verb(self, verb: str, reason: str) -> None:
        """Call a verb for the experiment, and note its end."""
        if verb in ("fail", "release"):
            self.fail(reason) if verb == "fail" else self.release()
            return
        with self.__turn:
            seen = self._seen()
            if seen.calling == verb and not seen.returned:  # else called in another way, or released, meanwhile
                self._outermost(verb, getattr(self, verb))

    def take_up(self, verb: str | None) -> None:
        """Continue after the death of another process, and note the end of the verb."""
        with self.__turn:
            seen = self._seen()
            if verb is not None and seen.calling != verb:  # released, or called in another way, meanwhile
                return
            left = None if verb == "start" and seen.has_ended else verb
            self._outermost(verb or "reconnect", lambda: self.reconnect(left))

    def abandon(self) -> None:
        """Let other verbs run although a hook has not returned, and free its slot."""
        hook, self.__running, self.__turn = self.__running, None, threading.RLock()
        if hook is not None:
            hook.is_abandoned = True
            self.ec.engine.hooks.leave(hook.job)

    def _check_may(self, verb: str) -> None:
        state, seen = self.state, self._seen()
        # A verb may also go on after its hook has scheduled it again, or after another process died in it.
        if state in MAY[verb] or (seen.calling == verb and (seen.returned or here.is_in(self))):
            return
        allowed = " or ".join(each.name for each in sorted(MAY[verb]))
        error = InvalidStateError(f"{verb} of {self.name} does nothing: it is {state.name}, and not {allowed}")
        error.is_over = state >= ResourceState.FAILED
        raise error

    def missing_attributes(self) -> list[Attribute]:
        """Return the required attributes without a value."""
        required = map(self._attribute, filter(self.has_attribute, self._required_attributes))
        return [each for each in required if each.value in (None, "")]

    def missing_parts(self) -> Iterator[str]:
        """Yield the attributes and connections that its deploy lacks, in words that continue its name."""
        for attribute in self.missing_attributes():
            yield f"has no {attribute.name}: set it to {attribute.takes()}"
        for rtypes in self._required_connections:
            if not any(each.is_rm_instance(rtype) for each in self.get_connected() for rtype in rtypes):
                yield f"has no {' or '.join(rtypes)}: connect it to one"

    def end_at_once(self) -> None:
        """Kill running work, after its release timed out or as it is removed; for types, which must not block here."""

    # --- hooks: types override them -----------------------------------------------------------------------------------

    do_discover, do_reserve, do_provision = _hook("set_discovered"), _hook("set_reserved"), _hook("set_provisioned")
    do_deploy, do_start, do_stop = _hook("set_ready"), _hook("set_started"), _hook("set_stopped")
    do_release, do_fail = _hook("set_released"), _hook("set_failed")  # FAILED is set before `do_fail` is called

    def do_configure(self) -> None:
        """Configure it."""

    def do_reconnect(self, verb: str | None) -> None:
        """Call the interrupted verb again; types whose work continues elsewhere ask there for its state."""
        if verb is not None:
            getattr(self, verb)()

    # --- attributes and traces ----------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises UnknownAttributeError, a KeyError, and AttributeAccessError if it has the flag NoRead.
        """
        attribute = self._attribute(name)
        return attribute.value if here.is_in(self) else attribute.shown(self.name).value

    def set(self, name: str, value: Any) -> Any:
        """Set an attribute; return the value stored.

        Raises UnknownAttributeError, a KeyError; InvalidAttributeValueError, a ValueError; AttributeAccessError.
        """
        if not here.is_in(self):
            self._check_writable(self._attribute(name), self.state)
        return self._set_own(name, value)

    def assign_next(self) -> None:
        """Set the next attribute that conditions ``assigned``, in their order whichever thread comes first."""
        with self.__assigning:
            name, value = self.assigned.popleft()
            try:
                self.set(name, value)
            except FedmonError as error:
                self.warning(str(error))

    def check_value(self, name: str, value: Any) -> Any:
        """Return a value that a condition will set, as files hold it. Raises the errors of `set` when STARTED."""
        attribute = self._attribute(name)
        self._check_writable(attribute, ResourceState.STARTED)
        return attribute.as_plain(value, resource=self.name)

    def has_changed(self, name: str) -> bool:
        """Tell whether an attribute differs from its default. Raises UnknownAttributeError."""
        return self._attribute(name).has_changed

    def has_flag(self, name: str, flag: int) -> bool:
        """Tell whether an attribute has a flag. Raises UnknownAttributeError."""
        return self._attribute(name).has_flag(flag)

    def get_attributes_of_instance(self) -> list[Attribute]:
        """Return copies of the attributes; those that may not be read have the value None."""
        may_read = here.is_in(self)
        return [copy.copy(each) if may_read else each.listed() for each in map(self._attribute, self._attributes)]

    def get_attribute_of_instance(self, name: str) -> Attribute:
        """Return a copy of an attribute. Raises UnknownAttributeError."""
        attribute = self._attribute(name)
        return copy.copy(attribute) if here.is_in(self) else attribute.shown(self.name)

    def get_traces_of_instance(self) -> list[Trace]:
        """Return copies of the traces, as enabled here."""
        return [Trace(each.name, each.help, each.name in self._enabled) for each in self._traces.values()]

    def changed_attributes(self) -> list[Attribute]:
        """Return copies of the attributes that differ from their defaults, with credentials."""
        return [copy.copy(each) for each in map(self._attribute, self._attributes) if each.has_changed]

    def enable_trace(self, name: str) -> None:
        """Enable a trace. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        if name not in self._enabled and self._seen() is not _UNREGISTERED:
            self.ec.engine.post(TraceEnabled(guid=self._guid, name=name))
        self._enabled |= {name}

    def restore(self, attributes: Mapping[str, Any], traces: Iterable[str]) -> None:
        """Take attributes and traces from a journal, without credentials; invalid values are logged and kept."""
        for name, note in attributes.items():
            attribute = self._attribute(name)
            if attribute.is_secret and note == MASK:
                continue
            value = attribute.from_note(note)
            try:
                value = attribute.stored(value, resource=self.name)
            except InvalidAttributeValueError as error:
                self.warning(f"keeps an invalid attribute after the reconnect: {error}")
            self._own[name] = attribute.with_value(value)
        self._enabled |= {name for name in traces if name in self._traces}

    def take_stored(self, attributes: Mapping[str, Any]) -> None:
        """Restore earlier values of a resource, with any flags, without a set hook. Raises as `set` does."""
        for name, value in attributes.items():
            attribute = self._attribute(name)
            self._own[name] = attribute.with_value(attribute.stored(value, resource=self.name))

    def give(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes with any flags, such as credentials after a reconnect. Raises as `set` does."""
        for name, value in attributes.items():
            self._set_own(name, value)

    def note_global(self, name: str) -> None:
        """Journal the new value of a global attribute, unless the resource has its own."""
        if name not in self._own:
            self._note(self._attribute(name), self._attribute(name).value)

    def trace_enabled(self, name: str) -> bool:
        """Tell whether a trace is enabled. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        return name in self._enabled

    def trace(
        self,
        name: str,  # noqa: ARG002 - for types with traces
        attr: TraceAttr | str = TraceAttr.ALL,  # noqa: ARG002
        block: int = 512,  # noqa: ARG002
        offset: int = 0,  # noqa: ARG002
    ) -> str | int | None:
        """Return a part of a trace; None if the type has none. Types override this, by `read_trace`."""
        return None

    def _set_own(self, name: str, value: Any) -> Any:
        """Set an attribute with any flags, for the code of types outside of hooks."""
        attribute = self._attribute(name)
        value = attribute.accepted(value, resource=self.name)
        self._note(attribute, value)  # before it takes effect, since the journal may refuse it
        self._own[name] = attribute.with_value(value)
        return value

    def _note(self, attribute: Attribute, value: Any) -> None:
        note = attribute.as_noted(value, resource=self.name)
        if self._seen() is not _UNREGISTERED:
            self.ec.engine.post(AttributeSet(guid=self._guid, name=attribute.name, value=note))

    def _attribute(self, name: str) -> Attribute:
        found = self._own.get(name) or self._attributes.get(name)
        if found is None:
            raise UnknownAttributeError(f"{self.name} has no attribute", name, self._attributes)
        return found

    def _check_writable(self, attribute: Attribute, state: ResourceState) -> None:
        attribute.check_writable(self.name, state, is_deployed=self.deployment_group is not None)

    def _check_trace(self, name: str) -> None:
        if name not in self._traces:
            raise UnknownTraceError(f"{self.name} has no trace", name, self._traces)

    # --- log ----------------------------------------------------------------------------------------------------------

    @property
    def logger(self) -> logging.Logger:
        """The logger of its type, under NEPI's name."""
        return logging.getLogger(f"fedmon.experiment.resource.{self._rtype}")

    debug, info, error = _log_at(logging.DEBUG), _log_at(logging.INFO), _log_at(logging.ERROR)
    warn = warning = _log_at(logging.WARNING)

    def log_message(self, text: str) -> str:
        """Return a text in the form of the log."""
        return f"{self.name}: {text}"
