"""What may happen to an experiment, as its journal keeps it, and what the machine asks for in answer.

``t`` is Unix time in seconds by a clock that never jumps: the wall clock's at the start of the process, and the
monotonic clock's since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from fedmon.experiment.conditions import AnyCondition
from fedmon.experiment.errors import InvalidPolicyError
from fedmon.experiment.states import FailureLevel, ResourceAction, ResourceState

Verb = Literal["discover", "reserve", "provision", "deploy", "start", "stop", "release", "fail"]
COMES_TO: Mapping[Verb, ResourceState] = {
    "discover": ResourceState.DISCOVERED,
    "reserve": ResourceState.RESERVED,
    "provision": ResourceState.PROVISIONED,
    "deploy": ResourceState.READY,
    "start": ResourceState.STARTED,
    "stop": ResourceState.STOPPED,
    "release": ResourceState.RELEASED,
    "fail": ResourceState.FAILED,
}
"""The state to which a verb brings a resource."""
VERB_OF: Mapping[ResourceAction, Verb] = {
    ResourceAction.DEPLOY: "deploy",
    ResourceAction.START: "start",
    ResourceAction.STOP: "stop",
}
"""The verb of an action, which is also the name of the want of it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True, gc=False):
    """Something that happened at ``t``."""

    t: float


class Retry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How often a verb that failed is tried again, and after how long: ``delay_s`` times ``factor`` each time."""

    times: int
    delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0

    def delay_before_s(self, attempt: int) -> float:
        """Return the wait before an attempt; the first one after a failure is number 1."""
        return min(self.max_delay_s, self.delay_s * self.factor ** min(attempt - 1, 1000))


Purpose = Literal["delay", "condition-timeout", "verb-timeout", "retry"]


class Timer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a timer is for: of which resource, which waiting or verb of it, and which condition."""

    guid: int
    purpose: Purpose
    want: str = ""
    number: int = 0


class Opened(Event, frozen=True, kw_only=True, tag="opened", gc=False):
    """The run began, with what its controller was told; the machine has no use for that, who takes it up again has."""

    persist: bool = False
    threads: int = 0


class Registered(Event, frozen=True, kw_only=True, tag="registered", gc=False):
    """A resource came into the experiment, with these attributes. ``timeouts`` and ``retry`` are by verb.

    ``name`` is what a document calls it.

    ``plain`` are the verbs for which its type has no code: the resource is in their states as soon as they are due.
    """

    guid: int
    rtype: str
    name: str = ""
    critical: bool = True
    plain: tuple[Verb, ...] = ()
    attributes: dict[str, Any] = {}
    timeouts: dict[Verb, float] = {}
    retry: dict[Verb, Retry] = {}


class Recoded(Event, frozen=True, kw_only=True, tag="recoded", gc=False):
    """The type of a resource was programmed anew since it was registered; ``plain`` is as it is there."""

    guid: int
    plain: tuple[Verb, ...]


class Removed(Event, frozen=True, kw_only=True, tag="removed", gc=False):
    """Resources left the experiment."""

    guids: tuple[int, ...]


class Connected(Event, frozen=True, kw_only=True, tag="connected", gc=False):
    """Two resources were connected, or, with ``is_on`` false, are so no more."""

    guid: int
    other: int
    is_on: bool = True


class AttributeSet(Event, frozen=True, kw_only=True, tag="attribute", gc=False):
    """An attribute has a new value; ``critical`` is what the machine looks at."""

    guid: int
    name: str
    value: Any


class TraceEnabled(Event, frozen=True, kw_only=True, tag="trace", gc=False):
    """A trace of a resource is kept."""

    guid: int
    name: str


class ConditionAdded(Event, frozen=True, kw_only=True, tag="condition", gc=False):
    """Resources have one more condition for an action."""

    guids: tuple[int, ...]
    action: ResourceAction
    condition: AnyCondition


class ConditionsRemoved(Event, frozen=True, kw_only=True, tag="no-condition", gc=False):
    """Resources wait no longer for ``group``; for no action, where ``action`` is None."""

    guids: tuple[int, ...]
    group: tuple[int, ...]
    action: ResourceAction | None = None


class SetWanted(Event, frozen=True, kw_only=True, tag="set-wanted", gc=False):
    """An attribute is to be set when a condition holds and the resource is STARTED."""

    guids: tuple[int, ...]
    name: str
    value: Any
    condition: AnyCondition | None = None


class DeployAsked(Event, frozen=True, kw_only=True, tag="deploy", gc=False):
    """Resources are to be deployed and started: each when all of the group are READY, or each for itself."""

    guids: tuple[int, ...]
    group: int
    wait_all_ready: bool = True


class ActionWanted(Event, frozen=True, kw_only=True, tag="action-wanted", gc=False):
    """One resource is to be deployed, started or stopped as its conditions say, whatever its group does."""

    guid: int
    action: ResourceAction


class ReleaseAsked(Event, frozen=True, kw_only=True, tag="release", gc=False):
    """Resources are to be released."""

    guids: tuple[int, ...]


class Became(Event, frozen=True, kw_only=True, tag="became", gc=False):
    """Resources came to a state; ``reason`` says why one failed."""

    guids: tuple[int, ...]
    state: ResourceState
    reason: str = ""


class Returned(Event, frozen=True, kw_only=True, tag="returned"):
    """A resource that had failed for it was lost is back, in the state that it had before."""

    guid: int
    state: ResourceState


class VerbBegan(Event, frozen=True, kw_only=True, tag="verb-began", gc=False):
    """A verb was called from outside of the machine."""

    guid: int
    verb: Verb


class VerbReturned(Event, frozen=True, kw_only=True, tag="verb-returned", gc=False):
    """The hook of a verb returned; ``scheduled`` tells that it has put off what is left to do."""

    guid: int
    verb: Verb
    scheduled: bool = False


class VerbFailed(Event, frozen=True, kw_only=True, tag="verb-failed", gc=False):
    """The hook of a verb raised."""

    guid: int
    verb: Verb
    reason: str


class TaskScheduled(Event, frozen=True, kw_only=True, tag="task", gc=False):
    """A function of a module is to run at a moment; ``function`` is ``module:name``."""

    number: int
    function: str
    at: float


class TaskDone(Event, frozen=True, kw_only=True, tag="task-done", gc=False):
    """A task has begun to run; it is not run again."""

    number: int


class Reopened(Event, frozen=True, kw_only=True, tag="reopened", gc=False):
    """Another process took the run up; ``left_alone`` are STARTED, and their type does not say how to take them up."""

    left_alone: tuple[int, ...] = ()


class Fired(Event, frozen=True, kw_only=True, tag="fired", gc=False):
    """The moment of a timer came; ``waits_for`` says in words what its resource waited for."""

    timer: Timer
    waits_for: str = ""


class Measured(Event, frozen=True, kw_only=True, tag="measured", gc=False):
    """A resource told a value that conditions may ask for; None where it was no number.

    ``source`` tells the values apart that it has from several, as of several nodes, and ``nth`` those of one source,
    where that counts them.
    """

    guid: int
    name: str
    value: float | None
    source: str = ""
    nth: int | None = None


class Leveled(Event, frozen=True, kw_only=True, tag="level", gc=False):
    """The failure manager decided how bad it is; anything but OK ends all waiting, and stays.

    ``guid`` is the resource that failed, where it looked at one.
    """

    level: FailureLevel
    reason: str = ""
    guid: int = 0


AnyEvent = (
    Opened
    | Registered
    | Recoded
    | Removed
    | Connected
    | AttributeSet
    | TraceEnabled
    | ConditionAdded
    | ConditionsRemoved
    | SetWanted
    | DeployAsked
    | ActionWanted
    | ReleaseAsked
    | Became
    | Returned
    | VerbBegan
    | VerbReturned
    | VerbFailed
    | TaskScheduled
    | TaskDone
    | Reopened
    | Fired
    | Measured
    | Leveled
)


# --- what the machine asks for ----------------------------------------------------------------------------------------


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Call a verb of a resource; ``reason`` is why one is to fail."""

    guid: int
    verb: Verb
    reason: str = ""


class Assign(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Set an attribute of a resource."""

    guid: int
    name: str
    value: Any


class Alarm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tell the machine when the moment ``at`` has come; None: it need not be told any more."""

    timer: Timer
    at: float | None


class Inform(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Have the failure manager look at a resource that failed."""

    guid: int


class Abandon(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Leave the hook of a resource that runs behind: its verb failed for it took too long."""

    guid: int


class Reached(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tell those who wait for it that resources came to a state."""

    guids: tuple[int, ...]
    state: ResourceState


Action = Call | Assign | Alarm | Inform | Abandon | Reached


_VERBS: tuple[str, ...] = get_args(Verb)
_MOST = 2**63
"""Numbers from here on are no whole numbers any more to readers of a journal."""


def checked_timeouts(*given: Mapping[Verb, float] | None) -> dict[Verb, float]:
    """Return timeouts in seconds by verb, later mappings over earlier ones. Raises InvalidPolicyError."""
    found = _by_verb("timeouts", given)
    for verb, timeout_s in found.items():
        if not _is_number(timeout_s) or not timeout_s:
            raise InvalidPolicyError(f"the timeout of {verb} is {timeout_s!r:.80}: take a number of seconds above 0")
    return {verb: float(timeout_s) for verb, timeout_s in found.items()}


def checked_retries(*given: Mapping[Verb, Retry] | None) -> dict[Verb, Retry]:
    """Return how often verbs are tried again, later mappings over earlier ones. Raises InvalidPolicyError."""
    found = _by_verb("retry", given)
    for verb, retry in found.items():
        if not isinstance(retry, Retry):
            raise InvalidPolicyError(f"the retry of {verb} is {retry!r}: take Retry(times=3, delay_s=1.0)")
        for name in retry.__struct_fields__:
            value = getattr(retry, name)
            if not _is_number(value) or (name == "times" and type(value) is not int):
                kind = "whole number" if name == "times" else "number"
                raise InvalidPolicyError(f"{name} of the retry of {verb} is {value!r:.80}: take a {kind} from 0")
    return found


def _by_verb(what: str, given: Iterable[Mapping[Verb, Any] | None]) -> dict[Verb, Any]:
    found: dict[Verb, Any] = {}
    for mapping in given:
        if not (mapping is None or isinstance(mapping, Mapping)):
            raise InvalidPolicyError(f"{what} {mapping!r:.80} are not by verb: take {{'deploy': ...}}")
        found.update(mapping or {})
    for verb in found:
        if verb not in _VERBS:
            raise InvalidPolicyError(f"{what} of {verb!r}, which is no verb: there are {', '.join(_VERBS)}")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
