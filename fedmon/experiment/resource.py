"""The resource: its attributes and traces, what it is connected to, how far it is, and its verbs with their hooks."""

from __future__ import annotations

import copy
import datetime
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args

from fedmon.common.errors import FedmonError
from fedmon.experiment import durations
from fedmon.experiment.attributes import MASK, Attribute, Flags, Types, write_refusal
from fedmon.experiment.conditions import MetricCondition, state_of
from fedmon.experiment.engine import Engine, Hook, HookJob, failtrap, here
from fedmon.experiment.errors import (
    AttributeAccessError,
    ExperimentOverError,
    InvalidAttributeValueError,
    InvalidConditionError,
    InvalidStateError,
    InvalidTypeError,
    UnknownAttributeError,
    UnknownTraceError,
    as_reason,
    told,
)
from fedmon.experiment.events import (
    ActionWanted,
    AnyEvent,
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
from fedmon.experiment.traces import Trace, TraceAttr

_T = TypeVar("_T", bound="type[ResourceManager]")
_VERBS: frozenset[str] = frozenset(get_args(Verb))
_NONE: frozenset[str] = frozenset()
_UNREGISTERED = Resource(guid=0, rtype="")
Moment = datetime.datetime | float | None
logger = logging.getLogger(__name__)

__all__ = ["Experiment", "ResourceManager", "clsinit", "clsinit_copy", "failtrap"]


class Experiment(Protocol):
    """A controller as resources see it; its class knows all of their types, and so cannot be named here."""

    @property
    def engine(self) -> Engine:
        """Where events go."""

    @property
    def run_dir(self) -> str:
        """The folder of this run."""

    @property
    def resources(self) -> list[int]:
        """The guids of all resources."""

    def get_resource(self, guid: int) -> ResourceManager:
        """Return a resource."""

    def schedule(self, date: str | None, callback: Callable[[], Any]) -> int:
        """Have a function called later."""


def clsinit(cls: _T) -> _T:
    """Give a class attributes and traces of its own, without those of its parent."""
    cls._clsinit()
    return cls


def clsinit_copy(cls: _T) -> _T:
    """Give a class the attributes and traces of its parent, and its own."""
    cls._clsinit_copy()
    return cls


def _time_of(state: ResourceState) -> property:
    """Return the property that says when a resource last came to a state, in UTC; None if it never did."""

    def time(self: ResourceManager) -> datetime.datetime | None:
        found = next((t for known, t in self._seen().times if known is state), None)
        return None if found is None else datetime.datetime.fromtimestamp(found, datetime.UTC)

    return property(time, doc=f"When the resource was last {state.name}, in UTC; None if it never was.")


def _set_by(state: ResourceState) -> Callable[..., None]:
    """Return the method that says that a resource came to a state."""

    def set_to(self: ResourceManager, time: Moment = None) -> None:  # noqa: ARG001 - NEPI's
        self._set_state(state)

    set_to.__doc__ = f"Say that the resource is {state.name}; ``time`` is ignored, for the time is that of the call."
    return set_to


def _want(action: ResourceAction) -> Callable[[Any], None]:
    """Return the method that has an action done as soon as its conditions hold."""

    def with_conditions(self: ResourceManager) -> None:
        self.ec.engine.post(ActionWanted(t=self.ec.engine.now(), guid=self.guid, action=action))

    with_conditions.__doc__ = f"Have the {action.name.lower()} of the resource done as soon as its conditions hold."
    return with_conditions


def _verb(name: str) -> Callable[[Any], None]:
    """Return the method of a verb. It raises InvalidStateError in a state that forbids it, and what its hook raises."""

    def verb(self: ResourceManager) -> None:
        self._run(name)

    verb.__name__ = name
    verb.__doc__ = f"Call `do_{name}`. Raises InvalidStateError in a state that forbids it, and what the hook raises."
    return verb


def _hook(setter: str) -> Callable[[Any], None]:
    """Return the hook of a type without one of its own: it says that the state of its verb was reached."""

    def hook(self: ResourceManager) -> None:
        getattr(self, setter)()

    hook.__doc__ = f"Call `{setter}`; types override this and end with it."
    return hook


def _log_at(level: int) -> Callable[..., None]:
    """Return the method that logs a text at a level; ``out`` and ``err`` are the output of a command."""

    def log(self: ResourceManager, text: str, out: str | None = None, err: str | None = None) -> None:
        if self.logger.isEnabledFor(level):
            parts = (text, out and f"stdout: {out}", err and f"stderr: {err}")
            self.logger.log(level, "%s", self.log_message(" ".join(part for part in parts if part)))

    log.__doc__ = f"Log a text as {logging.getLevelName(level)}; ``out`` and ``err`` are the output of a command."
    return log


SETTERS: dict[Verb, str] = {
    "deploy": "set_ready",
    "start": "set_started",
    "stop": "set_stopped",
    "fail": "set_failed",
    "release": "set_released",
}
_EVERY = tuple(
    Attribute(name, about, Types.Bool, Flags.Design, default)
    for name, about, default in (
        ("critical", "Whether the experiment fails when the resource does.", True),
        ("hardRelease", "Whether a release takes the resource out of the experiment.", False),
    )
)


class ResourceManager:
    """A resource of an experiment.

    Types override the ``do_`` hooks and end them with the parent's, which says that the state was reached; a hook that
    returns without it leaves the resource as it is, and may have scheduled its verb again. A `do_release` that has
    scheduled nothing then counts as done. One verb runs at a time, until its hook returns. A hook that does not end
    holds back neither `fail`, which waits for nothing, nor `release`, which waits for ``_release_patience_s`` seconds.
    Flags of attributes bind everybody but the resource's own hooks. All methods are safe from any thread.
    """

    _rtype: ClassVar[str] = "Resource"
    _help: ClassVar[str | None] = None
    _platform: ClassVar[str | None] = None
    _reschedule_delay: ClassVar[str] = "0.5s"
    type_timeouts: ClassVar[Mapping[Verb, float]] = {}
    """For how many seconds a verb may run, by verb."""
    type_retry: ClassVar[Mapping[Verb, Retry]] = {}
    """How often a verb that failed is tried again, by verb."""
    _attributes: ClassVar[Mapping[str, Attribute]] = {}
    _traces: ClassVar[Mapping[str, Trace]] = {}
    _release_patience_s: ClassVar[float] = 5.0
    asks_federation: ClassVar[bool] = False
    """Whether it can do nothing without a federation."""
    # What plans and explanations go by; see `natures`.
    _needs: ClassVar[tuple[Need, ...]] = ()
    """What its verbs wait for by themselves, of what it is connected to."""
    _ends_itself: ClassVar[bool] = False
    """Whether it comes to STOPPED without being told to; what has code of its own for its start may do so anyhow."""
    _passes: ClassVar[tuple[ResourceState, ...] | None] = None
    """The states before READY that its deploy stops in; null: nobody knows where it has code of its own for that."""
    _required_attributes: ClassVar[tuple[str, ...]] = ()
    """What has to be set before it is deployed."""
    _required_connections: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """What it has to be connected to before it is deployed: to one type of each."""
    _measured_by: ClassVar[tuple[str, ...] | None] = None
    """The types that tell its metrics when they are connected to it; null where it tells some itself."""
    _measures_when_ready: ClassVar[bool] = False
    """Whether metrics of it may come before it is STARTED."""

    @classmethod
    def _clsinit(cls) -> None:
        """Begin anew, with what every resource has and what this class registers."""
        cls._attributes, cls._traces = {each.name: each for each in _EVERY}, {}
        cls._register_attributes()
        cls._register_traces()

    @classmethod
    def _clsinit_copy(cls) -> None:
        """Begin with what the parent has."""
        cls._attributes, cls._traces = dict(cls._attributes), dict(cls._traces)
        cls._register_attributes()
        cls._register_traces()

    @classmethod
    def _complete(cls) -> None:
        """Do as `clsinit_copy` for the classes that register something and were not decorated."""
        for each in reversed(cls.__mro__):
            is_ours = issubclass(each, ResourceManager) and "_attributes" not in vars(each)
            if is_ours and not vars(each).keys().isdisjoint({"_register_attributes", "_register_traces"}):
                clsinit_copy(each)

    @classmethod
    def _register_attributes(cls) -> None:
        """Register what this class adds; for subclasses."""

    @classmethod
    def _register_traces(cls) -> None:
        """Register what this class adds; for subclasses."""

    @classmethod
    def _register_attribute(cls, attribute: Attribute) -> None:
        """Add an attribute, in place of one of the same name."""
        if not isinstance(attribute, Attribute):
            raise InvalidTypeError(f"{cls.__name__} registers {attribute!r}, which is no Attribute")
        cls._replace("_attributes", {**cls._attributes, attribute.name: attribute})

    @classmethod
    def _remove_attribute(cls, name: str) -> None:
        """Take an attribute out. Raises UnknownAttributeError, and InvalidTypeError for one that every resource has."""
        gone = cls._template(name)
        if gone in _EVERY:
            raise InvalidTypeError(f"{cls.__name__} cannot do without the attribute {name!r}: every resource has it")
        cls._replace("_attributes", {other: each for other, each in cls._attributes.items() if each is not gone})

    @classmethod
    def _register_trace(cls, trace: Trace) -> None:
        """Add a trace, in place of one of the same name."""
        if not isinstance(trace, Trace):
            raise InvalidTypeError(f"{cls.__name__} registers {trace!r}, which is no Trace")
        cls._replace("_traces", {**cls._traces, trace.name: trace})

    @classmethod
    def _remove_trace(cls, name: str) -> None:
        """Take a trace out. Raises UnknownTraceError."""
        if name not in cls._traces:
            raise UnknownTraceError(f"type {cls._rtype} has no trace", name, cls._traces)
        cls._replace("_traces", {other: each for other, each in cls._traces.items() if other != name})

    @classmethod
    def get_rtype(cls) -> str:
        """Return the name of the type."""
        return cls._rtype

    @classmethod
    def get_help(cls) -> str | None:
        """Return what the type is for."""
        return cls._help

    @classmethod
    def get_platform(cls) -> str | None:
        """Return the platform that the type belongs to."""
        return cls._platform

    @classmethod
    def get_attributes(cls) -> list[Attribute]:
        """Return copies of the attributes; the value of one that may not be read is null."""
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
        """Tell whether there is an attribute of a name."""
        return name in cls._attributes

    @classmethod
    def get_global(cls, name: str) -> Any:
        """Return the value with which resources of the type begin.

        Raises UnknownAttributeError, and AttributeAccessError for an attribute that is not Global, or NoRead.
        """
        return cls._global(name).shown(f"type {cls._rtype}").value

    @classmethod
    def set_global(cls, name: str, value: Any) -> Any:
        """Set the value of all resources of the type that have none of their own, and return it.

        Raises UnknownAttributeError, InvalidAttributeValueError, and AttributeAccessError
        for an attribute that is not Global, or that nobody but the type may set.
        """
        attribute, who = cls._global(name), f"type {cls._rtype}"
        refused = write_refusal(attribute, ResourceState.NEW, is_deployed=False)
        if refused is not None:
            raise AttributeAccessError(name, who, refused[0].name or "", refused[1])
        value = attribute.accepted(value, resource=who)
        attribute.as_noted(value, resource=who)
        cls._replace("_attributes", {**cls._attributes, name: attribute.with_value(value)})
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
            raise AttributeAccessError(name, f"type {cls._rtype}", "Global", "is not one of the whole type: it has no")
        return found

    @classmethod
    def _replace(cls, name: str, mapping: Mapping[str, Attribute] | Mapping[str, Trace]) -> None:
        """Replace a mapping where it is: in this class, or in the parent that this one shares it with."""
        setattr(next(each for each in cls.__mro__ if name in vars(each)), name, mapping)

    def __init__(self, ec: Experiment, guid: int) -> None:
        self._guid, self._ec = guid, weakref.ref(ec)
        self._reason = ""
        self._was_seen = self.__is_failing = self.__is_releasing = False
        self.__turn = threading.RLock()
        self.__running: Hook | None = None
        self._own: dict[str, Attribute] = {}
        enabled = [each.name for each in self._traces.values() if each.enabled]
        self._enabled: frozenset[str] = frozenset(enabled) if enabled else _NONE

    @property
    def guid(self) -> int:
        """The number of the resource."""
        return self._guid

    @property
    def name(self) -> str:
        """How messages name the resource."""
        return f"resource {self._guid} ({self._rtype})"

    @property
    def ec(self) -> Experiment:
        """The experiment. Raises ExperimentOverError if it is gone."""
        found = self._ec()
        if found is None:
            raise ExperimentOverError(f"the experiment of {self.name} is no more")
        return found

    @property
    def controller(self) -> Any:
        """The experiment with all methods of `ExperimentController`."""
        return self.ec

    def is_of(self, ec: object) -> bool:
        """Tell whether it belongs to an experiment."""
        return self._ec() is ec

    @property
    def state(self) -> ResourceState:
        """How far it is; NEW while it is being made, and RELEASED once it was taken out."""
        seen = self._seen()
        return ResourceState.RELEASED if self._was_seen and seen is _UNREGISTERED else seen.state

    @property
    def connections(self) -> frozenset[int]:
        """The guids of what it is connected to."""
        return self._seen().connections

    @property
    def conditions(self) -> dict[ResourceAction, list[tuple[list[int], Any, str | None]]]:
        """Its conditions by action: each a group, what it asks of it, and for how long that must have been."""
        found: dict[ResourceAction, list[tuple[list[int], Any, str | None]]] = {}
        for action, each in self._seen().conditions:
            asked: Any = each.metric if isinstance(each, MetricCondition) else each.state
            delay_s = 0.0 if isinstance(each, MetricCondition) else each.delay_s
            delay = durations.duration_text(delay_s) if delay_s else None
            found.setdefault(action, []).append((list(each.group), asked, delay))
        return found

    @property
    def deployment_group(self) -> int | None:
        """With whom it is deployed; null before it was asked to."""
        return self._seen().group

    @property
    def reschedule_delay(self) -> str:
        """After how long its verbs are to look again, where they look again."""
        return self._reschedule_delay

    @property
    def reason(self) -> str:
        """Why it failed: what was told to it, or else to the experiment; "" where nothing was."""
        try:
            return self._reason or self._seen().reason
        except ExperimentOverError:
            return self._reason

    @reason.setter
    def reason(self, reason: object) -> None:
        self._reason = as_reason(reason)

    def _seen(self) -> Resource:
        """Return what the experiment knows of it; before it is registered, and once it was removed, nothing."""
        found = self.ec.engine.state.resources.get(self._guid, _UNREGISTERED)
        self._was_seen |= found is not _UNREGISTERED
        return found

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
        """Have an action wait until a group is in a state, and has been for a time. Raises InvalidConditionError."""
        self.controller.register_condition(self._guid, action, group, state, time)

    def unregister_condition(self, group: Guids, action: ResourceAction | None = None) -> None:
        """Have an action, or every one, wait for a group no longer."""
        self.controller.unregister_condition(self._guid, group, action)

    def set_with_conditions(
        self, name: str, value: Any, group: Guids, state: ResourceState, time: str | None = None
    ) -> None:
        """Have an attribute set when a group is in a state and this resource is STARTED."""
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
        """Say that it FAILED, and why; a time in the place of that, as in NEPI, is none."""
        if not isinstance(reason, datetime.datetime | int | float):
            self.reason = as_reason(reason) or self.reason
        self._set_state(ResourceState.FAILED)

    def set_state(self, state: ResourceState, state_time_attr: str = "") -> None:  # noqa: ARG002 - NEPI's
        """Say to which state it came. Raises InvalidStateError."""
        try:
            self._set_state(state_of(state))
        except InvalidConditionError as error:
            raise InvalidStateError(str(error)) from None

    def set_state_time(self, state: ResourceState, state_time_attr: str = "", time: Moment = None) -> None:  # noqa: ARG002
        """Say to which state it came. Raises InvalidStateError."""
        self.set_state(state)

    def _set_state(self, state: ResourceState) -> None:
        running = next((hook for hook in here.hooks if hook.rm is self), None)
        if running is not None and running.is_abandoned:
            self.debug(f"is {state.name} only for a hook that was left behind")
        elif not (state >= ResourceState.FAILED and self.state is state):
            self.__is_failing &= state is not ResourceState.FAILED
            reason = self.reason if state is ResourceState.FAILED else ""
            self.ec.engine.note(Became(t=self.ec.engine.now(), guids=(self._guid,), state=state, reason=reason))

    @classmethod
    def overrides(cls, verb: Verb) -> bool:
        """Tell whether the type does anything of its own when a verb is called; else the verb only sets the state."""
        names = (verb, f"do_{verb}", SETTERS[verb])
        return any(getattr(cls, name) is not getattr(ResourceManager, name) for name in names)

    # --- what it is connected to --------------------------------------------------------------------------------------

    def register_connection(self, guid: int) -> None:
        """Connect it to another, if both agree. Raises InvalidConnectionError, UnknownGuidError."""
        self.controller.register_connection(self._guid, guid)

    def unregister_connection(self, guid: int) -> None:
        """Take it apart from another. Raises UnknownGuidError."""
        self.controller.unregister_connection(self._guid, guid)

    def valid_connection(self, guid: int) -> bool:  # noqa: ARG002 - for subclasses
        """Tell whether it takes a connection to another; for types to say."""
        return True

    def do_connect(self, guid: int) -> None:
        """Do what being connected takes; for types."""

    def do_disconnect(self, guid: int) -> None:
        """Undo what being connected took; for types."""

    def neighbour_releases(self, other: ResourceManager) -> None:
        """Read what goes with another that it is connected to, before that is released; for types."""

    def get_connected(self, rtype: str | type[ResourceManager] | None = None) -> list[ResourceManager]:
        """Return what it is connected to, by guid: all, or those of a type and of the types derived from it.

        Raises UnknownTypeError for a type that nobody registered.
        """
        connected = [self.ec.get_resource(guid) for guid in sorted(self.connections)]
        found = [each for each in connected if rtype is None or each.is_rm_instance(rtype)]
        if not found and rtype is not None:
            self.controller.filter_resources(rtype)  # which raises for a type that nobody registered
        return found

    def is_rm_instance(self, rtype: str | type[ResourceManager]) -> bool:
        """Tell whether it is of a type, or of one derived from it."""
        if isinstance(rtype, type):
            return isinstance(self, rtype)
        return any(vars(each).get("_rtype") == rtype for each in type(self).__mro__)

    # --- verbs --------------------------------------------------------------------------------------------------------

    discover, reserve, provision, configure = map(_verb, ("discover", "reserve", "provision", "configure"))
    deploy, start, stop = map(_verb, ("deploy", "start", "stop"))

    def fail(self, reason: str = "") -> None:
        """Have it fail, now, even while another verb runs; its hook clears up when it is FAILED already."""
        self.reason = as_reason(reason) or self.reason
        if self.state < ResourceState.FAILED:
            # First the state, for others wait for it, and nobody knows how long the hook takes.
            ResourceManager._set_state(self, ResourceState.FAILED)
        if self.state is ResourceState.FAILED and not self.__is_failing:
            self.__is_failing = True
            try:
                with Hook(self, "fail"):
                    self.do_fail()
            except Exception as error:  # noqa: BLE001 - a type's own code; the resource has failed all the same
                self.warning(f"fail raised {told(error)}")

    def release(self) -> None:
        """Give back what it holds. A hook that raises is logged, and the resource is RELEASED all the same."""
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
            for other in self.get_connected():
                try:
                    other.neighbour_releases(self)
                except Exception as error:  # noqa: BLE001 - a type's own code; this one is released all the same
                    self.warning(f"the release of a resource raised in {other.name}: {told(error)}")
            with Hook(self, "release") as hook:
                self.do_release()
            is_done = not hook.has_scheduled
        except Exception as error:  # noqa: BLE001 - a type's own code; the resource ends all the same
            self.warning(f"release raised {told(error)}")
        finally:
            if is_done and self.state is not ResourceState.RELEASED:  # nobody is left who would say it
                self._set_state(ResourceState.RELEASED)

    def reconnect(self, verb: str | None) -> None:
        """Take up again what a process that died had begun; ``verb`` is the one that was under way."""
        if self.state < ResourceState.FAILED or verb == "release":
            self.do_reconnect(verb)

    def _run(self, verb: str) -> None:
        if here.is_in(self, verb):
            self.debug(f"{verb} does nothing within itself")
        elif here.is_in(self):  # a part of the verb that runs, or that verb itself, called by the experiment
            self._check_may(verb)
            with Hook(self, verb):
                getattr(self, f"do_{verb}")()
        else:
            with self.__turn:
                self._check_may(verb)
                if verb in ("deploy", "start", "stop") and self._seen().calling != verb:
                    self.ec.engine.note(VerbBegan(t=self.ec.engine.now(), guid=self._guid, verb=cast("Verb", verb)))
                event, error = self._outermost(verb, lambda: self._run(verb))
                if event is not None:
                    self.ec.engine.note(event)
            if error is not None:
                raise error

    def _outermost(
        self, verb: str, call: Callable[[], object]
    ) -> tuple[VerbReturned | VerbFailed | None, BaseException | None]:
        """Call what a verb does; return what is to be noted of its end, and what it raised."""
        error: BaseException | None = None
        hook = self.__running = Hook(self, "")
        try:
            with hook:
                call()
        except BaseException as raised:  # noqa: BLE001 - whatever a type's own code raises is the failure of the verb
            error = raised
        if self.__running is hook:
            self.__running = None
        if hook.is_abandoned:
            self.debug(f"{verb} ended after it was given up")
            return None, error
        if error is not None:
            return self._failed(verb, error), error
        if verb not in _VERBS:
            return None, None
        now, known = self.ec.engine.now(), cast("Verb", verb)
        return VerbReturned(t=now, guid=self._guid, verb=known, scheduled=hook.has_scheduled), None

    def _failed(self, verb: str, error: BaseException) -> VerbFailed | None:
        """Log the failure of a verb, with its place unless it is one of our own errors; return what is to be noted."""
        here.reported = error
        place = None if isinstance(error, FedmonError) else error
        logger.error("%s of %s failed: %s", verb, self.name, told(error), exc_info=place)
        if verb in _VERBS:
            now = self.ec.engine.now()
            return VerbFailed(t=now, guid=self._guid, verb=cast("Verb", verb), reason=told(error))
        self.fail(f"{verb} failed: {told(error)}")
        return None

    def trap(self, verb: str, error: BaseException) -> None:
        """Have it fail, or a verb tried again, for a method raised that is no hook; see `failtrap`."""
        event = self._failed(verb, error)
        if event is not None:
            self.ec.engine.note(event)

    def called(self, verb: str, reason: str) -> AnyEvent | None:
        """Call a verb for the experiment; return what is to be noted of its end."""
        if verb == "release":
            self.release()
            return None
        if verb == "fail":
            self._reason = reason or self._reason
            self.fail()
            return None
        with self.__turn:
            seen = self._seen()
            if seen.calling != verb or seen.returned:
                return None  # it was called otherwise, or the resource was released meanwhile
            return self._outermost(verb, getattr(self, verb))[0]

    def reconnected(self, verb: str | None) -> AnyEvent | None:
        """Take up what another process had begun; return what is to be noted of the end of the verb."""
        with self.__turn:
            event, error = self._outermost(verb or "reconnect", lambda: self.reconnect(verb))
        if verb == "release" and error is not None:
            self._set_state(ResourceState.RELEASED)
            return None
        return event

    def takes_up(self) -> bool:
        """Tell whether its type says how to take it up again, or has no code of its own that could go on."""
        return type(self).do_reconnect is not ResourceManager.do_reconnect or not self.overrides("start")

    def abandon(self) -> HookJob | None:
        """Leave the running hook behind, so that others may run; return its job, if it has one."""
        hook, self.__running, self.__turn = self.__running, None, threading.RLock()
        if hook is None:
            return None
        hook.is_abandoned = True
        return hook.job

    def _check_may(self, verb: str) -> None:
        state, seen = self.state, self._seen()
        # It goes on where a hook of it has put it off, or where another process stopped.
        if state in MAY[verb] or (seen.calling == verb and (seen.returned or here.is_in(self))):
            return
        allowed = ", ".join(each.name for each in sorted(MAY[verb]))
        error = InvalidStateError(f"{verb} of {self.name} does nothing: it is {state.name}, and not {allowed}")
        error.is_over = state >= ResourceState.FAILED
        raise error

    def end_at_once(self) -> None:
        """End what runs, for nobody waits for its release any longer; for types, which must not block here."""

    # --- hooks: types override them -----------------------------------------------------------------------------------

    do_discover, do_reserve, do_provision = _hook("set_discovered"), _hook("set_reserved"), _hook("set_provisioned")
    do_deploy, do_start, do_stop = _hook("set_ready"), _hook("set_started"), _hook("set_stopped")
    do_release, do_fail = _hook("set_released"), _hook("set_failed")  # it is FAILED already when that is called

    def do_configure(self) -> None:
        """Configure it."""

    def do_reconnect(self, verb: str | None) -> None:
        """Call a verb anew that was under way; types whose work goes on elsewhere ask there how it stands."""
        if verb is not None:
            getattr(self, verb)()

    # --- attributes and traces ----------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises UnknownAttributeError, a KeyError, and AttributeAccessError where it has the flag NoRead.
        """
        attribute = self._attribute(name)
        if attribute.has_flag(Flags.NoRead) and not here.is_in(self):
            raise AttributeAccessError(name, self.name, "NoRead", "cannot be read")
        return attribute.value

    def is_on(self, name: str) -> bool:
        """Tell whether an attribute that is there is true, for experiments, which no flag binds."""
        return bool((self._own.get(name) or self._attributes[name]).value)

    def set(self, name: str, value: Any) -> Any:
        """Set an attribute, and return the value that it has now.

        Raises UnknownAttributeError, a KeyError; InvalidAttributeValueError, a ValueError; AttributeAccessError.
        """
        if not here.is_in(self):
            self._check_writable(self._attribute(name))
        return self._set_own(name, value)

    def check_value(self, name: str, value: Any) -> Any:
        """Return a value that conditions are to set as files hold it till then.

        Raises what `set` would once the resource is STARTED.
        """
        attribute = self._attribute(name)
        self._check_writable(attribute, ResourceState.STARTED)
        return attribute.as_plain(value, resource=self.name)

    def has_changed(self, name: str) -> bool:
        """Tell whether an attribute has another value than its default. Raises UnknownAttributeError."""
        return self._attribute(name).has_changed

    def has_flag(self, name: str, flag: int) -> bool:
        """Tell whether an attribute has a flag. Raises UnknownAttributeError."""
        return self._attribute(name).has_flag(flag)

    def get_attributes_of_instance(self) -> list[Attribute]:
        """Return copies of the attributes, with the values that they have here; what may not be read is null."""
        may_read = here.is_in(self)
        return [copy.copy(each) if may_read else each.listed() for each in map(self._attribute, self._attributes)]

    def get_attribute_of_instance(self, name: str) -> Attribute:
        """Return a copy of an attribute, with the value that it has here, if it may be read.

        Raises UnknownAttributeError.
        """
        attribute = self._attribute(name)
        return copy.copy(attribute) if here.is_in(self) else attribute.shown(self.name)

    def get_traces_of_instance(self) -> list[Trace]:
        """Return copies of the traces, with whether they are written here."""
        return [Trace(each.name, each.help, each.name in self._enabled) for each in self._traces.values()]

    def changed_attributes(self) -> list[Attribute]:
        """Return copies of the attributes that differ from their defaults, credentials among them."""
        return [copy.copy(each) for each in map(self._attribute, self._attributes) if each.has_changed]

    def enable_trace(self, name: str) -> None:
        """Have a trace written. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        if name not in self._enabled and self._seen() is not _UNREGISTERED:
            self.ec.engine.post(TraceEnabled(t=self.ec.engine.now(), guid=self._guid, name=name))
        self._enabled |= {name}

    def restore(self, attributes: Mapping[str, Any], traces: Iterable[str]) -> None:
        """Take the attributes and traces that another process left in the journal; credentials were not.

        What is not valid in this process, such as the name of a function that it lacks, matters to who needs it.
        """
        for name, note in attributes.items():
            attribute = self._attribute(name)
            if attribute.is_secret and note == MASK:
                continue
            value = attribute.from_note(note)
            try:
                value = attribute.stored(value, resource=self.name)
            except InvalidAttributeValueError as error:
                self.warning(f"is taken up with what it had, though {error}")
            self._own[name] = attribute.with_value(value)
        self._enabled |= {name for name in traces if name in self._traces}

    def take_stored(self, attributes: Mapping[str, Any]) -> None:
        """Take values as another resource had them, whatever their flags say, without a set hook.

        Raises UnknownAttributeError, InvalidAttributeValueError.
        """
        for name, value in attributes.items():
            attribute = self._attribute(name)
            self._own[name] = attribute.with_value(attribute.stored(value, resource=self.name))

    def give(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes again whatever their flags say, as credentials after a reconnect. Raises as `set` does."""
        for name, value in attributes.items():
            self._set_own(name, value)

    def note_global(self, name: str) -> None:
        """Note that a value of all resources of the type has changed; nothing where it has one of its own."""
        if name not in self._own and self._seen() is not _UNREGISTERED:
            attribute = self._attribute(name)
            note = attribute.as_noted(attribute.value, resource=self.name)
            self.ec.engine.post(AttributeSet(t=self.ec.engine.now(), guid=self._guid, name=name, value=note))

    def notes(self) -> dict[str, Any]:
        """Return the values that differ from their defaults as journals hold them; an error names the attribute."""
        return {each.name: each.as_noted(each.value, resource=self.name) for each in self.changed_attributes()}

    def trace_enabled(self, name: str) -> bool:
        """Tell whether a trace is written. Raises UnknownTraceError, a KeyError."""
        self._check_trace(name)
        return name in self._enabled

    def trace(
        self,
        name: str,  # noqa: ARG002 - for the types that have traces
        attr: TraceAttr | str = TraceAttr.ALL,  # noqa: ARG002
        block: int = 512,  # noqa: ARG002
        offset: int = 0,  # noqa: ARG002
    ) -> str | int | None:
        """Return what is asked of a trace; null, for types say how theirs are read: see `read_trace`."""
        return None

    @property
    def _attrs(self) -> Mapping[str, Attribute]:
        """The attributes by name, for the code of resource types: what is set there is set in this resource."""
        return {name: self._attribute(name).bound(functools.partial(self._set_own, name)) for name in self._attributes}

    def _set_own(self, name: str, value: Any) -> Any:
        """Set an attribute whatever its flags say, for the code of resource types outside of hooks."""
        attribute = self._attribute(name)
        value = attribute.accepted(value, resource=self.name)
        note = attribute.as_noted(value, resource=self.name)
        if self._seen() is not _UNREGISTERED:
            # Told before it is so: what cannot be written down did not happen.
            self.ec.engine.post(AttributeSet(t=self.ec.engine.now(), guid=self._guid, name=name, value=note))
        self._own[name] = attribute.with_value(value)
        return value

    def _attribute(self, name: object) -> Attribute:
        found = (self._own.get(name) or self._attributes.get(name)) if isinstance(name, str) else None
        if found is None:
            raise UnknownAttributeError(f"{self.name} has no attribute", name, self._attributes)
        return found

    def _check_writable(self, attribute: Attribute, when: ResourceState | None = None) -> None:
        state = self.state if when is None else when
        refused = write_refusal(attribute, state, is_deployed=self.deployment_group is not None)
        if refused is not None:
            flag, reason = refused
            raise AttributeAccessError(attribute.name, self.name, flag.name or "", reason)

    def _check_trace(self, name: object) -> None:
        if not isinstance(name, str) or name not in self._traces:
            raise UnknownTraceError(f"{self.name} has no trace", name, self._traces)

    # --- what it says in the log --------------------------------------------------------------------------------------

    @property
    def logger(self) -> logging.Logger:
        """The logger of its type, under NEPI's name."""
        return logging.getLogger(f"fedmon.experiment.resource.{self._rtype}")

    debug, info, error = _log_at(logging.DEBUG), _log_at(logging.INFO), _log_at(logging.ERROR)
    warn = warning = _log_at(logging.WARNING)

    def log_message(self, text: str) -> str:
        """Return a text as it stands in the log."""
        return f"{self.name}: {text}"


clsinit(ResourceManager)
