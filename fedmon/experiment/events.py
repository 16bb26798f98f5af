"""The events of an experiment, as its journal holds them, and the actions with which the machine answers.

``t`` is Unix time in seconds by a clock that never jumps: the wall clock at the start of the process, and the monotonic
clock since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.errors import InvalidPolicyError
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

Verb = Literal["discover", "reserve", "provision", "deploy", "start", "stop", "release", "fail"]
ActionVerb = Literal["deploy", "start", "stop"]
COMES_TO: Mapping[str, ResourceState] = {
    "discover": ResourceState.DISCOVERED,
    "reserve": ResourceState.RESERVED,
    "provision": ResourceState.PROVISIONED,
    "deploy": ResourceState.READY,
    "start": ResourceState.STARTED,
    "stop": ResourceState.STOPPED,
    "release": ResourceState.RELEASED,
    "fail": ResourceState.FAILED,
}
"""The state that a verb leads to."""
VERB_OF: Mapping[ResourceAction, ActionVerb] = {
    ResourceAction.DEPLOY: "deploy",
    ResourceAction.START: "start",
    ResourceAction.STOP: "stop",
}
"""The verb of an action, which is also the name of the want of it."""

_Amount = Annotated[float, msgspec.Meta(ge=0, lt=2**63)]


class Retry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attempts after the first one, and the wait before each: ``delay_s`` times ``factor`` each time."""

    times: Annotated[int, msgspec.Meta(ge=0)]
    delay_s: _Amount = 1.0
    factor: _Amount = 2.0
    max_delay_s: _Amount = 60.0

    def delay_before_s(self, attempt: int) -> float:
        """Return the wait before an attempt; the first one after a failure is number 1."""
        try:
            return min(self.max_delay_s, self.delay_s * self.factor ** (attempt - 1))
        except OverflowError:
            return self.max_delay_s if self.delay_s else 0.0


class Timer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A timer of a resource, for a want ("delay") or for a verb; ``want`` is the name of either."""

    guid: int
    purpose: Literal["delay", "verb-timeout", "retry"]
    want: str = ""


# --- events: their tags and fields are those of files, and stay ---------------------------------------------------


class AnyEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False):
    """An event at ``t``, which the engine sets; journals hold those of its subclasses."""

    t: float = 0.0


class Opened(AnyEvent, frozen=True, kw_only=True, tag="opened"):
    """The run began in a process, with these options of its controller; they are for the one that reconnects."""

    persist: bool = False
    threads: int = 0
    process: int = 0


class Registered(AnyEvent, frozen=True, kw_only=True, tag="registered"):
    """A resource was registered. ``timeouts`` and ``retry`` are by verb, ``name`` is its name in documents.

    ``plain`` are the verbs for which its type has no code: they reach their states at once.
    """

    guid: int
    rtype: str
    name: str = ""
    critical: bool = True
    plain: tuple[Verb, ...] = ()
    attributes: dict[str, Any] = {}
    timeouts: dict[Verb, Annotated[float, msgspec.Meta(gt=0, lt=2**63)]] = {}
    retry: dict[Verb, Retry] = {}


class Recoded(AnyEvent, frozen=True, kw_only=True, tag="recoded"):
    """The code of a resource's type changed since it was registered; ``plain`` is the new value."""

    guid: int
    plain: tuple[Verb, ...]


class Removed(AnyEvent, frozen=True, kw_only=True, tag="removed"):
    """Resources left the experiment."""

    guids: tuple[int, ...]


class Connected(AnyEvent, frozen=True, kw_only=True, tag="connected"):
    """Two resources were connected, or disconnected if ``is_on`` is false."""

    guid: int
    other: int
    is_on: bool = True


class AttributeSet(AnyEvent, frozen=True, kw_only=True, tag="attribute"):
    """An attribute has a new value."""

    guid: int
    name: str
    value: Any


class TraceEnabled(AnyEvent, frozen=True, kw_only=True, tag="trace"):
    """A trace of a resource is written from now on."""

    guid: int
    name: str


class ConditionAdded(AnyEvent, frozen=True, kw_only=True, tag="condition"):
    """An action of some resources has one more condition."""

    guids: tuple[int, ...]
    action: ResourceAction
    condition: AnyCondition


class ConditionsRemoved(AnyEvent, frozen=True, kw_only=True, tag="no-condition"):
    """An action of ``guids``, or every one if it is None, waits for ``group`` no longer."""

    guids: tuple[int, ...]
    group: tuple[int, ...]
    action: ResourceAction | None = None


class SetWanted(AnyEvent, frozen=True, kw_only=True, tag="set-wanted"):
    """An attribute is to be set once a condition holds and the resource is STARTED."""

    guids: tuple[int, ...]
    name: str
    value: Any
    condition: AnyCondition | None = None


class DeployAsked(AnyEvent, frozen=True, kw_only=True, tag="deploy"):
    """Resources are to be deployed and started: when all of the group are READY, or each when it is itself."""

    guids: tuple[int, ...]
    group: int
    wait_all_ready: bool = True


class ActionWanted(AnyEvent, frozen=True, kw_only=True, tag="action-wanted"):
    """One resource is to be deployed, started or stopped as its conditions say, without its group."""

    guid: int
    action: ResourceAction


class ReleaseAsked(AnyEvent, frozen=True, kw_only=True, tag="release"):
    """Resources are to be released."""

    guids: tuple[int, ...]


class Became(AnyEvent, frozen=True, kw_only=True, tag="became"):
    """Resources reached a state; ``reason`` says why they failed."""

    guids: tuple[int, ...]
    state: ResourceState
    reason: str = ""


class VerbBegan(AnyEvent, frozen=True, kw_only=True, tag="verb-began"):
    """The hook of a verb begins; noted for a verb that a user called, and for one that has a timeout."""

    guid: int
    verb: Verb


class VerbReturned(AnyEvent, frozen=True, kw_only=True, tag="verb-returned"):
    """The hook of a verb returned; ``scheduled``: it scheduled a task that does the rest."""

    guid: int
    verb: Verb
    scheduled: bool = False


class VerbFailed(AnyEvent, frozen=True, kw_only=True, tag="verb-failed"):
    """The hook of a verb raised."""

    guid: int
    verb: Verb
    reason: str


class WaitsFor(AnyEvent, frozen=True, kw_only=True, tag="waits-for"):
    """The verb under way waits for something, such as the answer of a node."""

    guid: int
    what: str


class TaskScheduled(AnyEvent, frozen=True, kw_only=True, tag="task"):
    """A function of a module is to run at a moment; ``function`` is ``module:name``."""

    number: int
    function: str
    at: float


class TaskDone(AnyEvent, frozen=True, kw_only=True, tag="task-done"):
    """A task began to run, or was dropped at the end of the experiment."""

    number: int


class Reopened(AnyEvent, frozen=True, kw_only=True, tag="reopened"):
    """Another process reconnected; the STARTED resources ``left_alone`` have a type that cannot do so."""

    left_alone: tuple[int, ...] = ()
    process: int = 0


class Fired(AnyEvent, frozen=True, kw_only=True, tag="fired"):
    """A timer is due."""

    timer: Timer


class Measured(AnyEvent, frozen=True, kw_only=True, tag="measured"):
    """A resource reported a value of a metric; None for NaN.

    ``source`` tells apart the values of several nodes; ``nth`` numbers the values of a source, if that counts them.
    """

    guid: int
    name: str
    value: float | None
    source: str = ""
    nth: int | None = None


class Leveled(AnyEvent, frozen=True, kw_only=True, tag="level"):
    """The failure manager judged the failure of ``guid``, 0 for none; any level but OK ends all waiting."""

    level: FailureLevel
    reason: str = ""
    guid: int = 0


# --- actions ------------------------------------------------------------------------------------------------------


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Call a verb of a resource; ``reason`` is why it fails."""

    guid: int
    verb: Verb
    reason: str = ""


class Assign(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Set an attribute of a resource."""

    guid: int
    name: str
    value: Any


class Alarm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Report `Fired` at a moment, if the timer is still needed then."""

    timer: Timer
    at: float


class Inform(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Pass a failed resource to the failure manager."""

    guid: int


class Abandon(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Leave the running hook of a resource behind: its verb timed out."""

    guid: int


Action = Call | Assign | Alarm | Inform | Abandon


def checked(registered: Registered) -> Registered:
    """Return an event whose timeouts and retries the journal can hold. Raises InvalidPolicyError."""
    try:
        return msgspec.convert(msgspec.to_builtins(registered), Registered)
    except msgspec.ValidationError as error:
        form = "timeouts={'deploy': 60.0}, in seconds, and retry={'start': Retry(times=3, delay_s=1.0)}"
        raise InvalidPolicyError(f"timeouts and retries are by verb, as in {form}: {error}") from None
